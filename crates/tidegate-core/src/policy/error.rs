//! What is wrong with a policy, and where.

use std::fmt;
use std::ops::Range;

/// A policy that does not parse or is out of bounds.
///
/// Shown, it says what was expected and points at the offending part of the text:
///
/// ```
/// let error = "100/fortnight".parse::<tidegate_core::Policy>().unwrap_err();
/// assert_eq!(error.span(), Some(4..13));
/// assert_eq!(error.to_string(), "\
/// unknown unit `fortnight`: expected ms, second, minute, hour, day, week, month or year
///   100/fortnight
///       ^^^^^^^^^");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PolicyError {
    message: String,
    place: Option<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    text: String,
    span: Range<usize>,
}

/// How many characters of a text are shown on each side of the offending part, and of that part at most.
const CONTEXT: usize = 60;

impl PolicyError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            place: None,
        }
    }

    /// `span` is a range of bytes of `text`, at character boundaries.
    pub(crate) fn at(text: &str, span: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            place: Some(Place {
                text: text.to_owned(),
                span,
            }),
        }
    }

    /// What is wrong and what was expected, in one line, without the text.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The offending part of the text, as a range of its bytes; `None` for a policy that was not read from text.
    #[must_use]
    pub fn span(&self) -> Option<Range<usize>> {
        self.place.as_ref().map(|place| place.span.clone())
    }
}

impl std::error::Error for PolicyError {}

/// As it is displayed: what `unwrap` and a `main` that fails print is for people, too.
impl fmt::Debug for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.place.as_ref().map_or(Ok(()), |place| place.fmt(f))
    }
}

impl Place {
    fn part(&self, range: Range<usize>) -> &str {
        self.text.get(range).unwrap_or_default()
    }
}

impl fmt::Display for Place {
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

/// The text's characters, with those that would move the cursor made visible, so that the carets stand right.
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
