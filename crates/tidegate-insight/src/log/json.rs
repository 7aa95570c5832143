//! Logs of one JSON object per line, and traces.
//!
//! Each field has the names that nginx (with a common configuration), Caddy, Traefik and Envoy
//! give it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Field, Fields, LineError, Record, path_of, time};

/// The names of the time, most precise first.
const TIMES: [&str; 9] = [
    "ts",
    "msec",
    "time_iso8601",
    "StartUTC",
    "start_time",
    "timestamp",
    "@timestamp",
    "time",
    "time_local",
];
const ADDRESSES: [&str; 8] = [
    "request.client_ip",
    "request.remote_ip",
    "remote_addr",
    "ClientHost",
    "client_ip",
    "downstream_remote_address_without_port",
    "downstream_remote_address",
    "remote_ip",
];
const USERS: [&str; 5] = [
    "user_id",
    "remote_user",
    "ClientUsername",
    "user",
    "auth_user",
];
const METHODS: [&str; 4] = [
    "request.method",
    "request_method",
    "RequestMethod",
    "method",
];
const TARGETS: [&str; 8] = [
    "request.uri",
    "request_uri",
    "RequestPath",
    "x_envoy_original_path",
    "path",
    "uri",
    "url",
    "target",
];
const HOSTS: [&str; 6] = [
    "request.host",
    "host",
    "RequestHost",
    "authority",
    "server_name",
    "http_host",
];
const BYTES: [&str; 6] = [
    "size",
    "body_bytes_sent",
    "bytes_sent",
    "DownstreamContentSize",
    "bytes",
    "response_size",
];

/// Returns `true` if a JSON line looks like one of a trace.
pub(super) fn is_trace(line: &[u8]) -> bool {
    let start = &line[..line.len().min(64)];
    start.windows(7).any(|part| part == b"\"at_us\"")
}

pub(super) fn parse(line: &[u8]) -> Result<Record<'_>, LineError> {
    let value: Value = serde_json::from_slice(line).map_err(|_| LineError::NotJson)?;
    if !value.is_object() {
        return Err(LineError::NotJson);
    }
    let times = TIMES.iter().filter_map(|name| lookup(&value, name));
    let parsed = times.filter_map(|found| match found {
        Value::String(text) => time::any(text),
        Value::Number(number) => time::any(&number.to_string()),
        _ => None,
    });
    let (at_us, is_whole_second) = parsed.take(1).next().ok_or(LineError::NoTime)?;
    Ok(Record {
        at_us,
        is_whole_second,
        fields: Fields::Json(value),
    })
}

/// Finds a value by its name, or by a path with dots.
fn lookup<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    if let Some(found) = value.get(path) {
        return Some(found);
    }
    let mut found = value;
    for name in path.split('.') {
        found = match found {
            Value::Array(list) => list.get(name.parse::<usize>().ok()?)?,
            _ => found.get(name)?,
        };
    }
    Some(found)
}

fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(flag) => Some(Cow::Borrowed(if *flag { "true" } else { "false" })),
        // Caddy writes a header as a list of its values.
        Value::Array(list) => list.first().and_then(text),
        Value::Null | Value::Object(_) => None,
    }
}

fn first_of<'v>(value: &'v Value, names: &[&str]) -> Option<Cow<'v, str>> {
    let found = names.iter().filter_map(|name| text(lookup(value, name)?));
    found
        .filter(|text| !text.is_empty() && text != "-")
        .take(1)
        .next()
}

pub(super) fn field<'v>(value: &'v Value, field: &Field) -> Option<Cow<'v, str>> {
    match field {
        Field::Address => first_of(value, &ADDRESSES),
        Field::User => first_of(value, &USERS),
        Field::Method => first_of(value, &METHODS).or_else(|| request_word(value, 0)),
        Field::Path => {
            let target = first_of(value, &TARGETS).or_else(|| request_word(value, 1))?;
            Some(match target {
                Cow::Borrowed(target) => Cow::Borrowed(path_of(target)),
                Cow::Owned(target) => Cow::Owned(path_of(&target).to_owned()),
            })
        }
        Field::Host => first_of(value, &HOSTS),
        Field::Bytes => first_of(value, &BYTES),
        Field::Header(name) => header(value, name),
        Field::Json(path) => lookup(value, path).and_then(text),
        Field::Key => value.get("key").and_then(text),
        Field::Cost => value.get("cost").and_then(text),
    }
}

/// Returns a word of nginx's `"request": "GET / HTTP/1.1"`.
fn request_word(value: &Value, index: usize) -> Option<Cow<'_, str>> {
    let request = value.get("request")?.as_str()?;
    request.split_whitespace().nth(index).map(Cow::Borrowed)
}

/// Finds a header by the conventions of the formats: `http_x_api_key` (nginx), `request.headers`
/// (Caddy), `request_X-Api-Key` (Traefik), `x_api_key` (Envoy). Case does not matter.
fn header<'v>(value: &'v Value, name: &str) -> Option<Cow<'v, str>> {
    let folded = name.replace('-', "_");
    let with_prefixes = [
        format!("http_{folded}"),
        format!("request_{folded}"),
        folded,
    ];
    let headers = lookup(value, "request.headers").and_then(Value::as_object);
    let nested = headers.into_iter().flatten();
    let nested = nested.filter(|(key, _)| key.eq_ignore_ascii_case(name));
    let flat = value.as_object().into_iter().flatten().filter(|(key, _)| {
        let key = key.to_ascii_lowercase().replace('-', "_");
        with_prefixes.contains(&key)
    });
    nested.chain(flat).find_map(|(_, value)| text(value))
}

/// The fields of a line of a trace.
#[derive(Clone, Debug)]
pub(super) struct TraceFields<'a> {
    key: Cow<'a, str>,
    policy: Option<Cow<'a, str>>,
    cost: Option<&'a str>,
}

#[derive(Deserialize)]
struct TraceLine<'a> {
    at_us: u64,
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    cost: Option<&'a RawValue>,
    #[serde(borrow)]
    policy: Option<Cow<'a, str>>,
    refund: Option<serde::de::IgnoredAny>,
    charge: Option<serde::de::IgnoredAny>,
    settle: Option<serde::de::IgnoredAny>,
}

pub(super) fn parse_trace(line: &[u8]) -> Result<Record<'_>, LineError> {
    let line: TraceLine<'_> = serde_json::from_slice(line).map_err(|_| LineError::NotJson)?;
    if line.refund.is_some() || line.charge.is_some() || line.settle.is_some() {
        return Err(LineError::NotARequest);
    }
    if line.at_us > u64::MAX / 1_000 {
        return Err(LineError::NoTime);
    }
    Ok(Record {
        at_us: line.at_us,
        is_whole_second: false,
        fields: Fields::Trace(TraceFields {
            key: line.key,
            policy: line.policy,
            cost: line.cost.map(RawValue::get),
        }),
    })
}

impl TraceFields<'_> {
    pub(super) fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    pub(super) fn field(&self, field: &Field) -> Option<Cow<'_, str>> {
        match field {
            Field::Key => Some(Cow::Borrowed(&self.key)),
            Field::Cost => self.cost.map(Cow::Borrowed),
            Field::Json(name) if name == "policy" => self.policy.as_deref().map(Cow::Borrowed),
            _ => None,
        }
    }
}
