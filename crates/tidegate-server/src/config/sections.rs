//! The sections of a configuration.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::FailurePolicy;
use tidegate_http::{HeaderFormat, ResetFormat};

use super::{ConfigDuration, Listen, StoreUrlText};

/// The store of the counters.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// memory://, redis://HOST:PORT/DB, rediss://, unix://PATH, redis+sentinel://HOST,HOST/NAME,
    /// redis+cluster://HOST,HOST.
    pub url: StoreUrlText,
    /// The answer when Redis is unavailable. The default is `local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureMode>,
    /// The number of servers that share the store. Local answers divide the limits by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances: Option<u32>,
    /// Starts while Redis is unavailable; the failure policy answers until it is there. By default
    /// a server that cannot reach Redis does not start.
    pub lazy: bool,
    /// For memory:// only: a file that keeps the counters across restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<PathBuf>,
    /// The interval of snapshots, and the most that a crash loses.
    pub snapshot_interval: ConfigDuration,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            url: StoreUrlText::default(),
            failure: None,
            instances: None,
            lazy: false,
            snapshot: None,
            snapshot_interval: ConfigDuration::seconds(10),
        }
    }
}

/// The answer when the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FailureMode {
    /// Allows every request.
    Open,
    /// Denies every request.
    Closed,
    /// Each server decides in its own memory, with each limit divided by `store.instances`.
    Local,
}

impl FailureMode {
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
    /// The address.
    pub listen: Listen,
    /// The format of the rate limit headers.
    pub headers: HeaderFormatName,
    /// TLS. Without it the listener is unencrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Accepts unauthenticated clients from other machines.
    pub insecure: bool,
    /// Host names, besides `localhost`, by which clients reach a loopback address: a proxy on this
    /// machine may send its own `Host`. Web pages with these names have access too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        let (listen, headers) = (Listen::local(8080), HeaderFormatName::default());
        Self {
            listen,
            headers,
            tls: None,
            insecure: false,
            hosts: Vec::new(),
        }
    }
}

/// The format of the rate limit headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum HeaderFormatName {
    /// `RateLimit-Policy` and `RateLimit`: revisions 08 to 11 of the IETF draft.
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
    /// `X-RateLimit-…` with the reset in seconds from now.
    #[serde(rename = "legacy-delta")]
    LegacyDelta,
    /// Only `Retry-After`.
    #[serde(rename = "off")]
    Off,
}

impl HeaderFormatName {
    pub(crate) fn format(self) -> HeaderFormat {
        match self {
            Self::Draft11 => HeaderFormat::Draft11,
            Self::Draft07 => HeaderFormat::Draft07,
            Self::Draft06 => HeaderFormat::Draft06,
            Self::Envoy => HeaderFormat::Envoy,
            Self::Legacy => HeaderFormat::Legacy(ResetFormat::Epoch),
            Self::LegacyDelta => HeaderFormat::Legacy(ResetFormat::Delta),
            Self::Off => HeaderFormat::Off,
        }
    }
}

/// The endpoint for gateways, `/v1/forward-auth`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ForwardAuthConfig {
    /// The networks of the gateways whose X-Forwarded-For is trusted. The default is this machine.
    pub trusted_proxies: Vec<String>,
    /// A header that is the key, such as `x-api-key`, if the request has it. Otherwise the client's
    /// address is the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_header: Option<String>,
    /// Does not count preflights of browsers. Only for gateways that set `X-Forwarded-Method` or
    /// `X-Original-Method` themselves: otherwise a client could declare every request a preflight.
    pub skip_preflights: bool,
}

impl Default for ForwardAuthConfig {
    fn default() -> Self {
        Self {
            trusted_proxies: vec!["127.0.0.0/8".to_owned(), "::1/128".to_owned()],
            key_header: None,
            skip_preflights: false,
        }
    }
}

/// The listener for checks by Redis clients.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RespConfig {
    /// The address. The default is `off`.
    pub listen: Listen,
    /// TLS. Without it the listener is unencrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Accepts unauthenticated clients from other machines.
    pub insecure: bool,
    /// The time after which an idle connection is closed.
    pub idle_timeout: ConfigDuration,
}

impl Default for RespConfig {
    fn default() -> Self {
        Self {
            listen: Listen::Off,
            tls: None,
            insecure: false,
            idle_timeout: ConfigDuration::seconds(300),
        }
    }
}

/// The listener for operators: metrics and resets.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// The address.
    pub listen: Listen,
    /// A second address of this listener, for programs that expect metrics elsewhere. The default
    /// is `off`.
    pub metrics_listen: Listen,
    /// Refuses resets.
    pub read_only: bool,
    /// The dashboard, and the sketch of busy and denied keys behind it and `/v1/top`.
    pub dashboard: bool,
    /// Shows keys in full on the dashboard and in `/v1/top`. By default they are masked.
    pub show_keys: bool,
    /// TLS. Without it the listener is unencrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Accepts unauthenticated clients from other machines.
    pub insecure: bool,
    /// Host names, besides `localhost`, by which operators reach a loopback address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: Listen::local(9090),
            metrics_listen: Listen::Off,
            read_only: false,
            dashboard: true,
            show_keys: false,
            tls: None,
            insecure: false,
            hosts: Vec::new(),
        }
    }
}

