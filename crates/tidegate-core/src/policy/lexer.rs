//! Splits a policy's text into words, numbers and signs with their positions.

use std::ops::Range;

use super::error::PolicyError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Letters and underscores, in lower case.
    Word(String),
    /// Digits without the underscores between them, of any length.
    Number(String),
    Slash,
    Equals,
    Semicolon,
}

#[derive(Clone, Debug)]
pub(super) struct Spanned {
    pub(super) token: Token,
    pub(super) span: Range<usize>,
}

pub(super) fn tokens(text: &str) -> Result<Vec<Spanned>, PolicyError> {
    let mut tokens = Vec::new();
    let mut start = 0;
    while let Some(first) = text.get(start..).and_then(|rest| rest.chars().next()) {
        let end = start + length(text, start, first);
        let span = start..end;
        start = end;
        let part = text.get(span.clone()).unwrap_or_default();
        let token = match first {
            c if c.is_whitespace() => continue,
            '/' => Token::Slash,
            '=' => Token::Equals,
            ';' => Token::Semicolon,
            c if c.is_ascii_digit() => number(text, &span, part)?,
            c if is_word(c) => Token::Word(part.to_ascii_lowercase()),
            ',' => {
                let message = "unexpected character ',': expected 1_000 for a thousand, and `;` between limits";
                return Err(PolicyError::at(text, span, message));
            }
            c => {
                let message =
                    format!("unexpected character {c:?}: expected a policy such as `100/minute`");
                return Err(PolicyError::at(text, span, message));
            }
        };
        tokens.push(Spanned { token, span });
    }
    Ok(tokens)
}

/// Returns the length in bytes of the token that starts with `first`.
fn length(text: &str, start: usize, first: char) -> usize {
    let rest = text.get(start..).unwrap_or_default();
    let run = |belongs: fn(char) -> bool| rest.find(|c| !belongs(c)).unwrap_or(rest.len());
    match first {
        c if c.is_ascii_digit() => run(|c| c.is_ascii_digit() || c == '_'),
        c if is_word(c) => run(is_word),
        c => c.len_utf8(),
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn number(text: &str, span: &Range<usize>, part: &str) -> Result<Token, PolicyError> {
    if part.ends_with('_') || part.contains("__") {
        return Err(PolicyError::at(
            text,
            span.clone(),
            format!("misplaced _ in `{part}`: expected it between two digits"),
        ));
    }
    Ok(Token::Number(part.replace('_', "")))
}
