//! Expressions for the key of a request: `address`, `address/64`, `user+path:/api/*`.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use super::{ExpressionError, Field, Record};

/// Selects the key of a request.
///
/// # Examples
///
/// ```
/// use tidegate_insight::log::{KeyExpression, LogFormat};
///
/// let line = br#"2001:db8::1 - - [14/Nov/2023:22:13:20 +0000] "GET /a?b HTTP/1.1" 200 5 "-" "x""#;
/// let record = LogFormat::Combined.parse(line)?;
/// let mut key = String::new();
/// let expression: KeyExpression = "address/64+path".parse()?;
/// assert!(expression.write(&record, &mut key));
/// assert_eq!(key, "2001:db8::/64 /a");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyExpression {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Field(Field),
    /// The address, with IPv6 cut to a prefix of this length.
    Network(u8),
    /// The segments of the path that `*` matches. Other paths have no key.
    Pattern(Vec<String>),
}

impl FromStr for KeyExpression {
    type Err = ExpressionError;

    fn from_str(text: &str) -> Result<Self, ExpressionError> {
        let parts = text.split('+').map(|part| part.trim().parse());
        let parts: Vec<Part> = parts.collect::<Result<_, _>>()?;
        Ok(Self { parts })
    }
}

impl FromStr for Part {
    type Err = ExpressionError;

    fn from_str(text: &str) -> Result<Self, ExpressionError> {
        if let Some(prefix) = text.strip_prefix("address/") {
            let length = prefix
                .parse()
                .ok()
                .filter(|length| (1..=128).contains(length));
            return length.map(Self::Network).ok_or_else(|| ExpressionError {
                text: text.to_owned(),
                expected: "a prefix length of IPv6 from 1 to 128, as in address/64",
            });
        }
        if let Some(pattern) = text.strip_prefix("path:") {
            if !pattern.starts_with('/') {
                return Err(ExpressionError {
                    text: text.to_owned(),
                    expected: "a path such as path:/users/*/orders; a final /** matches the rest",
                });
            }
            return Ok(Self::Pattern(
                pattern.split('/').map(str::to_owned).collect(),
            ));
        }
        text.parse().map(Self::Field)
    }
}

impl KeyExpression {
    /// Writes the key of a request. Returns `false` if a field is missing or the path does not
    /// match.
    pub fn write(&self, record: &Record<'_>, key: &mut String) -> bool {
        key.clear();
        self.parts.iter().enumerate().all(|(index, part)| {
            if index > 0 {
                key.push(' ');
            }
            part.write(record, key).is_some()
        })
    }
}

impl Part {
    fn write(&self, record: &Record<'_>, key: &mut String) -> Option<()> {
        match self {
            Self::Field(Field::Address) => {
                let address = record.field(&Field::Address)?;
                key.push_str(without_port(&address));
            }
            Self::Field(field) => key.push_str(&record.field(field)?),
            Self::Network(length) => {
                let address = record.field(&Field::Address)?;
                write_network(without_port(&address), *length, key);
            }
            Self::Pattern(pattern) => write_matched(&record.field(&Field::Path)?, pattern, key)?,
        }
        Some(())
    }
}

/// Removes the port that Envoy writes: `192.0.2.1:5555`, `[2001:db8::1]:5555`.
fn without_port(address: &str) -> &str {
    if let Some(rest) = address.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    match address.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') => host,
        _ => address,
    }
}

fn write_network(address: &str, length: u8, key: &mut String) {
    match address.parse() {
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_none() => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            let network = Ipv6Addr::from_bits(v6.to_bits() & mask);
            let _ = write!(key, "{network}/{length}");
        }
        _ => key.push_str(address),
    }
}

/// Writes the segments that `*` matches. A pattern without one writes the path.
fn write_matched(path: &str, pattern: &[String], key: &mut String) -> Option<()> {
    let mut segments = path.split('/');
    let start = key.len();
    for (index, part) in pattern.iter().enumerate() {
        if part == "**" && index + 1 == pattern.len() {
            key.truncate(start);
            key.push_str(path);
            return Some(());
        }
        let segment = segments.next()?;
        match part.as_str() {
            "*" => {
                key.push('/');
                key.push_str(segment);
            }
            _ if part == segment => {}
            _ => return None,
        }
    }
    if segments.next().is_some() {
        return None;
    }
    if key.len() == start {
        key.push_str(path);
    }
    Some(())
}
