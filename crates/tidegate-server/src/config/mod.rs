//! The configuration of a server: one TOML file, overridden by the environment and by flags.
//!
//! `sections` and `policies` define the settings, `load` reads them, `validate` checks them.

mod envoy;
mod load;
mod mask;
mod policies;
mod ratelimit_env;
mod sections;
mod validate;
mod values;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::{FailurePolicy, PolicySet};

pub use envoy::{
    DescriptorHits, DescriptorMode, EnvoyConfig, GrpcConfig, GubernatorConfig, LimitadorConfig,
    MetricNames, XdsConfig, XdsTlsConfig,
};
pub use load::{ConfigError, ConfigSource, Flag};
pub use policies::{ExceptionConfig, PolicyConfig};
pub use sections::{
    AdminConfig, Bounds, FailureMode, ForwardAuthConfig, HeaderFormatName, HttpConfig, LogConfig,
    LogFormat, LogLevel, RecordConfig, RespConfig, Scope, StoreConfig, TlsConfig, TokenConfig,
};
pub use values::{ConfigDuration, Listen, PolicyText, StoreUrlText};

/// The configuration of a server. Every setting has a default, so an empty file is valid.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The store of the counters.
    pub store: StoreConfig,
    /// The listener for checks over HTTP.
    pub http: HttpConfig,
    /// The endpoint for gateways, `/v1/forward-auth`.
    pub forward_auth: ForwardAuthConfig,
    /// The listener for checks by Redis clients.
    pub resp: RespConfig,
    /// The listener for gRPC: Envoy's rate limit service.
    pub grpc: GrpcConfig,
    /// Envoy's rate limit service.
    pub envoy: EnvoyConfig,
    /// Limits in the format of limitador.
    pub limitador: LimitadorConfig,
    /// Gubernator's protocol.
    pub gubernator: GubernatorConfig,
    /// The listener for operators: metrics and resets.
    pub admin: AdminConfig,
    /// A trace of checks.
    pub record: RecordConfig,
    /// The limits of the server's resources.
    pub bounds: Bounds,
    /// Logging.
    pub log: LogConfig,
    /// The tokens. Without any, every client that reaches a listener has access.
    #[serde(rename = "token")]
    pub tokens: Vec<TokenConfig>,
    /// The policies, by name.
    pub policies: BTreeMap<String, PolicyConfig>,
}

impl Config {
    /// Returns the policies as a set.
    ///
    /// # Errors
    ///
    /// Returns an error if a name or an exception is invalid.
    pub fn policy_set(&self) -> Result<PolicySet, ConfigError> {
        policies::policy_set(&self.policies, self.instances()).map_err(ConfigError::Values)
    }

    pub(crate) fn instances(&self) -> u32 {
        let of_url = match self.store.url.url().failure_policy() {
            Some(FailurePolicy::Local { instances }) => Some(instances.get()),
            _ => None,
        };
        self.store.instances.or(of_url).unwrap_or(1)
    }

    /// Returns the store's failure policy, or `None` if its URL sets it.
    pub(crate) fn failure_policy(&self) -> Option<FailurePolicy> {
        let StoreConfig {
            failure, instances, ..
        } = &self.store;
        (failure.is_some() || instances.is_some()).then(|| {
            failure
                .unwrap_or(FailureMode::Local)
                .policy(self.instances())
        })
    }

    /// Returns a setting that differs and cannot be changed while the server runs.
    pub(crate) fn fixed_difference(&self, other: &Self) -> Option<&'static str> {
        let differences = [
            (self.store != other.store, "store"),
            (self.http.listen != other.http.listen, "http.listen"),
            (self.resp.listen != other.resp.listen, "resp.listen"),
            (self.grpc.listen != other.grpc.listen, "grpc.listen"),
            (self.grpc.socket != other.grpc.socket, "grpc.socket"),
            (self.admin.listen != other.admin.listen, "admin.listen"),
            (
                self.admin.metrics_listen != other.admin.metrics_listen,
                "admin.metrics_listen",
            ),
            (self.envoy.xds != other.envoy.xds, "envoy.xds"),
            (
                self.envoy.config.is_some() != other.envoy.config.is_some(),
                "envoy.config",
            ),
            (
                self.limitador.config.is_some() != other.limitador.config.is_some(),
                "limitador.config",
            ),
            (
                self.http.tls.is_some() != other.http.tls.is_some(),
                "http.tls",
            ),
            (
                self.resp.tls.is_some() != other.resp.tls.is_some(),
                "resp.tls",
            ),
            (
                self.grpc.tls.is_some() != other.grpc.tls.is_some(),
                "grpc.tls",
            ),
            (
                self.admin.tls.is_some() != other.admin.tls.is_some(),
                "admin.tls",
            ),
            (self.log != other.log, "log"),
        ];
        differences
            .into_iter()
            .find_map(|(differs, name)| differs.then_some(name))
    }

    /// Returns the configuration as TOML with all defaults, without passwords.
    #[must_use]
    pub fn shown(&self) -> String {
        let mut shown = self.clone();
        let headers = shown.envoy.xds.iter_mut();
        let headers = headers.flat_map(|xds| xds.headers.values_mut());
        headers.for_each(|value| *value = "***".to_owned());
        // Strings, numbers and tables only, so serialization cannot fail.
        toml::to_string(&shown).unwrap_or_default()
    }

    /// Returns a hash of 16 hexadecimal digits. It does not depend on passwords, because it is
    /// public.
    #[must_use]
    pub fn hash(&self) -> String {
        blake3::hash(self.shown().as_bytes())
            .to_hex()
            .chars()
            .take(16)
            .collect()
    }

    /// Returns a JSON schema of the file, for editors.
    #[must_use]
    pub fn schema() -> String {
        serde_json::to_string_pretty(&schemars::schema_for!(Self)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(text: &str) -> Config {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn local_limits_are_divided_by_the_number_of_instances() {
        let policy = "[policies.api]\nlimits = \"8/hour\"\nfailure = \"local\"\n";
        for store in [
            "url = \"redis://h/?instances=4\"",
            "url = \"redis://h/\"\ninstances = 4",
        ] {
            let rules = tidegate::Rules::new("8/hour".parse().unwrap())
                .failure_policy(FailurePolicy::local(4));
            let policies = loaded(&format!("[store]\n{store}\n{policy}"))
                .policy_set()
                .unwrap();
            assert_eq!(policies.rules("api"), Some(&rules), "{store}");
        }
    }

    #[test]
    fn the_hash_excludes_passwords() {
        let hash = |password: &str| {
            loaded(&format!("[store]\nurl = \"redis://u:{password}@h/\"\n")).hash()
        };
        assert_eq!(hash("one"), hash("other"));
        assert_ne!(
            loaded("").hash(),
            loaded("[http]\nheaders = \"off\"\n").hash()
        );
    }
}
