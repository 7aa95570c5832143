//! Validates a configuration: settings that contradict each other, and listeners exposed by accident.

use std::net::IpAddr;

use tidegate_http::ClientAddress;

use super::{Config, ConfigError, Listen, Scope, TlsConfig, XdsConfig};

/// The maximum of `bounds.max_body`.
const MAX_BODY: usize = 16 << 20;

fn error<T>(message: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Values(message.into()))
}

impl Config {
    /// Checks that the settings fit together.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        self.validate_store()?;
        let leases = self.store.url.url().check_policies(&self.policy_set()?);
        leases.map_err(|error| ConfigError::Values(error.to_string()))?;
        self.validate_tokens()?;
        self.validate_hosts()?;
        self.validate_bounds()?;
        self.validate_listeners()?;
        self.validate_envoy()?;
        drop(self.client_address()?);
        if self.log.otlp.is_some() && !cfg!(feature = "otel") {
            return error(
                "log.otlp: this program was built without OpenTelemetry: expected the feature `otel`",
            );
        }
        self.validate_exposure()
    }

    fn validate_store(&self) -> Result<(), ConfigError> {
        let store = &self.store;
        let url = store.url.url();
        if store.instances == Some(0) {
            return error("store.instances is 0: expected at least 1");
        }
        if url.is_memory() && (store.failure.is_some() || store.instances.is_some() || store.lazy) {
            return error(
                "store.failure, store.instances and store.lazy are for Redis: expected none with memory://",
            );
        }
        if !url.is_memory() && store.snapshot.is_some() {
            return error("store.snapshot is for memory://: expected none with Redis");
        }
        if url.failure_policy().is_some() && self.failure_policy().is_some() {
            return error(
                "the failure policy is given twice: expected it in store.url or beside it",
            );
        }
        Ok(())
    }

    fn validate_tokens(&self) -> Result<(), ConfigError> {
        for (number, token) in self.tokens.iter().enumerate() {
            if token.scopes.is_empty() {
                return error(format!(
                    "token[{number}] has no scopes: expected some of \"check\", \"refund\" and \"admin\""
                ));
            }
            if token.file.is_some() == token.env.is_some() {
                return error(format!("token[{number}]: expected either `file` or `env`"));
            }
        }
        Ok(())
    }

    fn validate_hosts(&self) -> Result<(), ConfigError> {
        for (name, hosts) in [("http", &self.http.hosts), ("admin", &self.admin.hosts)] {
            if let Some(host) = hosts.iter().find(|host| !is_host(host)) {
                return error(format!(
                    "{name}.hosts: {host:?} is invalid: expected a host name or an address, \
                     without scheme and port"
                ));
            }
        }
        Ok(())
    }

    fn validate_bounds(&self) -> Result<(), ConfigError> {
        let bounds = &self.bounds;
        for (name, value) in [
            ("max_connections", bounds.max_connections),
            ("max_body", bounds.max_body),
            ("max_batch", bounds.max_batch),
            ("max_streams", bounds.max_streams as usize),
        ] {
            if value == 0 {
                return error(format!("bounds.{name} is 0: expected at least 1"));
            }
        }
        if bounds.max_body > MAX_BODY {
            return error("bounds.max_body is too large: expected at most 16 MiB");
        }
        Ok(())
    }

    fn validate_listeners(&self) -> Result<(), ConfigError> {
        let listeners = [
            self.http.listen,
            self.resp.listen,
            self.grpc.listen,
            self.admin.listen,
            self.admin.metrics_listen,
        ];
        let is_off = |listen: &Listen| *listen == Listen::Off;
        if listeners[..3].iter().all(is_off) && self.grpc.socket.is_none() {
            return error(
                "http.listen, resp.listen and grpc.listen are all off: expected at least one",
            );
        }
        let mut addresses: Vec<_> = listeners
            .into_iter()
            .filter_map(Listen::address)
            .filter(|address| address.port() != 0)
            .collect();
        addresses.sort();
        match addresses.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => error(format!(
                "two listeners have the address {}: expected different ones",
                pair[0]
            )),
            None => Ok(()),
        }
    }

    /// Returns the rules for the address of a client behind a gateway.
    pub(crate) fn client_address(&self) -> Result<ClientAddress, ConfigError> {
        let forward_auth = &self.forward_auth;
        if let Some(header) = &forward_auth.key_header
            && http::HeaderName::from_bytes(header.as_bytes()).is_err()
        {
            return error(format!(
                "forward_auth.key_header: {header:?} is invalid: expected a header name such as x-api-key"
            ));
        }
        ClientAddress::behind(&forward_auth.trusted_proxies)
            .or_else(|cause| error(format!("forward_auth.trusted_proxies: {cause}")))
    }

    fn validate_envoy(&self) -> Result<(), ConfigError> {
        let envoy = &self.envoy;
        if envoy.config.is_some() && envoy.xds.is_some() {
            return error("envoy.config and envoy.xds are both set: expected one of them");
        }
        if !(0.0..=1.0).contains(&envoy.near_limit_ratio) {
            return error("envoy.near_limit_ratio is invalid: expected 0 to 1");
        }
        if let Some(xds) = &envoy.xds {
            validate_xds(xds)?;
        }
        if self.limitador.config.is_some() && !cfg!(feature = "limitador") {
            return error(
                "limitador.config: this program was built without CEL: expected the feature `limitador`",
            );
        }
        for (name, header) in [
            ("limit_header", &envoy.limit_header),
            ("remaining_header", &envoy.remaining_header),
            ("reset_header", &envoy.reset_header),
        ] {
            if http::HeaderName::from_bytes(header.as_bytes()).is_err() {
                return error(format!("envoy.{name}: {header:?} is not a header name"));
            }
        }
        Ok(())
    }

    /// Checks that no listener is reachable from other machines by accident.
    fn validate_exposure(&self) -> Result<(), ConfigError> {
        match self.exposed().into_iter().find(|one| !one.is_intended) {
            None => Ok(()),
            Some(ExposedListener {
                name,
                listen,
                protection,
                ..
            }) => error(format!(
                "{name}.listen = {listen} would accept unauthenticated clients from other \
                 machines: expected {protection}, or {name}.insecure = true (--insecure)"
            )),
        }
    }

    /// Returns the listeners that accept unauthenticated clients from other machines.
    pub(crate) fn exposed(&self) -> Vec<ExposedListener> {
        let has_token = |scope| {
            let mut tokens = self.tokens.iter();
            tokens.any(|token| token.scopes.contains(&scope))
        };
        let (check, admin) = (has_token(Scope::Check), has_token(Scope::Admin));
        let (http, resp, grpc, operator) = (&self.http, &self.resp, &self.grpc, &self.admin);
        let listeners = [
            ("http", http.listen, http.insecure, check, &http.tls),
            ("resp", resp.listen, resp.insecure, check, &resp.tls),
            ("grpc", grpc.listen, grpc.insecure, check, &grpc.tls),
            (
                "admin",
                operator.listen,
                operator.insecure,
                admin,
                &operator.tls,
            ),
            (
                "admin",
                operator.metrics_listen,
                operator.insecure,
                admin,
                &operator.tls,
            ),
        ];
        let mut exposed = Vec::new();
        for (name, listen, is_intended, has_token, tls) in listeners {
            let address = listen.address();
            let is_remote = address.is_some_and(|address| !address.ip().is_loopback());
            if is_remote && !has_token && !TlsConfig::requires_certificate(tls.as_ref()) {
                let scope = if name == "admin" { "admin" } else { "check" };
                exposed.push(ExposedListener {
                    name,
                    listen,
                    is_intended,
                    protection: format!("a token of scope {scope}, [{name}.tls] with client_ca"),
                });
            }
        }
        exposed
    }
}

/// A listener that accepts unauthenticated clients from other machines.
pub(crate) struct ExposedListener {
    pub(crate) name: &'static str,
    pub(crate) listen: Listen,
    is_intended: bool,
    /// The settings that would protect it.
    protection: String,
}

fn is_host(host: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_valid)) || host.parse::<IpAddr>().is_ok()
}

fn validate_xds(xds: &XdsConfig) -> Result<(), ConfigError> {
    let authority: Result<http::uri::Authority, _> = xds.server.parse();
    if !authority.is_ok_and(|authority| authority.port().is_some()) {
        return error(format!(
            "envoy.xds.server: {:?} is invalid: expected HOST:PORT",
            xds.server
        ));
    }
    for (name, value) in &xds.headers {
        if http::HeaderName::from_bytes(name.as_bytes()).is_err()
            || http::HeaderValue::from_str(value).is_err()
        {
            return error(format!("envoy.xds.headers: {name:?} is not a header"));
        }
    }
    match &xds.tls {
        Some(tls) if tls.cert.is_some() != tls.key.is_some() => {
            error("envoy.xds.tls: expected both cert and key, or neither")
        }
        _ => Ok(()),
    }
}
