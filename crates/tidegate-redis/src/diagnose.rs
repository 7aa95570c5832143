//! Diagnoses a Redis server: settings that weaken limits, each with its fix.
//!
//! `tidegate doctor` prints all findings; `tidegate serve` logs the serious ones at its start. A
//! command that the server refuses to this user leaves its checks out.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tidegate_core::Clock;
use tokio::time::Instant;

use crate::store::RedisStore;

/// The timeout of one command.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The keys that are examined for a missing expiry.
const MAX_SCANNED: usize = 50_000;
/// The time for that.
const SCAN_TIME: Duration = Duration::from_secs(10);
/// The pings that measure the latency.
const PINGS: usize = 40;

/// The weight of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Limits fail, or clients are freed.
    Serious,
    /// Limits may be lost in a failure, or Redis is slower than it could be.
    Warning,
    /// A fact to know.
    Note,
}

impl Severity {
    /// Returns the name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serious => "serious",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// One fact about a server, and the command or setting that mends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The weight.
    pub severity: Severity,
    /// A short name that does not change.
    pub code: &'static str,
    /// The fact.
    pub what: String,
    /// The fix; empty for a note that needs none.
    pub fix: String,
}

struct Examination {
    connection: MultiplexedConnection,
    findings: Vec<Finding>,
    info: HashMap<String, String>,
}

/// Examines the server of a store, or one node of its cluster.
pub(crate) async fn diagnose(
    connection: MultiplexedConnection,
    prefix: &str,
    is_cluster: bool,
    timeout: Duration,
    is_thorough: bool,
) -> Vec<Finding> {
    let mut examination = Examination {
        connection,
        findings: Vec::new(),
        info: HashMap::new(),
    };
    examination.run(prefix, is_cluster).await;
    if is_thorough {
        examination.latency(timeout).await;
        examination.expiries(prefix).await;
    }
    examination.findings.sort_by_key(|finding| finding.severity);
    examination.findings
}

impl Examination {
    async fn run(&mut self, prefix: &str, is_cluster: bool) {
        self.read_info().await;
        self.version();
        self.memory();
        self.persistence().await;
        self.replication().await;
        self.cluster(is_cluster).await;
        self.security().await;
        self.clock().await;
        self.script(prefix).await;
    }

    fn add(&mut self, severity: Severity, code: &'static str, what: String, fix: &str) {
        self.findings.push(Finding {
            severity,
            code,
            what,
            fix: fix.to_owned(),
        });
    }

