//! From a file, the environment and flags to one configuration.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

use super::masked::{is_public, masked, without_values};
use super::{Config, Listen, TlsConfig};

/// What every variable of the environment that is meant begins with: `TIDEGATE__STORE__URL`.
const ENVIRONMENT: &str = "TIDEGATE__";

/// Why there is no configuration.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// The file says something that is not understood. The message has the line, the column and the text there.
    #[error("{}: {message}", path.display())]
    Text {
        /// Which.
        path: PathBuf,
        /// What, and where.
        message: String,
    },
    /// A variable of the environment, or a flag, says something that is not understood.
    #[error("{place}: {message}")]
    Override {
        /// Its name.
        place: String,
        /// What.
        message: String,
    },
    /// Values that do not go together.
    #[error("{0}")]
    Values(String),
}

/// Where a configuration comes from, to be read again and again.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The file; none is as good as an empty one.
    pub file: Option<PathBuf>,
    /// The variables of the environment; those that do not begin with `TIDEGATE__` are of no concern.
    pub environment: Vec<(String, String)>,
    /// What flags say: a dotted path each, its value, and the flag to name in an error.
    pub flags: Vec<Flag>,
}

/// What a flag says.
#[derive(Clone, Debug)]
pub struct Flag {
    /// As it is written: `--http`.
    pub name: &'static str,
    /// What it sets: `http.listen`.
    pub path: &'static str,
    /// To what.
    pub value: Value,
}

impl Source {
    /// Reads all of it.
    ///
    /// # Errors
    /// If anything is not understood, or does not go together.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let file = match &self.file {
            Some(path) => read(path)?,
            None => Table::new(),
        };
        let variables = self
            .environment
            .iter()
            .filter(|(name, _)| name.starts_with(ENVIRONMENT));
        let variables = variables.map(|(name, value)| Override {
            place: name,
            path: name
                .trim_start_matches(ENVIRONMENT)
                .to_ascii_lowercase()
                .replace("__", "."),
            value: scalar(value),
        });
        let flags = self
            .flags
            .iter()
            .map(|Flag { name, path, value }| Override {
                place: name,
                path: (*path).to_owned(),
                value: value.clone(),
            });
        let overrides: Vec<Override<'_>> = variables.chain(flags).collect();
        let config = overridden(&file, &overrides)?;
        match (config.validate(), &self.file) {
            (Ok(()), _) => Ok(config),
            (Err(ConfigError::Values(message)), Some(path)) => Err(ConfigError::Text {
                path: path.clone(),
                message,
            }),
            (Err(error), _) => Err(error),
        }
    }
}

/// What is said on top of the file.
struct Override<'a> {
    place: &'a str,
    path: String,
    value: Value,
}

/// The configuration with all of them. Some mean something only together with others; of those that mean nothing, the first
/// after which it was wrong is named.
fn overridden(file: &Table, overrides: &[Override<'_>]) -> Result<Config, ConfigError> {
    let mut table = file.clone();
    let mut errors = Vec::new();
    let mut config = understood(&table);
    for one in overrides {
        one.set(&mut table)?;
        config = understood(&table);
        errors.push(config.as_ref().err().cloned());
    }
    config.map_err(|message| {
        let first = errors
            .iter()
            .position(|error| error.as_ref() == Some(&message));
        match first.and_then(|at| overrides.get(at)) {
            Some(one) => ConfigError::Override {
                place: one.place.to_owned(),
                message,
            },
            None => ConfigError::Values(message),
        }
    })
}

fn understood(table: &Table) -> Result<Config, String> {
    Config::deserialize(table.clone()).map_err(|error| masked(error.message()))
}

/// The file as a table, once all of it is understood: an error points at line and column.
fn read(path: &Path) -> Result<Table, ConfigError> {
    let file = |error: std::io::Error| ConfigError::File {
        path: path.to_owned(),
        error: error.to_string(),
    };
    let content = std::fs::read_to_string(path).map_err(file)?;
    let text = |error: toml::de::Error| {
        let mut message = masked(&error.to_string());
        if error
            .span()
            .is_none_or(|span| !is_public(&content, span.start))
        {
            message = without_values(&message);
        }
        ConfigError::Text {
            path: path.to_owned(),
            message,
        }
    };
    let config: Config = toml::from_str(&content).map_err(text)?;
    config.book().map_err(|error| ConfigError::Text {
        path: path.to_owned(),
        message: error.to_string(),
    })?;
    toml::from_str(&content).map_err(text)
}

/// A list, a table, a number or a truth value where it is one, else a text.
fn scalar(text: &str) -> Value {
    if text.starts_with(['[', '{'])
        && let Ok(mut table) = toml::from_str::<Table>(&format!("value = {text}"))
        && let Some(value) = table.remove("value")
    {
        return value;
    }
    match (text.parse::<i64>(), text) {
        (Ok(number), _) => Value::Integer(number),
        (_, "true") => Value::Boolean(true),
        (_, "false") => Value::Boolean(false),
        _ => Value::String(text.to_owned()),
    }
}

impl Override<'_> {
    /// Puts the value in its place.
    fn set(&self, table: &mut Table) -> Result<(), ConfigError> {
        let error = |message: String| ConfigError::Override {
            place: self.place.to_owned(),
            message,
        };
        let mut names: Vec<&str> = self.path.split('.').collect();
        let last = names
            .pop()
            .filter(|name| !name.is_empty())
            .ok_or_else(|| error("it names nothing".to_owned()))?;
        let mut at = &mut *table;
        for name in names {
            let within = at.entry(name).or_insert_with(|| Value::Table(Table::new()));
            at = within
                .as_table_mut()
                .ok_or_else(|| error(format!("`{name}` is not a table")))?;
        }
        at.insert(last.to_owned(), self.value.clone());
        Ok(())
    }
}

