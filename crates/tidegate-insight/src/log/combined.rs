//! The common and combined log formats: `ADDRESS - USER [TIME] "REQUEST" STATUS BYTES "REFERER"
//! "AGENT"`, also with a virtual host in front and more fields behind.

use std::borrow::Cow;

use super::{Field, Fields, LineError, Record, path_of, time};

#[derive(Clone, Debug)]
pub(super) struct Combined<'a> {
    host: Option<&'a [u8]>,
    address: &'a [u8],
    user: &'a [u8],
    request: &'a [u8],
    bytes: &'a [u8],
    referer: &'a [u8],
    agent: &'a [u8],
}

pub(super) fn parse(line: &[u8]) -> Result<Record<'_>, LineError> {
    let fields = split(line).ok_or(LineError::NotCombined)?;
    let (combined, at) = fields;
    let (at_us, is_whole_second) = time::common_log(at)
        .or_else(|| time::any(std::str::from_utf8(at).ok()?))
        .ok_or(LineError::NoTime)?;
    Ok(Record {
        at_us,
        is_whole_second,
        fields: Fields::Combined(combined),
    })
}

/// Splits a line into its fields and the text of its time.
fn split(line: &[u8]) -> Option<(Combined<'_>, &[u8])> {
    let open = line.iter().position(|byte| *byte == b'[')?;
    let close = open + line[open..].iter().position(|byte| *byte == b']')?;
    let mut before = line[..open]
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    let (first, second, third) = (before.next()?, before.next()?, before.next()?);
    // A user may contain spaces. With a virtual host there are four words, and the third is `-`.
    let rest: Vec<&[u8]> = before.collect();
    let (host, address, user) = match rest.last() {
        Some(user) if third == b"-" => (Some(first), second, *user),
        Some(_) => (None, first, last_words(&line[..open], first, second)),
        None => (None, first, third),
    };
    let (request, after) = quoted(&line[close + 1..])?;
    let mut words = after
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    let (_status, bytes) = (words.next()?, words.next().unwrap_or(b"-"));
    let (referer, after) = quoted(after).unwrap_or((b"", b""));
    let (agent, _) = quoted(after).unwrap_or((b"", b""));
    let combined = Combined {
        host,
        address,
        user,
        request,
        bytes,
        referer,
        agent,
    };
    Some((combined, &line[open + 1..close]))
}

/// Returns the text behind the first two words.
fn last_words<'a>(text: &'a [u8], first: &[u8], second: &[u8]) -> &'a [u8] {
    let text = text.trim_ascii();
    let rest = text
        .get(first.len()..)
        .unwrap_or_default()
        .trim_ascii_start();
    rest.get(second.len()..).unwrap_or_default().trim_ascii()
}

/// Returns the next quoted text, and everything behind it. A backslash escapes a quote.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = text.iter().position(|byte| *byte == b'"')? + 1;
    let mut is_escaped = false;
    for (index, byte) in text.iter().enumerate().skip(start) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some((&text[start..index], &text[index + 1..])),
            _ => {}
        }
    }
    None
}

impl Combined<'_> {
    pub(super) fn field(&self, field: &Field) -> Option<Cow<'_, str>> {
        let bytes = match field {
            Field::Address => self.address,
            Field::User => self.user,
            Field::Host => self.host?,
            Field::Bytes => self.bytes,
            Field::Method => self.request_words().next()?,
            Field::Path => {
                let target = self.request_words().nth(1)?;
                return match String::from_utf8_lossy(target) {
                    Cow::Borrowed(target) => Some(Cow::Borrowed(path_of(target))),
                    Cow::Owned(target) => Some(Cow::Owned(path_of(&target).to_owned())),
                };
            }
            Field::Header(name) => match name.as_str() {
                "user-agent" => self.agent,
                "referer" => self.referer,
                _ => return None,
            },
            Field::Json(_) | Field::Key | Field::Cost => return None,
        };
        Some(String::from_utf8_lossy(bytes))
    }

    fn request_words(&self) -> impl Iterator<Item = &[u8]> {
        self.request
            .split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty())
    }
}
