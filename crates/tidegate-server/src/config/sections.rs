//! The sections of a configuration.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::FailurePolicy;
use tidegate_http::{Dialect, Reset};

use super::{Listen, Span, StoreText};

/// Where counts are kept.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// memory://, redis://HOST:PORT/DB, rediss://, unix://PATH, redis+sentinel://HOST,HOST/NAME, redis+cluster://HOST,HOST.
    pub url: StoreText,
    /// What is answered when Redis cannot be asked; `local` where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// How many servers share the store: local answers divide the limits by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances: Option<u32>,
    /// Starts without Redis, and answers by the failure policy until it is there. Where this is not set, a server that
    /// cannot reach Redis does not start.
    pub lazy: bool,
    /// memory:// only: a file that keeps the counts over a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<PathBuf>,
    /// How often the snapshot is written: what a crash loses at most.
    pub snapshot_interval: Span,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            url: StoreText::default(),
            failure: None,
            instances: None,
            lazy: false,
            snapshot: None,
            snapshot_interval: Span::seconds(10),
        }
    }
}

/// What is answered when the store cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Failure {
    /// Everything goes on.
    Open,
    /// Nothing goes on.
    Closed,
    /// Each server decides alone, in memory, each limit divided by `store.instances`.
    Local,
}

impl Failure {
    pub(super) fn policy(self, instances: u32) -> FailurePolicy {
        match self {
            Self::Open => FailurePolicy::Open,
            Self::Closed => FailurePolicy::Closed,
            Self::Local => FailurePolicy::local(instances),
        }
    }
}

/// The listener for checks over HTTP.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Where to listen.
    pub listen: Listen,
    /// In which header fields clients are told what is left.
    pub headers: Headers,
    /// TLS: without it the listener speaks in clear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Lets it listen beyond this machine with neither TLS nor token.
    pub insecure: bool,
    /// Names by which clients reach it on a loopback address, beside `localhost`: a proxy on this machine may send its own
    /// `Host`. Web pages of these names may ask, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        let (listen, headers) = (Listen::local(8080), Headers::default());
        Self {
            listen,
            headers,
            tls: None,
            insecure: false,
            hosts: Vec::new(),
        }
    }
}

/// In which header fields clients are told what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Headers {
    /// `RateLimit-Policy` and `RateLimit`, as revisions 08 to 11 of the IETF draft write them.
    #[default]
    #[serde(rename = "draft-11")]
    Draft11,
    /// `RateLimit: limit=100, remaining=50, reset=5`.
    #[serde(rename = "draft-07")]
    Draft07,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`.
    #[serde(rename = "draft-06")]
    Draft06,
    /// `X-RateLimit-…` as Envoy writes them.
    #[serde(rename = "envoy")]
    Envoy,
    /// `X-RateLimit-…` with the reset in seconds since 1970.
    #[serde(rename = "legacy")]
    Legacy,
    /// `X-RateLimit-…` with the reset in seconds from now on.
    #[serde(rename = "legacy-delta")]
    LegacyDelta,
    /// Only `Retry-After`.
    #[serde(rename = "off")]
    Off,
}

impl Headers {
    pub(crate) fn dialect(self) -> Dialect {
        match self {
            Self::Draft11 => Dialect::Draft11,
            Self::Draft07 => Dialect::Draft07,
            Self::Draft06 => Dialect::Draft06,
            Self::Envoy => Dialect::Envoy,
            Self::Legacy => Dialect::Legacy(Reset::Epoch),
            Self::LegacyDelta => Dialect::Legacy(Reset::Delta),
            Self::Off => Dialect::Off,
        }
    }
}

/// The listener for checks by Redis clients.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RespConfig {
    /// Where to listen: off until asked for.
    pub listen: Listen,
    /// TLS: without it the listener speaks in clear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Lets it listen beyond this machine with neither TLS nor token.
    pub insecure: bool,
    /// When a connection that asks nothing is closed.
    pub idle_timeout: Span,
}

impl Default for RespConfig {
    fn default() -> Self {
        Self {
            listen: Listen::Off,
            tls: None,
            insecure: false,
            idle_timeout: Span::seconds(300),
        }
    }
}

/// The listener for operators: metrics and resets.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// Where to listen.
    pub listen: Listen,
    /// TLS: without it the listener speaks in clear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Lets it listen beyond this machine with neither a token of scope `admin` nor certificates of clients.
    pub insecure: bool,
    /// Names by which operators reach it on a loopback address, beside `localhost`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: Listen::local(9090),
            tls: None,
            insecure: false,
            hosts: Vec::new(),
        }
    }
}

/// The files that a listener speaks TLS with. They are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate, and those between it and the root, in PEM.
    pub cert: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// Clients must show a certificate that one of these has signed, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

impl TlsConfig {
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.cert, &self.key]
            .into_iter()
            .chain(&self.client_ca)
            .map(PathBuf::as_path)
    }
}

/// What one client, or all of them together, may ask of the server.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Bounds {
    /// Connections at a time for checks, over HTTP and RESP together; the admin listener has as many of its own.
    pub max_connections: usize,
    /// Connections at a time from one address, of IPv6 from one /64; 0 is as many as there may be.
    pub max_connections_per_peer: usize,
    /// How long TLS may take to agree.
    pub handshake_timeout: Span,
    /// How long the head of a request may take to come.
    pub head_timeout: Span,
    /// How long its body may take to come.
    pub body_timeout: Span,
    /// When an HTTP connection that asks nothing is closed.
    pub idle_timeout: Span,
    /// How long a client may leave an answer unread.
    pub write_timeout: Span,
    /// Bytes in the body of one check; a batch may have 16 times as many.
    pub max_body: usize,
    /// Checks in one batch.
    pub max_batch: usize,
    /// Requests at a time on one HTTP/2 connection.
    pub max_streams: u32,
    /// How long a server that ends waits for what it is asked.
    pub drain_timeout: Span,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_connections: 20_000,
            max_connections_per_peer: 0,
            handshake_timeout: Span::seconds(5),
            head_timeout: Span::seconds(5),
            body_timeout: Span::seconds(5),
            idle_timeout: Span::seconds(60),
            write_timeout: Span::seconds(10),
            max_body: 16 * 1024,
            max_batch: 1_000,
            max_streams: 128,
            drain_timeout: Span::seconds(5),
        }
    }
}

impl Bounds {
    /// How long a connection that asks nothing is kept when the server ends.
    pub(crate) fn linger(&self) -> Duration {
        (self.drain_timeout.0 / 4).min(Duration::from_secs(1))
    }
}

/// What is logged, and how.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// `text` for people, `json` for machines.
    pub format: LogFormat,
    /// The least that is logged.
    pub level: LogLevel,
    /// Where spans are sent by OTLP over gRPC, such as http://127.0.0.1:4317. Needs a build with the feature `otel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp: Option<String>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object a line.
    Json,
}

/// The least that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // They say it.
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

/// Who may ask.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// What it may be used for.
    pub scopes: Vec<Scope>,
    /// The file that it stands in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The environment variable that it stands in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
}

/// What a token may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Checks, peeks and settling receipts.
    Check,
    /// Refunds without a receipt. With a large cost a refund is a reset, so `check` does not include it.
    Refund,
    /// Metrics and resets.
    Admin,
}

impl Scope {
    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Refund => "refund",
            Self::Admin => "admin",
        }
    }
}
