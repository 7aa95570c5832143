//! Names of policies, tiers and namespaces.

use std::fmt;
use std::sync::Arc;

/// The maximum length of a name, in bytes.
const LONGEST: usize = 64;

/// The name of a policy, a tier or a namespace.
///
/// A name has 1 to 64 letters, digits, `.`, `_` and `-`, so it can be used unescaped in a header, a
/// metric label and a Redis key. Clones share the text.
///
/// # Examples
///
/// ```
/// use tidegate::Name;
///
/// assert_eq!(Name::new("per-address")?.as_str(), "per-address");
/// assert!(Name::new("per address").is_err());
/// # Ok::<(), tidegate::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// The error for a text that is not a valid [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a name: expected 1 to {LONGEST} letters, digits, `.`, `_` or `-`")]
pub struct NameError {
    text: String,
}

impl Name {
    /// Creates a name.
    ///
    /// # Errors
    ///
    /// Returns an error if `text` is empty, longer than 64 bytes, or contains a character other
    /// than letters, digits, `.`, `_` and `-`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Name;
    ///
    /// assert_eq!(Name::new("api.v1")?.as_str(), "api.v1");
    /// assert!(Name::new("two words").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(text: &str) -> Result<Self, NameError> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_good) {
            return Ok(Self(text.into()));
        }
        // Control characters are dropped so that the error stays on one line.
        let shown = text
            .chars()
            .filter(|c| !c.is_control())
            .take(LONGEST)
            .collect();
        Err(NameError { text: shown })
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl std::str::FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_everywhere() {
        for good in ["api", "per-address", "v1.search_2", "A", &"x".repeat(64)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            " ",
            "a b",
            "a:b",
            "a/b",
            "a~b",
            "\"",
            "a\r\nb",
            "ä",
            "{a}",
            &"x".repeat(65),
        ] {
            let error = Name::new(bad).unwrap_err().to_string();
            assert!(
                error.contains("expected") && !error.contains(['\r', '\n']),
                "{error}"
            );
        }
    }
}
