//! Authentication: bearer tokens and their scopes.

use std::time::Duration;

use crate::config::{Config, ConfigError, Scope, TokenConfig};
use crate::secrets::Files;

/// The maximum length of a token.
const MAX_LENGTH: usize = 4_096;
/// The minimum length of a token. Shorter ones can be guessed.
const MIN_LENGTH: usize = 16;

/// The delay of the response to an unknown token.
pub(crate) const FAILED_AUTH_DELAY: Duration = Duration::from_millis(200);

/// The configured tokens. Only their digests are stored, and compared in constant time.
#[derive(Default)]
pub(crate) struct Tokens(Vec<Token>);

struct Token {
    digest: blake3::Hash,
    scopes: Vec<Scope>,
}

/// The access that a token grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Granted,
    /// No token, or an unknown one.
    Unknown,
    /// A known token without the required scope.
    Forbidden,
}

/// Returns `true` for a typical name of an environment variable: `TOKEN`, `TIDEGATE_TOKEN`.
fn is_variable_name(text: &str) -> bool {
    (text.len() <= 12 || text.contains('_'))
        && text.len() <= 64
        && text
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

impl Tokens {
    pub(crate) fn read(config: &Config, files: &mut Files) -> Result<Self, ConfigError> {
        config
            .tokens
            .iter()
            .enumerate()
            .map(|(number, token)| Token::read(number, token, files))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Returns `true` if this scope needs no token.
    pub(crate) fn is_open(&self, scope: Scope) -> bool {
        let has = |scope| self.0.iter().any(|token| token.scopes.contains(&scope));
        // If checks need a token, so do refunds, even if no token has that scope.
        let is_guarded = has(scope) || (scope == Scope::Refund && has(Scope::Check));
        !is_guarded
    }

    /// Returns `true` if no tokens are configured.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the access of a token. Every token is compared, so that the time reveals nothing.
    pub(crate) fn access(&self, shown: Option<&[u8]>, scope: Scope) -> Access {
        if self.is_open(scope) {
            return Access::Granted;
        }
        let Some(shown) = shown.filter(|shown| shown.len() <= MAX_LENGTH) else {
            return Access::Unknown;
        };
        let digest = blake3::hash(shown);
        let mut access = Access::Unknown;
        for token in &self.0 {
            // Hashes are compared in constant time.
            if token.digest == digest {
                access = match (access, token.scopes.contains(&scope)) {
                    (Access::Granted, _) | (_, true) => Access::Granted,
                    _ => Access::Forbidden,
                };
            }
        }
        access
    }
}

impl Token {
    fn read(number: usize, config: &TokenConfig, files: &mut Files) -> Result<Self, ConfigError> {
        let error = |message: String| ConfigError::Values(format!("token[{number}]: {message}"));
        let text = match (&config.file, &config.env) {
            (Some(file), _) => {
                let content = files
                    .read(file)
                    .map_err(|cause| error(format!("{}: {cause}", file.display())))?;
                String::from_utf8(content)
                    .map_err(|_| error(format!("{}: expected text", file.display())))?
            }
            (None, Some(variable)) => {
                let missing = |_| match is_variable_name(variable) {
                    true => error(format!("the environment variable {variable} is not set")),
                    // The text may be the token itself.
                    false => error(
                        "`env` is invalid: expected the name of an environment variable".to_owned(),
                    ),
                };
                std::env::var(variable).map_err(missing)?
            }
            (None, None) => return Err(error("expected either `file` or `env`".to_owned())),
        };
        let text = text.trim();
        if !(MIN_LENGTH..=MAX_LENGTH).contains(&text.len()) {
            return Err(error(format!(
                "the token is too short or too long: expected {MIN_LENGTH} to {MAX_LENGTH} characters"
            )));
        }
        Ok(Self {
            digest: blake3::hash(text.as_bytes()),
            scopes: config.scopes.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_grants_only_its_scopes() {
        let token = |text: &str, scopes: &[Scope]| Token {
            digest: blake3::hash(text.as_bytes()),
            scopes: scopes.to_vec(),
        };
        let tokens = Tokens(vec![
            token("one", &[Scope::Check]),
            token("two", &[Scope::Check, Scope::Admin]),
        ]);
        assert_eq!(tokens.access(Some(b"one"), Scope::Check), Access::Granted);
        assert_eq!(tokens.access(Some(b"one"), Scope::Admin), Access::Forbidden);
        assert_eq!(tokens.access(Some(b"two"), Scope::Admin), Access::Granted);
        for shown in [
            None,
            Some(&b""[..]),
            Some(b"on"),
            Some(b"one "),
            Some(b"onetwo"),
        ] {
            assert_eq!(tokens.access(shown, Scope::Check), Access::Unknown);
        }
        assert_eq!(
            Tokens::default().access(None, Scope::Admin),
            Access::Granted
        );
        // The scope `check` does not include refunds.
        assert_eq!(
            tokens.access(Some(b"one"), Scope::Refund),
            Access::Forbidden
        );
        assert_eq!(tokens.access(None, Scope::Refund), Access::Unknown);
        let refunds = Tokens(vec![token("one", &[Scope::Check, Scope::Refund])]);
        assert_eq!(refunds.access(Some(b"one"), Scope::Refund), Access::Granted);
        let only_admin = Tokens(vec![token("two", &[Scope::Admin])]);
        assert_eq!(only_admin.access(None, Scope::Check), Access::Granted);
    }
}
