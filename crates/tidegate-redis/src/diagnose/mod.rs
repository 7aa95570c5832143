//! Diagnoses a Redis server: settings that weaken limits, each with its fix.
//!
//! `tidegate doctor` prints all findings; `tidegate serve` logs the serious ones at its start. A
//! command that the server refuses to this user leaves its checks out. `settings` judges what the
//! server says about itself, `probes` tries things.

mod probes;
mod settings;

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use crate::store::RedisStore;

/// The timeout of one command.
const TIMEOUT: Duration = Duration::from_secs(2);

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

fn not_connected() -> Finding {
    Finding {
        severity: Severity::Serious,
        code: "not-connected",
        what: "there is no connection to the server".to_owned(),
        fix: "check the URL, the network and the server's log".to_owned(),
    }
}

impl RedisStore {
    /// Examines the server: version, memory, persistence, replicas, cluster, clock and permissions. On
    /// a cluster it examines one node. With `is_thorough` it also measures the latency and searches
    /// for keys without expiry, which takes a few seconds.
    ///
    /// It waits for a connection as long as a connection may take. Without one, it returns a finding
    /// that says so.
    pub async fn diagnose(&self, is_thorough: bool) -> Vec<Finding> {
        let end = Instant::now() + self.settings().connect_timeout;
        let connection = loop {
            match self.any_connection() {
                Some(connection) => break connection,
                None if Instant::now() >= end => return vec![not_connected()],
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let settings = self.settings();
        let (prefix, timeout) = (settings.prefix.clone(), settings.timeout);
        diagnose(connection, &prefix, self.is_cluster(), timeout, is_thorough).await
    }
}
