//! The sections for gRPC: Envoy's rate limit service, and the protocols of limitador and gubernator.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConfigDuration, Listen, TlsConfig};

/// The listener for gRPC.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GrpcConfig {
    /// The address. The default is `off`.
    pub listen: Listen,
    /// The path of a Unix socket to listen on, besides or instead of the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// TLS. Without it the listener is unencrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Accepts unauthenticated clients from other machines.
    pub insecure: bool,
    /// The time after which an idle connection is closed.
    pub idle_timeout: ConfigDuration,
    /// The age at which a connection is asked to end, so that clients spread over new servers.
    /// Requests in flight are finished. By default there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connection_age: Option<ConfigDuration>,
}

impl Default for GrpcConfig {
    fn default() -> Self {
        Self {
            listen: Listen::Off,
            socket: None,
            tls: None,
            insecure: false,
            idle_timeout: ConfigDuration::seconds(3_600),
            max_connection_age: None,
        }
    }
}

/// Envoy's rate limit service.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EnvoyConfig {
    /// The rules, in the format of envoyproxy/ratelimit: a file, or a directory with everything
    /// below it. Changes are loaded while the server runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// The management server that sends the rules, instead of files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xds: Option<XdsConfig>,
    /// The way in which the descriptors of one request are counted.
    pub descriptors: DescriptorMode,
    /// The effect of hits that a descriptor itself carries.
    pub descriptor_hits: DescriptorHits,
    /// Accepts several files with the same domain, and merges them.
    pub merge_domains: bool,
    /// Answers OK whatever the limits say.
    pub shadow_mode: bool,
    /// Treats every rule as one with `quota_mode`.
    pub quota_mode: bool,
    /// The share of a limit from which hits count as near it in metrics.
    pub near_limit_ratio: f64,
    /// Adds three headers to every response: limit, remaining and reset.
    pub response_headers: bool,
    /// The name of the header with the limit.
    pub limit_header: String,
    /// The name of the header with the remaining requests.
    pub remaining_header: String,
    /// The name of the header with the seconds until the reset.
    pub reset_header: String,
    /// Adds the domain, the descriptors and their hits to the dynamic metadata of responses.
    pub dynamic_metadata: bool,
    /// The names of the metrics of rules.
    pub metric_names: MetricNames,
    /// Starts although the rules are invalid or missing. Requests fail until there are some.
    pub start_without_config: bool,
    /// Reports unhealthy while there are no rules.
    pub unhealthy_without_config: bool,
}

impl Default for EnvoyConfig {
    fn default() -> Self {
        Self {
            config: None,
            xds: None,
            descriptors: DescriptorMode::default(),
            descriptor_hits: DescriptorHits::default(),
            merge_domains: false,
            shadow_mode: false,
            quota_mode: false,
            near_limit_ratio: 0.8,
            response_headers: false,
            limit_header: "RateLimit-Limit".to_owned(),
            remaining_header: "RateLimit-Remaining".to_owned(),
            reset_header: "RateLimit-Reset".to_owned(),
            dynamic_metadata: false,
            metric_names: MetricNames::default(),
            start_without_config: false,
            unhealthy_without_config: false,
        }
    }
}

impl EnvoyConfig {
    /// Returns `true` if there are rules, or will be.
    pub(crate) fn is_enabled(&self) -> bool {
        self.config.is_some() || self.xds.is_some()
    }
}

/// The way in which the descriptors of one request are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DescriptorMode {
    /// All of them, or none if one is over its limit.
    #[default]
    AllOrNothing,
    /// Each on its own, also beyond its limit, as envoyproxy/ratelimit does.
    Independent,
}

/// The effect of hits that a descriptor itself carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DescriptorHits {
    /// They are taken whatever the limit says. Envoy sends them at the end of a stream, too late to
    /// deny it.
    #[default]
    Charge,
    /// They are taken if they fit, like the hits of the request.
    Check,
}

/// The names of the metrics of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MetricNames {
    /// `tidegate_rule_hits_total`.
    #[default]
    Tidegate,
    /// `ratelimit_service_rate_limit_…`, as envoyproxy/ratelimit names them, besides ours.
    Ratelimit,
}

/// The management server that sends rules: Envoy Gateway, or another ADS server.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct XdsConfig {
    /// The address: `HOST:PORT`.
    pub server: String,
    /// The id of this node.
    pub node_id: String,
    /// The metadata of this node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_metadata: BTreeMap<String, String>,
    /// Further headers of the stream.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// TLS. Without it the connection is unencrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<XdsTlsConfig>,
    /// The first delay before a new connection. It doubles up to the maximum, with jitter.
    pub retry_delay: ConfigDuration,
    /// The maximum delay before a new connection.
    pub max_retry_delay: ConfigDuration,
    /// The maximum size of a message.
    pub max_message_bytes: usize,
}

impl Default for XdsConfig {
    fn default() -> Self {
        Self {
            server: String::new(),
            node_id: "default".to_owned(),
            node_metadata: BTreeMap::new(),
            headers: BTreeMap::new(),
            tls: None,
            retry_delay: ConfigDuration(std::time::Duration::from_millis(500)),
            max_retry_delay: ConfigDuration::seconds(30),
            max_message_bytes: 16 << 20,
        }
    }
}

/// TLS to the management server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct XdsTlsConfig {
    /// The CA certificates, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The client's certificate, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// The client's private key, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

/// Limits in the format of limitador.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitadorConfig {
    /// The file with the limits. Changes are loaded while the server runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
}

/// Gubernator's protocol.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GubernatorConfig {
    /// Serves `GetRateLimits` over gRPC and HTTP. Clients choose their limits.
    pub enabled: bool,
}
