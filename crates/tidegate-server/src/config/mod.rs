//! What a server is told: one TOML file, with environment and flags on top.

mod book;
mod layers;
mod masked;
mod sections;
mod values;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::{Book, FailurePolicy};

pub use book::{ExceptionConfig, PolicyConfig};
pub use layers::{ConfigError, Flag, Source};
pub use sections::{
    AdminConfig, Bounds, Failure, Headers, HttpConfig, LogConfig, LogFormat, LogLevel, RespConfig,
    Scope, StoreConfig, TlsConfig, TokenConfig,
};
pub use values::{Limits, Listen, Span, StoreText};

/// All that a server is told. What is left out has a default: an empty file is a good one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where counts are kept.
    pub store: StoreConfig,
    /// The listener for checks over HTTP.
    pub http: HttpConfig,
    /// The listener for checks by Redis clients.
    pub resp: RespConfig,
    /// The listener for operators: metrics and resets.
    pub admin: AdminConfig,
    /// What one client, or all of them together, may ask of the server.
    pub bounds: Bounds,
    /// What is logged, and how.
    pub log: LogConfig,
    /// Who may ask. Without any, everybody who reaches a listener may.
    #[serde(rename = "token")]
    pub tokens: Vec<TokenConfig>,
    /// The policies, by name.
    pub policies: BTreeMap<String, PolicyConfig>,
}

impl Config {
    /// The policies as a book, each with its failure policy.
    ///
    /// # Errors
    /// If a name or an exception is not one.
    pub fn book(&self) -> Result<Book, ConfigError> {
        book::book(&self.policies, self.instances()).map_err(ConfigError::Values)
    }

    pub(crate) fn instances(&self) -> u32 {
        let of_url = match self.store.url.url().failure_policy() {
            Some(FailurePolicy::Local { instances }) => Some(instances.get()),
            _ => None,
        };
        self.store.instances.or(of_url).unwrap_or(1)
    }

    /// What the store's failure policy is; `None` where its URL says.
    pub(crate) fn failure_policy(&self) -> Option<FailurePolicy> {
        let StoreConfig {
            failure, instances, ..
        } = &self.store;
        (failure.is_some() || instances.is_some())
            .then(|| failure.unwrap_or(Failure::Local).policy(self.instances()))
    }

    /// What differs between two configurations and cannot be changed while the server runs.
    pub(crate) fn fixed_difference(&self, other: &Self) -> Option<&'static str> {
        let differences = [
            (self.store != other.store, "store"),
            (self.http.listen != other.http.listen, "http.listen"),
            (self.resp.listen != other.resp.listen, "resp.listen"),
            (self.admin.listen != other.admin.listen, "admin.listen"),
            (
                self.http.tls.is_some() != other.http.tls.is_some(),
                "http.tls",
            ),
            (
                self.resp.tls.is_some() != other.resp.tls.is_some(),
                "resp.tls",
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

    /// It as TOML: what was said and what was not, without a password.
    #[must_use]
    pub fn shown(&self) -> String {
        // Texts, numbers and tables: there is nothing that could not be written.
        toml::to_string(self).unwrap_or_default()
    }

    /// Tells configurations apart: sixteen hexadecimal digits. Passwords are no part of it, as it is told to everybody.
    #[must_use]
    pub fn hash(&self) -> String {
        blake3::hash(self.shown().as_bytes())
            .to_hex()
            .chars()
            .take(16)
            .collect()
    }

    /// A JSON schema of the file, for editors.
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
    fn local_answers_are_divided_by_all_who_share_the_store() {
        let policy = "[policies.api]\nlimits = \"8/hour\"\nfailure = \"local\"\n";
        for store in [
            "url = \"redis://h/?instances=4\"",
            "url = \"redis://h/\"\ninstances = 4",
        ] {
            let rules = tidegate::Rules::new("8/hour".parse().unwrap())
                .failure_policy(FailurePolicy::local(4));
            let book = loaded(&format!("[store]\n{store}\n{policy}"))
                .book()
                .unwrap();
            assert_eq!(book.rules("api"), Some(&rules), "{store}");
        }
    }

    #[test]
    fn a_password_is_no_part_of_the_hash() {
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
