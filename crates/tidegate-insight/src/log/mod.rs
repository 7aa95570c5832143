//! Access logs: one request per line, in the formats of nginx, Apache, Caddy, Traefik and Envoy,
//! and Tidegate's own traces.
//!
//! A line is parsed into a [`Record`] with borrowed fields. [`KeyExpression`] and
//! [`CostExpression`] select the key and the cost from it.

mod combined;
mod cost;
mod json;
mod key;
mod time;

use std::borrow::Cow;
use std::str::FromStr;

pub use cost::CostExpression;
pub use key::KeyExpression;
pub use time::{parse_time, utc_seconds};

/// The format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Common and combined log format of nginx and Apache.
    Combined,
    /// One JSON object per line: nginx, Caddy, Traefik, Envoy.
    Json,
    /// Traces of `tidegate simulate` and `tidegate serve --record`.
    Trace,
}

impl LogFormat {
    /// Guesses the format of a line.
    #[must_use]
    pub fn of_line(line: &[u8]) -> Self {
        match line.first() {
            Some(b'{') if json::is_trace(line) => Self::Trace,
            Some(b'{') => Self::Json,
            _ => Self::Combined,
        }
    }

    /// Parses a line.
    ///
    /// # Errors
    ///
    /// Returns what is missing or invalid.
    pub fn parse<'a>(self, line: &'a [u8]) -> Result<Record<'a>, LineError> {
        match self {
            Self::Combined => combined::parse(line),
            Self::Json => json::parse(line),
            Self::Trace => json::parse_trace(line),
        }
    }
}

/// The reason why a line cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LineError {
    /// The line is not in the common or combined log format.
    #[error("not in the combined log format: expected ADDRESS - USER [TIME] \"REQUEST\" …")]
    NotCombined,
    /// The line is not a JSON object.
    #[error("invalid JSON: expected one object per line")]
    NotJson,
    /// The time is missing or invalid.
    #[error("no valid time: expected at_us, time, ts, time_iso8601, msec, StartUTC or start_time")]
    NoTime,
    /// The key is missing.
    #[error("no key: the fields of --key are missing or empty")]
    NoKey,
    /// The cost is missing or invalid.
    #[error("no valid cost: expected a number of at most 1,000,000,000")]
    NoCost,
    /// The line is too long.
    #[error("longer than 1 MiB")]
    TooLong,
    /// The check belongs to another policy of the trace.
    #[error("a check of another policy than --recorded")]
    OtherPolicy,
    /// The line of a trace takes back or settles a cost.
    #[error("not a request: refunds, charges and settlements are left out")]
    NotARequest,
}

/// One request of a log.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// The time in microseconds since 1970.
    pub at_us: u64,
    /// True if the log has whole seconds only.
    pub is_whole_second: bool,
    fields: Fields<'a>,
}

#[derive(Clone, Debug)]
enum Fields<'a> {
    Combined(combined::Combined<'a>),
    Json(serde_json::Value),
    Trace(json::TraceFields<'a>),
}

/// A field of a request, whatever the format calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// The client's address.
    Address,
    /// The authenticated user.
    User,
    /// The method.
    Method,
    /// The path without the query.
    Path,
    /// The host.
    Host,
    /// The bytes sent.
    Bytes,
    /// A request header, in lower case.
    Header(String),
    /// A field of a JSON object, with dots between levels.
    Json(String),
    /// The key of a trace.
    Key,
    /// The cost of a trace.
    Cost,
}

impl Record<'_> {
    /// Returns the policy of a recorded check, or `None` for other lines.
    #[must_use]
    pub fn recorded_policy(&self) -> Option<&str> {
        match &self.fields {
            Fields::Trace(trace) => trace.policy(),
            _ => None,
        }
    }

    /// Returns a field, or `None` if it is missing, empty or `-`.
    #[must_use]
    pub fn field(&self, field: &Field) -> Option<Cow<'_, str>> {
        let value = match &self.fields {
            Fields::Combined(combined) => combined.field(field),
            Fields::Json(value) => json::field(value, field),
            Fields::Trace(trace) => trace.field(field),
        };
        value.filter(|text| !text.is_empty() && text != "-")
    }
}

/// An expression for keys or costs that is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`: expected {expected}")]
pub struct ExpressionError {
    pub(crate) text: String,
    pub(crate) expected: &'static str,
}

impl FromStr for Field {
    type Err = ExpressionError;

    fn from_str(text: &str) -> Result<Self, ExpressionError> {
        Ok(match text.split_once(':') {
            None => match text {
                "address" => Self::Address,
                "user" => Self::User,
                "method" => Self::Method,
                "path" => Self::Path,
                "host" => Self::Host,
                "bytes" => Self::Bytes,
                "key" => Self::Key,
                "cost" => Self::Cost,
                _ => return Err(Self::unknown(text)),
            },
            Some(("header", name)) if !name.is_empty() => Self::Header(name.to_lowercase()),
            Some(("field", name)) if !name.is_empty() => Self::Json(name.to_owned()),
            Some(_) => return Err(Self::unknown(text)),
        })
    }
}

impl Field {
    fn unknown(text: &str) -> ExpressionError {
        ExpressionError {
            text: text.to_owned(),
            expected: "address, address/64, user, method, host, path, path:/PATTERN/*, header:NAME, \
                       field:NAME or key, joined with +",
        }
    }
}

/// Returns the path of a request target, without query and origin.
fn path_of(target: &str) -> &str {
    let path = match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |slash| &rest[slash..]),
        None => target,
    };
    path.split(['?', '#']).next().unwrap_or(path)
}

#[cfg(test)]
mod tests;
