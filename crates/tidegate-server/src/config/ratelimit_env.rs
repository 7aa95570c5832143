//! The environment variables of envoyproxy/ratelimit, as settings of this server.
//!
//! They apply if one of them is set that only that program has: `RUNTIME_ROOT`,
//! `RUNTIME_SUBDIRECTORY` or `CONFIG_TYPE`. Our own variables and flags override them.

use std::collections::HashMap;
use std::path::PathBuf;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use toml::Value;

use super::ConfigError;

/// A setting, and the variable that it comes from.
pub(super) struct EnvSetting {
    pub(super) variable: &'static str,
    pub(super) path: &'static str,
    pub(super) value: Value,
}

/// Returns the settings, or none if the program's variables are not set.
pub(super) fn settings(environment: &[(String, String)]) -> Result<Vec<EnvSetting>, ConfigError> {
    let variables = environment.iter().filter(|(_, value)| !value.is_empty());
    let variables = variables
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let mut env = Environment {
        variables,
        settings: Vec::new(),
    };
    let own = ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "CONFIG_TYPE"];
    if !own.iter().any(|name| env.variables.contains_key(name)) {
        return Ok(Vec::new());
    }
    env.listeners()?;
    env.grpc()?;
    env.rules()?;
    env.store()?;
    env.answers()?;
    env.log()?;
    Ok(env.settings)
}

struct Environment<'a> {
    variables: HashMap<&'a str, &'a str>,
    settings: Vec<EnvSetting>,
}

fn invalid(variable: &str, message: impl Into<String>) -> ConfigError {
    ConfigError::Override {
        place: variable.to_owned(),
        message: message.into(),
    }
}

