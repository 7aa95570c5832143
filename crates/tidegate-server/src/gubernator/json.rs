//! Messages in JSON: requests in camel case or snake case, responses in snake case with every
//! field, 64-bit numbers as strings.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::proto::pb::gubernator::{
    Algorithm, Behavior, GetRateLimitsReq, GetRateLimitsResp, HealthCheckResp, RateLimitReq,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchJson {
    #[serde(default)]
    requests: Vec<RequestJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RequestJson {
    #[serde(default)]
    name: String,
    #[serde(default, alias = "unique_key")]
    unique_key: String,
    #[serde(default)]
    hits: Option<IntegerJson>,
    #[serde(default)]
    limit: Option<IntegerJson>,
    #[serde(default)]
    duration: Option<IntegerJson>,
    #[serde(default)]
    algorithm: Option<NameJson>,
    #[serde(default)]
    behavior: Option<NameJson>,
    #[serde(default)]
    burst: Option<IntegerJson>,
    #[serde(default)]
    metadata: HashMap<String, String>,
    #[serde(default, alias = "created_at")]
    created_at: Option<IntegerJson>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum IntegerJson {
    Number(i64),
    Text(String),
}

/// A name of an enumeration, or its number.
#[derive(Deserialize)]
#[serde(untagged)]
enum NameJson {
    Number(i32),
    Name(String),
}

fn integer(value: Option<IntegerJson>, name: &str) -> Result<i64, String> {
    match value {
        None => Ok(0),
        Some(IntegerJson::Number(number)) => Ok(number),
        Some(IntegerJson::Text(text)) => text
            .parse()
            .map_err(|_| format!("`{name}` is invalid: expected a number")),
    }
}

fn named(
    value: Option<NameJson>,
    field: &str,
    find: impl Fn(&str) -> Option<i32>,
) -> Result<i32, String> {
    match value {
        None => Ok(0),
        Some(NameJson::Number(number)) => Ok(number),
        Some(NameJson::Name(name)) => {
            find(&name).ok_or_else(|| format!("`{field}` is unknown: {name}"))
        }
    }
}

/// Parses a batch.
pub(crate) fn request_from_json(body: &[u8]) -> Result<GetRateLimitsReq, String> {
    let batch: BatchJson =
        serde_json::from_slice(body).map_err(|error| format!("the body is invalid: {error}"))?;
    let requests = batch.requests.into_iter().map(RequestJson::message);
    Ok(GetRateLimitsReq {
        requests: requests.collect::<Result<_, _>>()?,
    })
}

impl RequestJson {
    fn message(self) -> Result<RateLimitReq, String> {
        let algorithm = |name: &str| Algorithm::from_str_name(name).map(i32::from);
        let behavior = |name: &str| Behavior::from_str_name(name).map(i32::from);
        Ok(RateLimitReq {
            name: self.name,
            unique_key: self.unique_key,
            hits: integer(self.hits, "hits")?,
            limit: integer(self.limit, "limit")?,
            duration: integer(self.duration, "duration")?,
            algorithm: named(self.algorithm, "algorithm", algorithm)?,
            behavior: named(self.behavior, "behavior", behavior)?,
            burst: integer(self.burst, "burst")?,
            metadata: self.metadata,
            created_at: match self.created_at {
                None => None,
                some => Some(integer(some, "createdAt")?),
            },
        })
    }
}

/// Renders the response to a batch.
pub(crate) fn response_json(response: &GetRateLimitsResp) -> Value {
    let responses = response.responses.iter().map(|response| {
        json!({
            "status": response.status().as_str_name(),
            "limit": response.limit.to_string(),
            "remaining": response.remaining.to_string(),
            "reset_time": response.reset_time.to_string(),
            "error": response.error,
            "metadata": response.metadata,
        })
    });
    json!({ "responses": responses.collect::<Vec<_>>() })
}

/// Renders the state of the server.
pub(crate) fn health_json(health: &HealthCheckResp) -> Value {
    json!({
        "status": health.status,
        "message": health.message,
        "peer_count": health.peer_count,
        "advertise_address": health.advertise_address,
    })
}
