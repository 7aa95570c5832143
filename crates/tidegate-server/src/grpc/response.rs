//! Renders the response of `ShouldRateLimit`: statuses, headers, body and metadata.

use std::time::Duration;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tidegate_http::PROBLEM_JSON;

use crate::config::EnvoyConfig;
use crate::descriptors::{Decided, Figures, RuleDecision};
use crate::proto::envoy::config::core::v3::HeaderValue;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// Renders the response to a request.
pub(super) fn render(
    envoy: &EnvoyConfig,
    request: &RateLimitRequest,
    decided: Decided,
) -> RateLimitResponse {
    let is_over = decided.is_over && !envoy.shadow_mode;
    let dynamic_metadata = metadata(envoy, request, &decided);
    let mut headers = Vec::new();
    let nearest = nearest(&decided);
    if let Some((figures, limit)) = nearest.filter(|_| envoy.response_headers) {
        let values = [
            (&envoy.limit_header, u64::from(limit)),
            (&envoy.remaining_header, figures.remaining),
            (&envoy.reset_header, seconds(figures.reset_after)),
        ];
        headers.extend(values.map(|(name, value)| header(name, value)));
    }
    let mut body = Vec::new();
    if is_over {
        let retry_after = retry_after(&decided);
        headers.push(header("content-type", PROBLEM_JSON));
        headers.push(header("cache-control", "no-store"));
        headers.extend(retry_after.map(|seconds| header("retry-after", seconds)));
        body = problem(&decided, retry_after).into_bytes();
    }
    RateLimitResponse {
        overall_code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        statuses: decided.decisions.into_iter().map(status).collect(),
        response_headers_to_add: headers,
        request_headers_to_add: Vec::new(),
        raw_body: body,
        dynamic_metadata,
    }
}

fn header(key: &str, value: impl ToString) -> HeaderValue {
    HeaderValue {
        key: key.to_owned(),
        value: value.to_string(),
    }
}

/// Returns whole seconds, rounded up. Envoy would round down.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

fn status(decision: RuleDecision) -> DescriptorStatus {
    match decision {
        RuleDecision::NoRule => DescriptorStatus {
            code: Code::Ok.into(),
            ..DescriptorStatus::default()
        },
        RuleDecision::Unlimited(_) => DescriptorStatus {
            code: Code::Ok.into(),
            limit_remaining: u32::MAX,
            ..DescriptorStatus::default()
        },
        RuleDecision::Limited { figures, shown, .. } => DescriptorStatus {
            code: if figures.is_over {
                Code::OverLimit
            } else {
                Code::Ok
            }
            .into(),
            current_limit: Some(shown),
            limit_remaining: u32::try_from(figures.remaining).unwrap_or(u32::MAX),
            duration_until_reset: Some(prost_types::Duration {
                seconds: i64::try_from(seconds(figures.reset_after)).unwrap_or(i64::MAX),
                nanos: 0,
            }),
        },
    }
}

/// Returns the figures and the limit of the descriptor nearest to its limit.
fn nearest(decided: &Decided) -> Option<(Figures, u32)> {
    let limited = decided
        .decisions
        .iter()
        .filter_map(|decision| match decision {
            RuleDecision::Limited { figures, shown, .. } => {
                Some((*figures, shown.requests_per_unit))
            }
            RuleDecision::NoRule | RuleDecision::Unlimited(_) => None,
        });
    limited.min_by_key(|(figures, _)| (!figures.is_over, figures.remaining))
}

/// Returns the descriptors that deny: those over their limit, quotas only if all of them are.
fn denying(decided: &Decided) -> impl Iterator<Item = (&Figures, bool, &RuleDecision)> {
    let decisions = decided.decisions.iter();
    decisions.filter_map(|decision| match decision {
        RuleDecision::Limited {
            figures, is_quota, ..
        } if figures.is_over && (!is_quota || decided.are_quotas_over) => {
            Some((figures, *is_quota, decision))
        }
        _ => None,
    })
}

