//! envoyproxy/ratelimit's HTTP endpoints: `/json`, `/healthcheck`, `/rlconfig` and `/stats`.

use std::fmt::Write;

use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::Full;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Response;
use super::checks::Caller;
use super::problem::Problem;
use crate::descriptors::{Domains, Rule, RuleLimit, stat_name};
use crate::grpc;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::proto::envoy::r#type::v3::RateLimitUnit;
use crate::server::Server;

/// `POST /json`: `ShouldRateLimit` with messages in JSON. The status tells the decision.
pub(super) async fn answer(
    caller: Caller<'_>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, Problem> {
    let request: RequestJson = serde_json::from_slice(body)
        .map_err(|error| Problem::bad(format!("the body is invalid: {error}")))?;
    let decided = grpc::should_rate_limit(caller.grpc(headers), request.message()?).await;
    let message = decided.map_err(|status| super::peers::problem(&status))?;
    let mut response = super::response::json(&response_json(&message));
    if message.overall_code() == Code::OverLimit {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        let retry_after = message.response_headers_to_add.iter();
        let mut retry_after = retry_after.filter(|header| header.key == "retry-after");
        if let Some(seconds) = retry_after.next()
            && let Ok(value) = HeaderValue::from_str(&seconds.value)
        {
            let headers = response.headers_mut();
            headers.insert(http::header::RETRY_AFTER, value);
        }
    }
    Ok(response)
}

