//! Validates a configuration: settings that contradict each other, and listeners exposed by accident.

use std::net::IpAddr;

use super::{Config, ConfigError, Listen, Scope, TlsConfig};

/// The maximum of `bounds.max_body`.
const MAX_BODY: usize = 16 << 20;

fn error<T>(message: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Values(message.into()))
}

impl Config {
    /// Checks that the settings fit together.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        self.policy_set()?;
        self.validate_store()?;
        self.validate_tokens()?;
        self.validate_hosts()?;
        self.validate_bounds()?;
        self.validate_listeners()?;
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
        if self.http.listen == Listen::Off && self.resp.listen == Listen::Off {
            return error("http.listen and resp.listen are both off: expected at least one");
        }
        let listeners = [self.http.listen, self.resp.listen, self.admin.listen];
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
        let (http, resp, operator) = (&self.http, &self.resp, &self.admin);
        let listeners = [
            ("http", http.listen, http.insecure, check, &http.tls),
            ("resp", resp.listen, resp.insecure, check, &resp.tls),
            (
                "admin",
                operator.listen,
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