impl<'a> Environment<'a> {
    fn get(&self, variable: &str) -> Option<&'a str> {
        self.variables.get(variable).copied()
    }

    fn set(&mut self, variable: &'static str, path: &'static str, value: impl Into<Value>) {
        let value = value.into();
        self.settings.push(EnvSetting {
            variable,
            path,
            value,
        });
    }

    fn set_text(&mut self, variable: &'static str, path: &'static str) {
        if let Some(text) = self.get(variable) {
            self.set(variable, path, text);
        }
    }

    /// Returns a boolean as Go parses it.
    fn boolean(&self, variable: &'static str) -> Result<Option<bool>, ConfigError> {
        match self.get(variable) {
            None => Ok(None),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
            Some(text) => Err(invalid(
                variable,
                format!("`{text}` is invalid: expected true or false"),
            )),
        }
    }

    fn set_boolean(
        &mut self,
        variable: &'static str,
        path: &'static str,
    ) -> Result<(), ConfigError> {
        if let Some(value) = self.boolean(variable)? {
            self.set(variable, path, value);
        }
        Ok(())
    }

    /// Sets an address. As in the other program it is open to all machines by default.
    fn set_address(
        &mut self,
        host: &'static str,
        port: &'static str,
        default_port: u16,
        path: &'static str,
    ) -> Result<(), ConfigError> {
        let text = self
            .get(port)
            .map_or_else(|| default_port.to_string(), str::to_owned);
        let number: u16 = text
            .parse()
            .map_err(|_| invalid(port, format!("`{text}` is invalid: expected a port")))?;
        let host_text = self.get(host).unwrap_or("0.0.0.0");
        let address = if host_text.contains(':') {
            format!("[{host_text}]:{number}")
        } else {
            format!("{host_text}:{number}")
        };
        self.set(port, path, address);
        Ok(())
    }

    fn listeners(&mut self) -> Result<(), ConfigError> {
        self.set_address("HOST", "PORT", 8080, "http.listen")?;
        self.set_address("DEBUG_HOST", "DEBUG_PORT", 6070, "admin.listen")?;
        for path in [
            "http.insecure",
            "grpc.insecure",
            "admin.insecure",
            "admin.read_only",
        ] {
            self.set("HOST", path, true);
        }
        if self.boolean("USE_PROMETHEUS")? == Some(true) {
            let address = self.get("PROMETHEUS_ADDR").unwrap_or(":9090");
            let address = match address.strip_prefix(':') {
                Some(port) => format!("0.0.0.0:{port}"),
                None => address.to_owned(),
            };
            self.set("PROMETHEUS_ADDR", "admin.metrics_listen", address);
            self.set("USE_PROMETHEUS", "envoy.metric_names", "ratelimit");
        }
        let path = self.get("PROMETHEUS_PATH").unwrap_or("/metrics");
        if path != "/metrics" {
            let message = format!("`{path}` is not supported: expected /metrics");
            return Err(invalid("PROMETHEUS_PATH", message));
        }
        Ok(())
    }

    fn grpc(&mut self) -> Result<(), ConfigError> {
        match self.get("GRPC_UDS") {
            Some(path) => {
                self.set("GRPC_UDS", "grpc.socket", path);
                self.set("GRPC_UDS", "grpc.listen", "off");
            }
            None => self.set_address("GRPC_HOST", "GRPC_PORT", 8081, "grpc.listen")?,
        }
        if self.boolean("GRPC_SERVER_USE_TLS")? == Some(true) {
            for variable in ["GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"] {
                if self.get(variable).is_none() {
                    let message = "is missing: expected a file, because GRPC_SERVER_USE_TLS is set";
                    return Err(invalid(variable, message));
                }
            }
            self.set_text("GRPC_SERVER_TLS_CERT", "grpc.tls.cert");
            self.set_text("GRPC_SERVER_TLS_KEY", "grpc.tls.key");
            self.set_text("GRPC_CLIENT_TLS_CACERT", "grpc.tls.client_ca");
        }
        if self.get("GRPC_CLIENT_TLS_SAN").is_some() {
            let message = "names of client certificates are not checked: expected a CA of its own";
            return Err(invalid("GRPC_CLIENT_TLS_SAN", message));
        }
        self.set_text("GRPC_MAX_CONNECTION_AGE", "grpc.max_connection_age");
        Ok(())
    }

    fn rules(&mut self) -> Result<(), ConfigError> {
        let kind = self.get("CONFIG_TYPE").unwrap_or("FILE");
        match kind.to_ascii_uppercase().as_str() {
            "FILE" => {
                let root = self
                    .get("RUNTIME_ROOT")
                    .unwrap_or("/srv/runtime_data/current");
                let below = self.get("RUNTIME_SUBDIRECTORY").unwrap_or_default();
                let last = self.get("RUNTIME_APPDIRECTORY").unwrap_or("config");
                // As Go joins them: a slash at the start of a part is not the root.
                let [below, last] = [below, last].map(|part| part.trim_start_matches('/'));
                let path: PathBuf = [root, below, last].iter().collect();
                self.set("RUNTIME_ROOT", "envoy.config", path.display().to_string());
            }
            "GRPC_XDS_SOTW" => self.xds()?,
            _ => {
                let message = format!("`{kind}` is unknown: expected FILE or GRPC_XDS_SOTW");
                return Err(invalid("CONFIG_TYPE", message));
            }
        }
        self.set_boolean("MERGE_DOMAIN_CONFIG", "envoy.merge_domains")?;
        self.set_boolean(
            "FORCE_START_WITHOUT_INITIAL_CONFIG",
            "envoy.start_without_config",
        )?;
        self.set_boolean(
            "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
            "envoy.unhealthy_without_config",
        )
    }

    fn xds(&mut self) -> Result<(), ConfigError> {
        let server = self
            .get("CONFIG_GRPC_XDS_SERVER_URL")
            .unwrap_or("localhost:18000");
        self.set("CONFIG_GRPC_XDS_SERVER_URL", "envoy.xds.server", server);
        self.set_text("CONFIG_GRPC_XDS_NODE_ID", "envoy.xds.node_id");
        for (variable, path, between) in [
            (
                "CONFIG_GRPC_XDS_NODE_METADATA",
                "envoy.xds.node_metadata",
                '=',
            ),
            (
                "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
                "envoy.xds.headers",
                ':',
            ),
        ] {
            if let Some(text) = self.get(variable) {
                let pairs = text.split(',').filter_map(|pair| pair.split_once(between));
                let pairs = pairs.map(|(name, value)| {
                    (
                        name.trim().to_owned(),
                        Value::String(value.trim().to_owned()),
                    )
                });
                self.set(variable, path, Value::Table(pairs.collect()));
            }
        }
        if self.boolean("CONFIG_GRPC_XDS_SERVER_USE_TLS")? == Some(true) {
            let table = Value::Table(toml::Table::new());
            self.set("CONFIG_GRPC_XDS_SERVER_USE_TLS", "envoy.xds.tls", table);
            self.set_text("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "envoy.xds.tls.ca");
            self.set_text("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "envoy.xds.tls.cert");
            self.set_text("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "envoy.xds.tls.key");
            self.set_text(
                "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
                "envoy.xds.tls.server_name",
            );
        }
        if let Some(text) = self.get("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES") {
            let variable = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES";
            let bytes: i64 = text.parse().map_err(|_| {
                invalid(variable, format!("`{text}` is invalid: expected a number"))
            })?;
            // 0 is the default, as there.
            if bytes != 0 {
                self.set(variable, "envoy.xds.max_message_bytes", bytes);
            }
        }
        self.set_text(
            "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
            "envoy.xds.retry_delay",
        );
        self.set_text(
            "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
            "envoy.xds.max_retry_delay",
        );
        Ok(())
    }

    /// Sets the store. Without a Redis the counters are in memory.
    fn store(&mut self) -> Result<(), ConfigError> {
        let backend = self.get("BACKEND_TYPE").unwrap_or("redis");
        if !backend.eq_ignore_ascii_case("redis") {
            let message = format!("`{backend}` is not supported: expected redis");
            return Err(invalid("BACKEND_TYPE", message));
        }
        if self.boolean("REDIS_PERSECOND")? == Some(true) {
            let message = "a second Redis is not supported: expected REDIS_URL for all limits";
            return Err(invalid("REDIS_PERSECOND", message));
        }
        let Some(url) = self.get("REDIS_URL") else {
            return Ok(());
        };
        let url = self.redis_url(url)?;
        self.set("REDIS_URL", "store.url", url);
        Ok(())
    }

    fn redis_url(&self, text: &str) -> Result<String, ConfigError> {
        if text.contains("://") {
            for variable in ["REDIS_AUTH", "REDIS_TLS", "REDIS_TYPE", "CACHE_KEY_PREFIX"] {
                if self.get(variable).is_some() {
                    let message = "REDIS_URL has a scheme: expected this in the URL";
                    return Err(invalid(variable, message));
                }
            }
            return Ok(text.to_owned());
        }
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let auth = match self
            .get("REDIS_AUTH")
            .map(|auth| auth.split_once(':').unwrap_or(("", auth)))
        {
            Some((user, password)) => format!("{}:{}@", encoded(user), encoded(password)),
            None => String::new(),
        };
        let is_tls = self.boolean("REDIS_TLS")? == Some(true);
        let kind = self
            .get("REDIS_TYPE")
            .unwrap_or("SINGLE")
            .to_ascii_uppercase();
        let socket = self
            .get("REDIS_SOCKET_TYPE")
            .unwrap_or("unix")
            .to_ascii_lowercase();
        let is_path = kind == "SINGLE" && socket == "unix" && text.starts_with('/');
        let scheme = |plain: &str| {
            if is_tls {
                plain.replace("redis", "rediss")
            } else {
                plain.to_owned()
            }
        };
        let mut url = match kind.as_str() {
            _ if is_path => format!("unix://{auth}{text}"),
            "SINGLE" => format!("{}://{auth}{text}/", scheme("redis")),
            "CLUSTER" => format!("{}://{auth}{text}/", scheme("redis+cluster")),
            "SENTINEL" => {
                let (name, hosts) = text.split_once(',').ok_or_else(|| {
                    invalid(
                        "REDIS_URL",
                        "expected the name of the master, then HOST:PORT,…",
                    )
                })?;
                format!(
                    "{}://{auth}{hosts}/{}",
                    scheme("redis+sentinel"),
                    encoded(name)
                )
            }
            _ => {
                let message = format!("`{kind}` is unknown: expected single, sentinel or cluster");
                return Err(invalid("REDIS_TYPE", message));
            }
        };
        let mut mark = '?';
        for (variable, option) in [
            ("CACHE_KEY_PREFIX", "prefix"),
            ("REDIS_SENTINEL_AUTH", "sentinel_password"),
            ("REDIS_TLS_CACERT", "ca"),
            ("REDIS_TLS_CLIENT_CERT", "cert"),
            ("REDIS_TLS_CLIENT_KEY", "key"),
        ] {
            if let Some(value) = self.get(variable) {
                url = format!("{url}{mark}{option}={}", encoded(value));
                mark = '&';
            }
        }
        if self.boolean("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION")? == Some(true) {
            let message = "is not supported: expected a certificate with the host's name";
            return Err(invalid("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", message));
        }
        Ok(url)
    }

    fn answers(&mut self) -> Result<(), ConfigError> {
        self.set_boolean("SHADOW_MODE", "envoy.shadow_mode")?;
        self.set_boolean("QUOTA_MODE", "envoy.quota_mode")?;
        self.set_boolean("LIMIT_RESPONSE_HEADERS_ENABLED", "envoy.response_headers")?;
        self.set_boolean("RESPONSE_DYNAMIC_METADATA", "envoy.dynamic_metadata")?;
        self.set_text("LIMIT_LIMIT_HEADER", "envoy.limit_header");
        self.set_text("LIMIT_REMAINING_HEADER", "envoy.remaining_header");
        self.set_text("LIMIT_RESET_HEADER", "envoy.reset_header");
        if let Some(text) = self.get("NEAR_LIMIT_RATIO") {
            let ratio: f64 = text.parse().map_err(|_| {
                invalid(
                    "NEAR_LIMIT_RATIO",
                    format!("`{text}` is invalid: expected 0 to 1"),
                )
            })?;
            self.set("NEAR_LIMIT_RATIO", "envoy.near_limit_ratio", ratio);
        }
        Ok(())
    }

    fn log(&mut self) -> Result<(), ConfigError> {
        if let Some(text) = self.get("LOG_LEVEL") {
            let level = match text.to_ascii_lowercase().as_str() {
                "trace" | "debug" => "debug",
                "info" => "info",
                "warn" | "warning" => "warn",
                "error" | "fatal" | "panic" => "error",
                _ => {
                    let message =
                        format!("`{text}` is unknown: expected debug, info, warn or error");
                    return Err(invalid("LOG_LEVEL", message));
                }
            };
            self.set("LOG_LEVEL", "log.level", level);
        }
        self.set_text("LOG_FORMAT", "log.format");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigSource};

    fn loaded(variables: &[(&str, &str)]) -> Result<Config, String> {
        let variables = variables.iter();
        let variables = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let source = ConfigSource {
            environment: variables.collect(),
            ..ConfigSource::default()
        };
        source.load().map_err(|error| error.to_string())
    }

    #[test]
    fn variables_apply_only_together_with_one_of_their_own() {
        let config = loaded(&[("PORT", "1"), ("REDIS_URL", "x:1")]).unwrap();
        assert_eq!(config, Config::default());
        let config = loaded(&[("RUNTIME_ROOT", "/data"), ("PORT", "1")]).unwrap();
        assert_eq!(config.http.listen.to_string(), "0.0.0.0:1");
        assert_eq!(config.grpc.listen.to_string(), "0.0.0.0:8081");
        assert_eq!(config.admin.listen.to_string(), "0.0.0.0:6070");
        let path = config.envoy.config.unwrap();
        assert_eq!(path.to_str(), Some("/data/config"));
        assert!(config.store.url.url().is_memory());
    }

    #[test]
    fn every_kind_of_redis_becomes_a_url() {
        for (variables, expected) in [
            (
                &[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "h:6379")][..],
                "redis://h:6379/",
            ),
            (&[("REDIS_URL", "/run/r.sock")], "unix:///run/r.sock"),
            (
                &[("REDIS_TYPE", "cluster"), ("REDIS_URL", "a:1,b:2")],
                "redis+cluster://a:1,b:2/",
            ),
            (
                &[("REDIS_TYPE", "Sentinel"), ("REDIS_URL", "main,a:1,b:2")],
                "redis+sentinel://a:1,b:2/main",
            ),
        ] {
            let mut all = vec![("RUNTIME_ROOT", "/data")];
            all.extend(variables);
            let config = loaded(&all).unwrap();
            assert_eq!(config.store.url.to_string(), expected);
        }
    }

    #[test]
    fn nothing_is_misread() {
        let with = |more: &[(&str, &str)]| loaded(&[&[("RUNTIME_ROOT", "/data")], more].concat());
        let config = with(&[("RUNTIME_SUBDIRECTORY", "/rl")]).unwrap();
        assert_eq!(
            config.envoy.config.unwrap().to_str(),
            Some("/data/rl/config")
        );
        assert!(config.admin.read_only);
        let url = ("REDIS_URL", "redis://h:6379/");
        assert!(with(&[url]).is_ok());
        for (name, value) in [
            ("REDIS_TLS", "true"),
            ("REDIS_AUTH", "s"),
            ("CACHE_KEY_PREFIX", "p"),
        ] {
            assert!(with(&[url, (name, value)]).unwrap_err().contains(name));
        }
        let config = with(&[
            ("REDIS_TYPE", "sentinel"),
            ("REDIS_URL", "main,a:1"),
            ("CACHE_KEY_PREFIX", "p"),
            ("REDIS_SENTINEL_AUTH", "s"),
        ]);
        let url = config.unwrap().store.url.to_string();
        assert!(url.contains("prefix=p"), "{url}");
    }

    #[test]
    fn xds_and_bad_values() {
        let config = loaded(&[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", "gateway:18001"),
            ("CONFIG_GRPC_XDS_NODE_ID", "rl"),
            ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,c=d"),
            ("USE_STATSD", "true"),
            ("USE_PROMETHEUS", "true"),
        ])
        .unwrap();
        let xds = config.envoy.xds.unwrap();
        assert_eq!(
            (xds.server.as_str(), xds.node_id.as_str()),
            ("gateway:18001", "rl")
        );
        assert_eq!(xds.node_metadata["c"], "d");
        assert_eq!(config.admin.metrics_listen.to_string(), "0.0.0.0:9090");
        for (name, value, expected) in [
            ("CONFIG_TYPE", "CONSUL", "expected FILE or GRPC_XDS_SOTW"),
            ("BACKEND_TYPE", "memcache", "expected redis"),
            ("SHADOW_MODE", "maybe", "expected true or false"),
            ("GRPC_PORT", "x", "expected a port"),
            ("REDIS_PERSECOND", "true", "a second Redis"),
            ("NEAR_LIMIT_RATIO", "2", "expected 0 to 1"),
            (
                "GRPC_SERVER_USE_TLS",
                "true",
                "GRPC_SERVER_TLS_CERT: is missing",
            ),
            ("PROMETHEUS_PATH", "/x", "expected /metrics"),
        ] {
            let error = loaded(&[("RUNTIME_ROOT", "/data"), (name, value)]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