/// A request in JSON. Names may be in camel case or in snake case, and numbers may be strings.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RequestJson {
    #[serde(default)]
    domain: Option<String>,
    #[serde(default)]
    descriptors: Option<Vec<DescriptorJson>>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: Option<NumberJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct DescriptorJson {
    #[serde(default)]
    entries: Option<Vec<EntryJson>>,
    #[serde(default)]
    limit: Option<LimitJson>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: Option<NumberJson>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryJson {
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct LimitJson {
    #[serde(default, alias = "requests_per_unit")]
    requests_per_unit: Option<NumberJson>,
    #[serde(default)]
    unit: Option<UnitJson>,
    #[serde(default, alias = "unit_multiplier")]
    unit_multiplier: Option<NumberJson>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberJson {
    Number(u64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum UnitJson {
    Number(i32),
    Name(String),
}

impl NumberJson {
    fn value(&self, name: &str) -> Result<u64, Problem> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Text(text) => text
                .parse()
                .map_err(|_| Problem::bad(format!("`{name}` is invalid: expected a number"))),
        }
    }

    fn small(&self, name: &str) -> Result<u32, Problem> {
        u32::try_from(self.value(name)?).map_err(|_| {
            Problem::bad(format!(
                "`{name}` is too large: expected at most {}",
                u32::MAX
            ))
        })
    }
}

impl RequestJson {
    fn message(self) -> Result<RateLimitRequest, Problem> {
        let descriptors = self.descriptors.unwrap_or_default().into_iter();
        let hits = self.hits_addend.map(|hits| hits.small("hitsAddend"));
        Ok(RateLimitRequest {
            domain: self.domain.unwrap_or_default(),
            descriptors: descriptors
                .map(DescriptorJson::message)
                .collect::<Result<_, _>>()?,
            hits_addend: hits.transpose()?.unwrap_or(0),
        })
    }
}

impl DescriptorJson {
    fn message(self) -> Result<RateLimitDescriptor, Problem> {
        let entries = self.entries.unwrap_or_default().into_iter();
        let hits = self.hits_addend.map(|hits| hits.value("hitsAddend"));
        Ok(RateLimitDescriptor {
            entries: entries
                .map(|entry| Entry {
                    key: entry.key.unwrap_or_default(),
                    value: entry.value.unwrap_or_default(),
                })
                .collect(),
            limit: self.limit.map(LimitJson::message).transpose()?,
            hits_addend: hits.transpose()?,
            is_negative_hits: self.is_negative_hits.unwrap_or(false),
        })
    }
}

impl LimitJson {
    fn message(self) -> Result<RateLimitOverride, Problem> {
        let requests = self
            .requests_per_unit
            .map(|number| number.small("requestsPerUnit"));
        let multiplier = self
            .unit_multiplier
            .map(|number| number.small("unitMultiplier"));
        let unit = match self.unit {
            None => 0,
            Some(UnitJson::Number(number)) => number,
            Some(UnitJson::Name(name)) => RateLimitUnit::from_str_name(&name)
                .ok_or_else(|| Problem::bad("`unit` is unknown: expected SECOND to YEAR"))?
                .into(),
        };
        Ok(RateLimitOverride {
            requests_per_unit: requests.transpose()?.unwrap_or(0),
            unit,
            unit_multiplier: multiplier.transpose()?,
        })
    }
}

/// Returns a response in JSON. Fields with a zero value are omitted.
fn response_json(message: &RateLimitResponse) -> Value {
    let mut fields = Map::new();
    fields.insert(
        "overallCode".to_owned(),
        json!(message.overall_code().as_str_name()),
    );
    let statuses = message.statuses.iter().map(status_json);
    fields.insert("statuses".to_owned(), statuses.collect());
    if let Some(metadata) = &message.dynamic_metadata {
        let metadata = metadata.fields.iter();
        let metadata: Map<String, Value> = metadata
            .map(|(name, value)| (name.clone(), metadata_json(value)))
            .collect();
        fields.insert("dynamicMetadata".to_owned(), Value::Object(metadata));
    }
    Value::Object(fields)
}

fn status_json(status: &DescriptorStatus) -> Value {
    let mut fields = Map::new();
    fields.insert("code".to_owned(), json!(status.code().as_str_name()));
    if let Some(limit) = &status.current_limit {
        let mut shown = Map::new();
        if !limit.name.is_empty() {
            shown.insert("name".to_owned(), json!(limit.name));
        }
        if limit.requests_per_unit > 0 {
            shown.insert("requestsPerUnit".to_owned(), json!(limit.requests_per_unit));
        }
        if limit.unit() != Unit::Unknown {
            shown.insert("unit".to_owned(), json!(limit.unit().as_str_name()));
        }
        fields.insert("currentLimit".to_owned(), Value::Object(shown));
    }
    if status.limit_remaining > 0 {
        fields.insert("limitRemaining".to_owned(), json!(status.limit_remaining));
    }
    if let Some(reset) = &status.duration_until_reset {
        fields.insert(
            "durationUntilReset".to_owned(),
            json!(format!("{}s", reset.seconds)),
        );
    }
    Value::Object(fields)
}

fn metadata_json(value: &prost_types::Value) -> Value {
    use prost_types::value::Kind;
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => json!(value),
        Some(Kind::NumberValue(value)) => json!(value),
        Some(Kind::StringValue(value)) => json!(value),
        Some(Kind::ListValue(list)) => list.values.iter().map(metadata_json).collect(),
        Some(Kind::StructValue(fields)) => {
            let fields = fields.fields.iter();
            let fields = fields.map(|(name, value)| (name.clone(), metadata_json(value)));
            Value::Object(fields.collect())
        }
    }
}

/// `GET /healthcheck`: `OK`, or status 500.
pub(super) fn health(server: &Server) -> Response {
    let is_healthy = server.is_healthy();
    let mut response = Response::new(Full::from(if is_healthy { "OK" } else { "UNHEALTHY" }));
    if !is_healthy {
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    }
    response
}

/// `GET /rlconfig`: the rules in use, one per line.
pub(super) fn rules_text(rules: Option<&Domains>) -> String {
    let mut text = String::new();
    for rule in rules.into_iter().flat_map(Domains::rules) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", rule_line(rule));
    }
    text
}

fn rule_line(rule: &Rule) -> String {
    let name = rule.stats.name();
    let (shadow, quota) = (rule.is_shadow, rule.is_quota);
    let mut line = format!(
        "{name}: unit={} requests_per_unit={}, shadow_mode: {shadow}, quota_mode: {quota}",
        rule.shown.unit().as_str_name(),
        rule.shown.requests_per_unit,
    );
    match &rule.limit {
        RuleLimit::Limited(limiter) => {
            let _ = write!(line, ", policy: {}", limiter.policy());
        }
        RuleLimit::Unlimited => line.push_str(", unlimited: true"),
        RuleLimit::Blocked(..) => {}
    }
    line
}

/// `GET /stats`: the counters of all rules, one per line.
pub(super) fn stats_text(rules: Option<&Domains>) -> String {
    use std::sync::atomic::Ordering::Relaxed;
    let mut text = String::new();
    for rule in rules.into_iter().flat_map(Domains::rules) {
        for (path, counters) in rule.stats.snapshot() {
            let name = stat_name(rule.stats.domain(), &path);
            for (counter, value) in counters.by_name() {
                let value = value.load(Relaxed);
                let _ = writeln!(
                    text,
                    "ratelimit.service.rate_limit.{name}.{counter}: {value}"
                );
            }
        }
    }
    text
}
