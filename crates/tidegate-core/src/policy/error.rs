//! The error for an invalid policy, with the position of the mistake.

use std::fmt;
use std::ops::Range;

/// The error for a policy that does not parse or is out of bounds.
///
/// Its message says what was expected and points at the offending part of the text.
///
/// # Examples
///
/// ```
/// let error = "100/fortnight".parse::<tidegate::Policy>().unwrap_err();
/// assert_eq!(error.span(), Some(4..13));
/// assert_eq!(error.to_string(), "\
/// unknown unit `fortnight`: expected ms, second, minute, hour, day, week, month or year
///   100/fortnight
///       ^^^^^^^^^");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PolicyError {
    message: String,
    position: Option<Position>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    text: String,
    span: Range<usize>,
}

/// The number of characters shown on each side of the offending part, and at most of the part
/// itself.
const CONTEXT: usize = 60;

impl PolicyError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            position: None,
        }
    }

    /// Creates an error at `span`, a range of bytes of `text` at character boundaries.
    pub(crate) fn at(text: &str, span: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            position: Some(Position {
                text: text.to_owned(),
                span,
            }),
        }
    }

    /// Returns the message in one line, without the text of the policy.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Policy;
    ///
    /// let error = "100/fortnight".parse::<Policy>().unwrap_err();
    /// assert!(error.message().starts_with("unknown unit `fortnight`"));
    /// ```
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the offending part as a range of bytes, or `None` if the policy was not parsed from
    /// text.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Policy;
    ///
    /// let error = "100/fortnight".parse::<Policy>().unwrap_err();
    /// assert_eq!(error.span(), Some(4..13));
    /// ```
    #[must_use]
    pub fn span(&self) -> Option<Range<usize>> {
        self.position.as_ref().map(|position| position.span.clone())
    }
}

impl std::error::Error for PolicyError {}

/// Prints the display form, so that `unwrap` and a failing `main` show a readable message.
impl fmt::Debug for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.position
            .as_ref()
            .map_or(Ok(()), |position| position.fmt(f))
    }
}

impl Position {
    fn part(&self, range: Range<usize>) -> &str {
        self.text.get(range).unwrap_or_default()
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = printable(self.part(0..self.span.start));
        let offending = printable(self.part(self.span.clone()));
        let after = printable(self.part(self.span.end..self.text.len()));

        let skipped = before.len().saturating_sub(CONTEXT);
        let before: String = if skipped > 0 {
            "…"
                .chars()
                .chain(before[skipped..].iter().copied())
                .collect()
        } else {
            before.iter().collect()
        };
        let shown: String = offending.iter().take(CONTEXT).collect();
        let cut = offending.len() > CONTEXT || after.len() > CONTEXT;
        let after: String = if offending.len() > CONTEXT {
            String::new()
        } else {
            after.iter().take(CONTEXT).collect()
        };

        let ellipsis = if cut { "…" } else { "" };
        let carets = "^".repeat(shown.chars().count().max(1));
        write!(
            f,
            "\n  {before}{shown}{after}{ellipsis}\n  {:indent$}{carets}",
            "",
            indent = before.chars().count()
        )
    }
}

/// Replaces characters that would move the cursor, so that the carets line up.
fn printable(text: &str) -> Vec<char> {
    text.chars()
        .map(|c| {
            if c.is_whitespace() {
                ' '
            } else if c.is_control() {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}
