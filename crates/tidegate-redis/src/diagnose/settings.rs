//! Judges what a server says about itself: version, memory, persistence, replicas, cluster, access.

use super::{Examination, Severity, text};

impl Examination {
    pub(super) fn version(&mut self) {
        let is_valkey = self.field("server_name") == "valkey";
        let version = if is_valkey {
            "valkey_version"
        } else {
            "redis_version"
        };
        let version = self.field(version).to_owned();
        let mut parts = version
            .split('.')
            .map(|part| part.parse::<u32>().unwrap_or(0));
        let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        let name = if is_valkey { "Valkey" } else { "Redis" };
        if !version.is_empty() && !is_valkey && (major, minor) < (6, 2) {
            let what = format!("{name} {version} is older than 6.2, the oldest tested version");
            self.add(
                Severity::Serious,
                "old-version",
                what,
                "upgrade to Redis 6.2 or Valkey 7.2",
            );
        } else if !version.is_empty() {
            self.add(Severity::Note, "version", format!("{name} {version}"), "");
        }
    }

    pub(super) fn memory(&mut self) {
        let maximum = self.number("maxmemory").unwrap_or(0);
        let policy = self.field("maxmemory_policy").to_owned();
        let evicts = !policy.is_empty() && policy != "noeviction";
        if maximum > 0 && evicts {
            let what = format!(
                "maxmemory-policy {policy} may evict counters, which resets the limits of their clients"
            );
            self.add(
                Severity::Serious,
                "eviction",
                what,
                "CONFIG SET maxmemory-policy noeviction",
            );
        } else if evicts {
            let what =
                format!("maxmemory-policy is {policy}; with a maxmemory it would evict counters");
            self.add(
                Severity::Note,
                "eviction-policy",
                what,
                "CONFIG SET maxmemory-policy noeviction",
            );
        }
        let used = self.number("used_memory").unwrap_or(0);
        if maximum > 0 && used >= maximum / 10 * 9 {
            let what = format!("{used} of {maximum} bytes are used; a full server refuses checks");
            self.add(
                Severity::Serious,
                "memory",
                what,
                "raise maxmemory, see docs/sizing.md",
            );
        }
    }

    pub(super) async fn persistence(&mut self) {
        if self.field("rdb_last_bgsave_status") == "err" {
            let what = "the last snapshot failed; by default Redis then refuses writes (MISCONF)";
            let fix = "mend the disk, then BGSAVE; or CONFIG SET stop-writes-on-bgsave-error no";
            self.add(Severity::Serious, "snapshot-failed", what.to_owned(), fix);
        }
        let saves = self.setting("save").await;
        let has_aof = self.field("aof_enabled") == "1";
        if saves.as_deref() == Some("") && !has_aof {
            let what = "nothing is persisted: a restart resets all limits";
            let fix = "CONFIG SET save '60 1', or CONFIG SET appendonly yes; or accept it";
            self.add(Severity::Warning, "no-persistence", what.to_owned(), fix);
        }
        if has_aof && self.setting("appendfsync").await.as_deref() == Some("always") {
            let what = "appendfsync always waits for the disk at every check";
            let fix = "CONFIG SET appendfsync everysec";
            self.add(Severity::Warning, "slow-fsync", what.to_owned(), fix);
        }
    }

    pub(super) async fn replication(&mut self) {
        if self.field("role") == "slave" {
            let what = "this server is a read-only replica: every check fails";
            let fix = "use the URL of the primary, or redis+sentinel://";
            self.add(Severity::Serious, "replica", what.to_owned(), fix);
            return;
        }
        let replicas = self.number("connected_slaves").unwrap_or(0).min(100);
        if replicas == 0 {
            let what = "no replica: an outage of this server is an outage of the limits";
            self.add(
                Severity::Note,
                "no-replica",
                what.to_owned(),
                "add a replica with Sentinel, or a cluster",
            );
            return;
        }
        let least = self.setting("min-replicas-to-write").await;
        if least.as_deref() == Some("0") {
            let what =
                "min-replicas-to-write is 0: after a partition, two primaries may both admit";
            let fix = "CONFIG SET min-replicas-to-write 1";
            self.add(Severity::Warning, "min-replicas", what.to_owned(), fix);
        }
        let is_behind = |number: u64| {
            let state = self.field(&format!("slave{number}"));
            !state.is_empty() && !state.contains("state=online")
        };
        if (0..replicas).any(is_behind) {
            let what = "a replica is not online: a failover to it resets limits";
            self.add(
                Severity::Warning,
                "replica-behind",
                what.to_owned(),
                "check the replica's log",
            );
        }
    }

    pub(super) async fn cluster(&mut self, is_cluster: bool) {
        let runs_as_cluster =
            self.field("redis_mode") == "cluster" || self.field("cluster_enabled") == "1";
        if !runs_as_cluster {
            return;
        }
        if !is_cluster {
            let what = "this server is a cluster node: keys of other nodes fail with MOVED";
            self.add(
                Severity::Serious,
                "cluster-url",
                what.to_owned(),
                "use redis+cluster://HOST:PORT",
            );
        }
        let Ok(reply) = self.command(&["CLUSTER", "INFO"]).await else {
            return;
        };
        let text = text(&reply);
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
        };
        let covered = field("cluster_slots_ok").unwrap_or("16384");
        if covered != "16384" || field("cluster_state") != Some("ok") {
            let what =
                format!("the cluster serves {covered} of 16384 slots: checks of other keys fail");
            let fix = "redis-cli --cluster check HOST:PORT, then --cluster fix";
            self.add(Severity::Serious, "cluster-slots", what, fix);
        }
    }

    pub(super) async fn security(&mut self) {
        let has_no_password = self.setting("requirepass").await.as_deref() == Some("");
        let is_exposed = self.setting("protected-mode").await.as_deref() == Some("no");
        let bind = self.setting("bind").await.unwrap_or_default();
        let is_local = bind.split_whitespace().all(|address| {
            let address = address.trim_start_matches('-');
            address.starts_with("127.") || address == "::1" || address == "localhost"
        });
        if has_no_password && is_exposed && (bind.is_empty() || !is_local) {
            let what = "every client that reaches this server may change counters: no password";
            let fix =
                "ACL SETUSER tidegate on >PASSWORD ~tg:* +@all -@dangerous +info, then default off";
            self.add(Severity::Warning, "no-password", what.to_owned(), fix);
        }
        if self
            .setting("timeout")
            .await
            .is_some_and(|seconds| !matches!(&*seconds, "0" | ""))
        {
            let what = "idle connections are closed (timeout): the first check after it reconnects";
            self.add(
                Severity::Note,
                "idle-timeout",
                what.to_owned(),
                "CONFIG SET timeout 0",
            );
        }
    }
}
