//! A primary, a replica and three sentinels.

use std::time::Duration;

use super::process::Process;
use super::{RedisServer, Value, command, free_port, wait_for, wait_until_up};
use crate::folder::new_folder;

/// A primary with a replica, monitored by three sentinels under the name `mymaster`.
pub struct RedisSentinels {
    primary: RedisServer,
    replica: RedisServer,
    sentinels: Vec<(u16, Process)>,
    stale: Vec<Process>,
}

impl RedisSentinels {
    /// Starts all five and waits until the sentinels know the replica and one another.
    #[must_use]
    pub fn start() -> Self {
        let primary = RedisServer::start();
        let replica =
            RedisServer::start_with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
        let linked =
            || text(&replica.command(&["INFO", "replication"])).contains("master_link_status:up");
        assert!(
            wait_for(Duration::from_secs(20), linked),
            "the replica did not connect to its primary"
        );
        let sentinels: Vec<_> = (0..3).map(|_| start_sentinel(primary.port())).collect();
        let started = Self {
            primary,
            replica,
            sentinels,
            stale: Vec::new(),
        };
        assert!(
            wait_for(Duration::from_secs(20), || started.is_complete()),
            "the sentinels did not find one another"
        );
        started
    }

    fn is_complete(&self) -> bool {
        self.sentinels.iter().all(|(port, _)| {
            let info = text(&command(*port, &["INFO", "sentinel"]));
            info.contains("slaves=1,sentinels=3")
        })
    }

    /// Returns the URL for a client.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .sentinels
            .iter()
            .map(|(port, _)| format!("127.0.0.1:{port}"))
            .collect();
        format!("redis+sentinel://{}/mymaster", hosts.join(","))
    }

    /// Returns a URL whose first sentinel is stale: it is cut off and reports a dead server as the
    /// primary.
    pub fn url_by_way_of_a_stale_one(&mut self) -> String {
        let stale = start_sentinel(free_port());
        let url = self
            .url()
            .replacen("://", &format!("://127.0.0.1:{},", stale.0), 1);
        self.stale.push(stale.1);
        url
    }

    /// Returns the server that started as the primary.
    pub fn primary(&mut self) -> &mut RedisServer {
        &mut self.primary
    }

    /// Returns the server that started as the replica.
    #[must_use]
    pub fn replica(&self) -> &RedisServer {
        &self.replica
    }

    /// Makes the sentinels promote the replica, as for maintenance.
    pub fn fail_over(&self) {
        command(self.sentinels[0].0, &["SENTINEL", "FAILOVER", "mymaster"]);
    }
}

fn start_sentinel(primary: u16) -> (u16, Process) {
    for _ in 0..10 {
        let folder = new_folder();
        let port = free_port();
        let config = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds mymaster 1000\nsentinel failover-timeout mymaster 6000\n",
            folder.display()
        );
        let file = folder.join("sentinel.conf");
        std::fs::write(&file, config).expect("a temporary file can be written");
        let arguments = [file.display().to_string()];
        let process = Process::start_in(&folder, "redis-sentinel", &arguments, &[]);
        if wait_until_up(port, &process) {
            return (port, process);
        }
    }
    panic!("redis-sentinel did not start: is it installed? `cargo xtask test` installs it");
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } => text.clone(),
        other => format!("{other:?}"),
    }
}