impl Config {
    /// What goes together, and what does not.
    fn validate(&self) -> Result<(), ConfigError> {
        let error = |message: String| Err(ConfigError::Values(message));
        self.book()?;
        let store = &self.store;
        if store.instances == Some(0) {
            return error("store.instances is 0: expected at least 1".to_owned());
        }
        if store.url.url().is_memory() {
            if store.failure.is_some() || store.instances.is_some() || store.lazy {
                return error(
                    "store.failure, store.instances and store.lazy are for Redis: memory:// always answers".to_owned(),
                );
            }
        } else if store.snapshot.is_some() {
            return error("store.snapshot is for memory://: Redis keeps its own".to_owned());
        } else if store.url.url().failure_policy().is_some() && self.failure_policy().is_some() {
            return error(
                "the failure policy is said twice: in store.url and beside it".to_owned(),
            );
        }
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
        for (name, hosts) in [("http", &self.http.hosts), ("admin", &self.admin.hosts)] {
            let is_name = |host: &str| {
                !host.is_empty()
                    && host
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
                    || host.parse::<std::net::IpAddr>().is_ok()
            };
            if let Some(wrong) = hosts.iter().find(|host| !is_name(host)) {
                return error(format!(
                    "{name}.hosts: {wrong:?} is invalid: expected a host name or an address, without scheme and port"
                ));
            }
        }
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
        if bounds.max_body > 16 << 20 {
            return error("bounds.max_body is above 16 MiB: expected less".to_owned());
        }
        if [self.http.listen, self.resp.listen]
            .iter()
            .all(|listen| *listen == Listen::Off)
        {
            return error(
                "http.listen and resp.listen are both off: expected at least one".to_owned(),
            );
        }
        let addresses =
            [self.http.listen, self.resp.listen, self.admin.listen].map(Listen::address);
        let fixed: Vec<_> = addresses
            .iter()
            .flatten()
            .filter(|address| address.port() != 0)
            .collect();
        if let Some(twice) = fixed
            .iter()
            .enumerate()
            .find_map(|(at, address)| fixed[..at].contains(address).then_some(address))
        {
            return error(format!("two listeners are on {twice}: expected one each"));
        }
        if self.log.otlp.is_some() && !cfg!(feature = "otel") {
            return error(
                "log.otlp: this program was built without OpenTelemetry: expected the feature `otel`".to_owned(),
            );
        }
        self.validate_exposure()
    }

    /// Nobody listens beyond this machine by accident.
    fn validate_exposure(&self) -> Result<(), ConfigError> {
        match self.exposed().into_iter().find(|exposed| !exposed.is_meant) {
            None => Ok(()),
            Some(Exposed {
                name,
                listen,
                guard,
                ..
            }) => Err(ConfigError::Values(format!(
                "{name} would listen on {listen}, beyond this machine, and let in everybody: expected {guard}; or say \
                 that it is meant, by {name}.insecure = true or --insecure"
            ))),
        }
    }

    /// The listeners that let in everybody from beyond this machine.
    pub(crate) fn exposed(&self) -> Vec<Exposed> {
        let has = |scope| {
            self.tokens
                .iter()
                .any(|token| token.scopes.contains(&scope))
        };
        let (check, admin) = (has(super::Scope::Check), has(super::Scope::Admin));
        let asks_certificate =
            |tls: &Option<TlsConfig>| tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let listeners = [
            (
                "http",
                self.http.listen,
                self.http.insecure,
                check || asks_certificate(&self.http.tls),
                "a token of scope check, or [http.tls] with client_ca",
            ),
            (
                "resp",
                self.resp.listen,
                self.resp.insecure,
                check || asks_certificate(&self.resp.tls),
                "a token of scope check, or [resp.tls] with client_ca",
            ),
            (
                "admin",
                self.admin.listen,
                self.admin.insecure,
                admin || asks_certificate(&self.admin.tls),
                "a token of scope admin, or [admin.tls] with client_ca",
            ),
        ];
        let is_beyond = |listen: Listen| {
            listen
                .address()
                .is_some_and(|address| !address.ip().is_loopback())
        };
        let exposed = listeners
            .into_iter()
            .filter(|(_, listen, _, is_guarded, _)| is_beyond(*listen) && !is_guarded);
        exposed
            .map(|(name, listen, is_meant, _, guard)| Exposed {
                name,
                listen,
                is_meant,
                guard,
            })
            .collect()
    }
}

/// A listener that lets in everybody from beyond this machine.
pub(crate) struct Exposed {
    pub(crate) name: &'static str,
    pub(crate) listen: Listen,
    is_meant: bool,
    /// What it lacks.
    guard: &'static str,
}
