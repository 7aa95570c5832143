//! Who may ask: bearer tokens, each with what it may be used for.

use std::time::Duration;

use crate::config::{Config, ConfigError, Scope, TokenConfig};
use crate::secrets::Files;

/// Longer ones are not tokens.
const LONGEST: usize = 4_096;
/// Shorter ones can be guessed.
const SHORTEST: usize = 16;

/// The wait of a client that has shown an unknown token.
pub(crate) const FAILED_AUTH_DELAY: Duration = Duration::from_millis(200);

/// The tokens there are. Only their digests are kept, and compared in constant time.
#[derive(Default)]
pub(crate) struct Tokens(Vec<Token>);

struct Token {
    digest: blake3::Hash,
    scopes: Vec<Scope>,
}

/// What somebody may do who has shown this or that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Granted,
    /// Nothing was shown, or nothing that is known.
    Unknown,
    /// A token that is known, and not for this.
    Forbidden,
}

/// Returns true for names as people give them: `TOKEN`, `TIDEGATE_TOKEN`.
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

    /// Whether anybody who reaches a listener may do this.
    pub(crate) fn is_open(&self, scope: Scope) -> bool {
        let has = |scope| self.0.iter().any(|token| token.scopes.contains(&scope));
        // Where checks need a token, so do refunds, even if none is for them.
        let is_guarded = has(scope) || (scope == Scope::Refund && has(Scope::Check));
        !is_guarded
    }

    /// Whether there is none at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What who shows this may do. Every token is compared with, so that time tells nothing of any.
    pub(crate) fn access(&self, shown: Option<&[u8]>, scope: Scope) -> Access {
        if self.is_open(scope) {
            return Access::Granted;
        }
        let Some(shown) = shown.filter(|shown| shown.len() <= LONGEST) else {
            return Access::Unknown;
        };
        let digest = blake3::hash(shown);
        let mut access = Access::Unknown;
        for token in &self.0 {
            // The comparison of two hashes takes constant time.
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
                    true => error(format!("the environment has no variable {variable}")),
                    // It may be the token itself.
                    false => error(
                        "`env` is invalid: expected the name of an environment variable".to_owned(),
                    ),
                };
                std::env::var(variable).map_err(missing)?
            }
            (None, None) => return Err(error("expected either `file` or `env`".to_owned())),
        };
        let text = text.trim();
        if !(SHORTEST..=LONGEST).contains(&text.len()) {
            return Err(error(format!(
                "the token is too short or too long: expected {SHORTEST} to {LONGEST} characters"
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
    fn a_token_is_for_its_scopes() {
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
        // A refund is more than a check.
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