    async fn command(&mut self, words: &[&str]) -> Result<Value, String> {
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(*word);
        });
        let query = command.query_async::<Value>(&mut self.connection);
        match tokio::time::timeout(TIMEOUT, query).await {
            Ok(reply) => reply.map_err(|error| error.to_string()),
            Err(_) => Err("timeout".to_owned()),
        }
    }

    async fn read_info(&mut self) {
        match self.command(&["INFO"]).await {
            Ok(reply) => {
                let text = text(&reply);
                let fields = text.lines().filter_map(|line| line.trim().split_once(':'));
                self.info = fields
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect();
            }
            Err(error) => self.add(
                Severity::Note,
                "no-info",
                format!("INFO is refused, so several checks are left out: {error}"),
                "allow the user +info",
            ),
        }
    }

    fn field(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.field(name).parse().ok()
    }

    /// Returns a setting, or `None` if the server does not tell.
    async fn setting(&mut self, name: &str) -> Option<String> {
        let reply = self.command(&["CONFIG", "GET", name]).await.ok()?;
        match &reply {
            Value::Array(values) => values.get(1).map(text),
            Value::Map(pairs) => pairs.first().map(|(_, value)| text(value)),
            _ => None,
        }
    }

    fn version(&mut self) {
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

    fn memory(&mut self) {
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

    async fn persistence(&mut self) {
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

    async fn replication(&mut self) {
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

    async fn cluster(&mut self, is_cluster: bool) {
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

    async fn security(&mut self) {
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

    async fn clock(&mut self) {
        let clock = Clock::system();
        let before = clock.now().as_nanos();
        let Ok(Value::Array(time)) = self.command(&["TIME"]).await else {
            return;
        };
        let after = clock.now().as_nanos();
        let parts: Vec<u64> = time
            .iter()
            .filter_map(|part| text(part).parse().ok())
            .collect();
        let [seconds, micros] = parts[..] else {
            return;
        };
        let server = seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(micros.saturating_mul(1_000));
        let ours = before.midpoint(after);
        let difference = Duration::from_nanos(server.abs_diff(ours));
        if difference > Duration::from_secs(1) + Duration::from_nanos(after - before) {
            let what = format!(
                "the clock differs from this machine's by {:.1} s: windows end at other times than people expect",
                difference.as_secs_f64()
            );
            self.add(
                Severity::Warning,
                "clock",
                what,
                "run an NTP client on both machines",
            );
        }
    }

    async fn latency(&mut self, timeout: Duration) {
        let mut times = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let begun = Instant::now();
            if self.command(&["PING"]).await.is_err() {
                return;
            }
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        let (median, slowest) = (times[PINGS / 2], times[PINGS - 1]);
        let what = format!(
            "a round trip takes {:.2} ms, the slowest of {PINGS} took {:.2} ms; the timeout is {} ms",
            median.as_secs_f64() * 1e3,
            slowest.as_secs_f64() * 1e3,
            timeout.as_millis()
        );
        if median * 4 > timeout {
            let fix = "use a server that is nearer, or raise timeout= in the URL";
            self.add(Severity::Serious, "latency", what, fix);
        } else {
            self.add(Severity::Note, "latency", what, "");
        }
    }

    /// Runs a script that does what our scripts do, on a key of its own.
    async fn script(&mut self, prefix: &str) {
        const SCRIPT: &str = "local t = redis.call('TIME'); \
            redis.call('SET', KEYS[1], t[1], 'PX', 1000); \
            local v = redis.call('MGET', KEYS[1]); redis.call('DEL', KEYS[1]); return v[1]";
        let key = format!("{prefix}:doctor:{{{:x}}}", fastrand::u64(..));
        let ran = self.command(&["EVAL", SCRIPT, "1", &key]).await;
        let error = match ran {
            // Another node of the cluster has the slot.
            Ok(_) => return,
            Err(error) if error.contains("MOVED") || error.contains("Moved") => return,
            Err(error) => error,
        };
        // A replica was reported already.
        if error.contains("READONLY") || error.contains("ReadOnly") {
            return;
        }
        let fix = if error.contains("NOPERM") || error.contains("permission") {
            format!(
                "ACL SETUSER NAME ~{prefix}:* +evalsha +eval +script|load +time +get +mget +set +del \
                 +pexpire +pexpireat +hget +hset +strlen +getrange +setrange +append"
            )
        } else {
            "allow EVALSHA, EVAL and SCRIPT LOAD: scripts decide".to_owned()
        };
        let what = format!("scripts cannot run: {error}");
        self.add(Severity::Serious, "script", what, &fix);
    }

    /// Counts keys under our prefix that never expire.
    async fn expiries(&mut self, prefix: &str) {
        let pattern = format!("{prefix}:*");
        let mut cursor = "0".to_owned();
        let (mut scanned, mut lasting, mut example) = (0, 0_u64, None);
        let end = Instant::now() + SCAN_TIME;
        while Instant::now() < end {
            let scan = ["SCAN", &cursor, "MATCH", &pattern, "COUNT", "1000"];
            let Ok(Value::Array(reply)) = self.command(&scan).await else {
                return;
            };
            let [next, Value::Array(keys)] = &reply[..] else {
                return;
            };
            cursor = text(next);
            for key in keys {
                let key = text(key);
                scanned += 1;
                if let Ok(Value::Int(-1)) = self.command(&["PTTL", &key]).await {
                    lasting += 1;
                    example.get_or_insert(key);
                }
            }
            if cursor == "0" || scanned >= MAX_SCANNED {
                break;
            }
        }
        if let Some(example) = example {
            let what = format!(
                "{lasting} of {scanned} keys under {prefix}: never expire, which Tidegate does not write; one is {example:?}"
            );
            let fix = format!("redis-cli DEL {example:?}, or use another prefix= for Tidegate");
            self.add(Severity::Warning, "no-expiry", what, &fix);
        }
    }
}

/// Returns a reply as text.
fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}

impl RedisStore {
    /// Examines the server: version, memory, persistence, replicas, cluster, clock and permissions. On
    /// a cluster it examines one node. With `is_thorough` it also measures the latency and searches
    /// for keys without expiry, which takes a few seconds.
    ///
    /// Returns an empty list if the server is not connected.
    pub async fn diagnose(&self, is_thorough: bool) -> Vec<Finding> {
        let Some(connection) = self.any_connection() else {
            return Vec::new();
        };
        let settings = self.settings();
        let (prefix, timeout) = (settings.prefix.clone(), settings.timeout);
        diagnose(connection, &prefix, self.is_cluster(), timeout, is_thorough).await
    }
}