/// Returns the seconds until the request would be allowed, at least 1. `None` if it never is. All
/// enforced limits must allow it, and one of the quotas.
fn retry_after(decided: &Decided) -> Option<u64> {
    let waits = |of_quotas: bool| {
        denying(decided)
            .filter(move |(_, is_quota, _)| *is_quota == of_quotas)
            .map(|(figures, ..)| figures.retry_after.map(seconds))
    };
    let enforced = waits(false)
        .collect::<Option<Vec<u64>>>()?
        .into_iter()
        .max();
    let quotas = waits(true).flatten().min();
    if decided.are_quotas_over && quotas.is_none() {
        return None;
    }
    enforced.max(quotas).map(|wait| wait.max(1))
}

/// Returns the body of a denial.
fn problem(decided: &Decided, retry_after: Option<u64>) -> String {
    let mut names: Vec<String> = Vec::new();
    for (.., decision) in denying(decided) {
        if let RuleDecision::Limited { shown, rule, .. } = decision {
            let rule = rule.as_ref().map(|rule| rule.stats.name());
            let named = Some(shown.name.as_str()).filter(|name| !name.is_empty());
            names.extend(named.or(rule).map(str::to_owned));
        }
    }
    let title = "Request cannot be satisfied as assigned quota has been exceeded";
    let detail = match retry_after {
        Some(seconds) => format!("rate limit exceeded; try again in {seconds} s"),
        None => "rate limit exceeded".to_owned(),
    };
    serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": title,
        "status": 429,
        "detail": detail,
        "violated-policies": names,
        "retry_after": retry_after,
    })
    .to_string()
}

/// Returns the metadata of the rules that passed, and the request's if it is wanted.
fn metadata(envoy: &EnvoyConfig, request: &RateLimitRequest, decided: &Decided) -> Option<Struct> {
    let mut of_rules = Struct::default();
    for decision in &decided.decisions {
        let rule = match decision {
            RuleDecision::Limited { figures, rule, .. } if !figures.is_over => rule.as_ref(),
            RuleDecision::Unlimited(rule) => Some(rule),
            _ => None,
        };
        if let Some(metadata) = rule.and_then(|rule| rule.metadata.as_ref()) {
            merge(&mut of_rules, metadata);
        }
    }
    let mut all = Struct::default();
    if !of_rules.fields.is_empty() {
        all.fields
            .insert("metadata".to_owned(), value(Kind::StructValue(of_rules)));
    }
    if envoy.dynamic_metadata {
        all.fields
            .insert("domain".to_owned(), text(&request.domain));
        let descriptors = request.descriptors.iter().map(descriptor).collect();
        all.fields
            .insert("descriptors".to_owned(), list(descriptors));
        if request.hits_addend > 0 {
            let hits = Kind::NumberValue(request.hits_addend.into());
            all.fields.insert("hitsAddend".to_owned(), value(hits));
        }
    }
    (!all.fields.is_empty()).then_some(all)
}

/// Adds fields. The first value of a field stays; structs are merged.
fn merge(into: &mut Struct, from: &Struct) {
    for (name, new) in &from.fields {
        match into.fields.get_mut(name) {
            None => {
                into.fields.insert(name.clone(), new.clone());
            }
            Some(old) => {
                if let (Some(Kind::StructValue(old)), Some(Kind::StructValue(new))) =
                    (&mut old.kind, &new.kind)
                {
                    merge(old, new);
                }
            }
        }
    }
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: &str) -> Value {
    value(Kind::StringValue(text.to_owned()))
}

fn list(values: Vec<Value>) -> Value {
    value(Kind::ListValue(ListValue { values }))
}

/// Returns a descriptor as envoyproxy/ratelimit shows it.
fn descriptor(descriptor: &RateLimitDescriptor) -> Value {
    let entries = descriptor.entries.iter();
    let entries = entries.map(|entry| text(&format!("{}={}", entry.key, entry.value)));
    let mut fields = Struct::default();
    fields
        .fields
        .insert("entries".to_owned(), list(entries.collect()));
    if let Some(limit) = &descriptor.limit {
        let limit = format!(
            "requests_per_unit:{} unit:{}",
            limit.requests_per_unit, limit.unit
        );
        fields.fields.insert("limit".to_owned(), text(&limit));
    }
    if let Some(hits) = descriptor.hits_addend {
        fields.fields.insert(
            "hitsAddend".to_owned(),
            value(Kind::NumberValue(hits as f64)),
        );
    }
    value(Kind::StructValue(fields))
}