/// A trace of checks, for `tidegate replay` and `tidegate simulate`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RecordConfig {
    /// The file. It is replaced at the start. Without it nothing is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Records all checks of one in this many keys.
    pub sample: u64,
    /// The size of the file and of the one before it, `FILE.1`, together.
    pub max_bytes: u64,
    /// Writes keys as they are. By default they are hashed, with a secret that is not stored.
    pub plain_keys: bool,
}

impl Default for RecordConfig {
    fn default() -> Self {
        Self {
            file: None,
            sample: 10,
            max_bytes: 100_000_000,
            plain_keys: false,
        }
    }
}

/// The TLS files of a listener. They are reloaded when they change.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate and its intermediates, in PEM.
    pub cert: PathBuf,
    /// The private key, in PEM.
    pub key: PathBuf,
    /// The CA certificates, in PEM, for client certificates. Setting it makes them mandatory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

impl TlsConfig {
    /// Returns `true` if clients must have a certificate.
    pub(crate) fn requires_certificate(tls: Option<&Self>) -> bool {
        tls.is_some_and(|tls| tls.client_ca.is_some())
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.cert, &self.key]
            .into_iter()
            .chain(&self.client_ca)
            .map(PathBuf::as_path)
    }
}

/// The limits of the server's resources.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Bounds {
    /// Maximum number of connections for checks, over HTTP and RESP together. The admin listener
    /// has its own.
    pub max_connections: usize,
    /// Maximum number of connections from one address, or one IPv6 /64. 0 means no limit.
    pub max_connections_per_peer: usize,
    /// Maximum duration of a TLS handshake.
    pub handshake_timeout: ConfigDuration,
    /// Maximum time until the head of a request has arrived.
    pub head_timeout: ConfigDuration,
    /// Maximum time until the body of a request has arrived.
    pub body_timeout: ConfigDuration,
    /// The time after which an idle HTTP connection is closed.
    pub idle_timeout: ConfigDuration,
    /// Maximum time that a client may leave a response unread.
    pub write_timeout: ConfigDuration,
    /// Maximum bytes in the body of one check. A batch may have 16 times as many.
    pub max_body: usize,
    /// Maximum number of checks in a batch.
    pub max_batch: usize,
    /// Maximum number of concurrent requests on one HTTP/2 connection.
    pub max_streams: u32,
    /// The time between SIGTERM and draining, in which /readyz answers 503 and connections are
    /// still accepted, so that load balancers notice first. The default is 3 s under systemd and
    /// Kubernetes, and 0 otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_delay: Option<ConfigDuration>,
    /// Maximum time to finish requests in flight at shutdown.
    pub drain_timeout: ConfigDuration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_connections: 20_000,
            max_connections_per_peer: 0,
            handshake_timeout: ConfigDuration::seconds(5),
            head_timeout: ConfigDuration::seconds(5),
            body_timeout: ConfigDuration::seconds(5),
            idle_timeout: ConfigDuration::seconds(60),
            write_timeout: ConfigDuration::seconds(10),
            max_body: 16 * 1024,
            max_batch: 1_000,
            max_streams: 128,
            drain_delay: None,
            drain_timeout: ConfigDuration::seconds(5),
        }
    }
}

/// The default of `drain_delay` where something else decides when requests stop coming.
const SUPERVISED_DRAIN_DELAY: Duration = Duration::from_secs(3);

impl Bounds {
    /// Returns the time between the signal and draining.
    pub(crate) fn drain_delay(&self) -> Duration {
        let is_supervised = || {
            ["NOTIFY_SOCKET", "KUBERNETES_SERVICE_HOST"]
                .iter()
                .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
        };
        match &self.drain_delay {
            Some(delay) => delay.0,
            None if is_supervised() => SUPERVISED_DRAIN_DELAY,
            None => Duration::ZERO,
        }
    }

    /// Returns how long an idle connection is kept at shutdown: its client may be about to send a
    /// request.
    pub(crate) fn linger(&self) -> Duration {
        (self.drain_timeout.0 / 4).min(Duration::from_secs(1))
    }
}

/// Logging.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// `text` for people, `json` for machines.
    pub format: LogFormat,
    /// The minimum level.
    pub level: LogLevel,
    /// The OTLP endpoint for spans over gRPC, such as http://127.0.0.1:4317. Needs the feature
    /// `otel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp: Option<String>,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The minimum level of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // The names say it.
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

/// A token.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// The scopes of the token.
    pub scopes: Vec<Scope>,
    /// The file that contains the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The environment variable that contains the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
}

/// The scope of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Checks, peeks and settling receipts.
    Check,
    /// Refunds without a receipt. A refund with a large cost is a reset, so `check` does not
    /// include it.
    Refund,
    /// Metrics and resets.
    Admin,
}

impl Scope {
    /// Returns the name used in configurations.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Refund => "refund",
            Self::Admin => "admin",
        }
    }
}
