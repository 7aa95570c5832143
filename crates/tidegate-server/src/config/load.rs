//! Loads a configuration: a file, then the environment, then flags.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

use super::Config;
use super::mask::{is_public, mask, without_values};
use super::ratelimit_env;

/// The prefix of environment variables: `TIDEGATE__STORE__URL`.
const ENVIRONMENT: &str = "TIDEGATE__";

/// The error for an invalid configuration.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: String,
    },
    /// The file is invalid. The message has the line, the column and the text there.
    #[error("{}: {message}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The mistake and its position.
        message: String,
    },
    /// An environment variable or a flag is invalid.
    #[error("{place}: {message}")]
    Override {
        /// The name of the variable or flag.
        place: String,
        /// The mistake.
        message: String,
    },
    /// Settings contradict each other.
    #[error("{0}")]
    Values(String),
}

/// The source of a configuration, which can be loaded repeatedly.
#[derive(Clone, Debug, Default)]
pub struct ConfigSource {
    /// The file. Without one all settings have their defaults.
    pub file: Option<PathBuf>,
    /// The environment variables. Those without the prefix `TIDEGATE__` are ignored.
    pub environment: Vec<(String, String)>,
    /// The settings of flags.
    pub flags: Vec<Flag>,
}

/// A setting of a flag.
#[derive(Clone, Debug)]
pub struct Flag {
    /// The flag: `--http`.
    pub name: &'static str,
    /// The path of the setting: `http.listen`.
    pub path: &'static str,
    /// The value.
    pub value: Value,
}

impl ConfigSource {
    /// Loads and validates the configuration.
    ///
    /// # Errors
    ///
    /// Returns an error if anything is invalid.
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
        let of_ratelimit = ratelimit_env::settings(&self.environment)?;
        let of_ratelimit = of_ratelimit.into_iter().map(|setting| Override {
            place: setting.variable,
            path: setting.path.to_owned(),
            value: setting.value,
        });
        let overrides = of_ratelimit.chain(variables).chain(flags);
        let overrides: Vec<Override<'_>> = overrides.collect();
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

/// A setting that overrides the file.
struct Override<'a> {
    place: &'a str,
    path: String,
    value: Value,
}

/// Applies all overrides. Some are valid only together with others, so the error names the first
/// override after which the configuration was invalid.
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
    Config::deserialize(table.clone()).map_err(|error| mask(error.message()))
}

/// Parses the file. An error has a line and a column.
fn read(path: &Path) -> Result<Table, ConfigError> {
    let file = |error: std::io::Error| ConfigError::File {
        path: path.to_owned(),
        error: error.to_string(),
    };
    let content = std::fs::read_to_string(path).map_err(file)?;
    let text = |error: toml::de::Error| {
        let mut message = mask(&error.to_string());
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
    config.policy_set().map_err(|error| ConfigError::Text {
        path: path.to_owned(),
        message: error.to_string(),
    })?;
    toml::from_str(&content).map_err(text)
}

/// Converts text to a list, a table, a number or a boolean if it is one, and otherwise to a string.
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
    /// Sets the value in a table.
    fn set(&self, table: &mut Table) -> Result<(), ConfigError> {
        let error = |message: String| ConfigError::Override {
            place: self.place.to_owned(),
            message,
        };
        let mut names: Vec<&str> = self.path.split('.').collect();
        let last = names
            .pop()
            .filter(|name| !name.is_empty())
            .ok_or_else(|| error("the setting's name is missing".to_owned()))?;
        let mut at = &mut *table;
        for name in names {
            let within = at.entry(name).or_insert_with(|| Value::Table(Table::new()));
            at = within
                .as_table_mut()
                .ok_or_else(|| error(format!("`{name}` is not a section")))?;
        }
        at.insert(last.to_owned(), self.value.clone());
        Ok(())
    }
}
