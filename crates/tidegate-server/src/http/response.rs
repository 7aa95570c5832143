//! Verdicts as JSON and headers.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use tidegate::{Decision, Degraded, DenialReason, Limit, LimitFigures, PolicyDecision, Verdict};
use tidegate_http::{
    DecisionJson, Denial, add_headers, microseconds, rate_limit_headers, retry_after_seconds,
};

use super::Response;
use crate::server::ActiveConfig;

/// The response to a check. Durations are in microseconds, rounded up.
#[derive(Serialize)]
pub(super) struct CheckResponse<'a> {
    allowed: bool,
    policy: Option<&'a str>,
    tier: Option<&'a str>,
    limit: Option<u64>,
    remaining: Option<u64>,
    /// 0 if allowed; null if the request can never be allowed, or if the wait is unknown.
    retry_after_us: Option<u64>,
    reset_after_us: Option<u64>,
    delay_us: u64,
    /// The value of the `Retry-After` header, or null.
    retry_after: Option<u64>,
    /// The outcome of a shadow policy, or of a candidate.
    shadow: Option<&'static str>,
    candidate: Option<&'static str>,
    /// The reason if the failure policy answered.
    degraded: Option<&'static str>,
    /// Set if quota leases make the figures estimates.
    #[serde(skip_serializing_if = "is_false")]
    leased: bool,
    /// The reason for a denial: `limited`, `blocked`, `cost_above_capacity` or `outage`.
    reason: Option<&'static str>,
    /// The limit that denied the request.
    denied_by: Option<String>,
    /// The figures of every limit, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Vec<LimitJson<'a>>>,
    /// Set by a reset: whether there was anything to reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reset: Option<bool>,
    /// The receipt, if one was requested; null inside if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) receipt: Option<Option<String>>,
}

impl<'a> CheckResponse<'a> {
    /// Creates the response from the nearest policy of a verdict. Limits from the request have no
    /// name.
    pub(super) fn new(verdict: &'a Verdict, is_inline: bool) -> Self {
        Self::from_nearest(verdict, is_inline, verdict.is_allowed())
    }

    fn from_nearest(verdict: &'a Verdict, is_inline: bool, allowed: bool) -> Self {
        let denial = Denial::new(verdict);
        let denying = verdict.denial();
        let policy = verdict.nearest().or_else(|| verdict.decisions().first());
        let decision = policy.and_then(|policy| policy.decision());
        let figures = decision.map(DecisionJson::from);
        let label = policy.map(|policy| policy.label()).filter(|_| !is_inline);
        let retry_after = denial.as_ref().and_then(Denial::retry_after);
        let candidate = policy.and_then(|policy| policy.candidate());
        Self {
            allowed,
            policy: label.map(|label| label.name().as_str()),
            tier: label
                .and_then(|label| label.tier())
                .map(|tier| tier.as_str()),
            limit: decision.map(Decision::limit),
            remaining: figures.and_then(|figures| figures.remaining),
            retry_after_us: match &denial {
                None => allowed.then_some(0),
                Some(_) => retry_after.and(verdict.retry_after()).map(microseconds),
            },
            reset_after_us: longest_reset(verdict)
                .or_else(|| figures.and_then(|figures| figures.reset_after_us)),
            delay_us: microseconds(verdict.delay()),
            retry_after,
            shadow: policy.and_then(shadow_outcome),
            candidate: candidate
                .filter(|decision| decision.has_figures())
                .map(|decision| outcome(decision.is_denied())),
            degraded: verdict
                .degraded()
                .or_else(|| decision?.degraded())
                .map(Degraded::name),
            leased: decision.is_some_and(Decision::is_leased),
            reason: denying
                .and_then(|policy| policy.reason())
                .map(DenialReason::name),
            denied_by: denying
                .and_then(|policy| policy.limit())
                .map(ToString::to_string),
            limits: None,
            reset: None,
            receipt: None,
        }
    }

    /// Adds the figures of every limit.
    pub(super) fn with_details(mut self, verdict: &'a Verdict, is_inline: bool) -> Self {
        let enforced = verdict.decisions().iter();
        let limits = enforced.flat_map(|policy| LimitJson::all(policy, is_inline));
        self.limits = Some(limits.collect());
        self
    }

    /// Creates the response from a decision that was made outside the gate and took nothing.
    pub(super) fn from_decision(
        decision: &Decision,
        policy: Option<&'a str>,
        limits: Option<&[Limit]>,
    ) -> Self {
        let figures = DecisionJson::from(decision);
        Self {
            allowed: figures.allowed,
            policy,
            tier: None,
            limit: figures.limit,
            remaining: figures.remaining,
            retry_after_us: figures.retry_after_us,
            reset_after_us: figures.reset_after_us,
            delay_us: figures.delay_us,
            retry_after: decision
                .retry_after()
                .filter(|_| decision.has_figures())
                .map(retry_after_seconds),
            shadow: None,
            candidate: None,
            degraded: decision.degraded().map(Degraded::name),
            leased: decision.is_leased(),
            reason: decision.reason().map(DenialReason::name),
            denied_by: limits
                .filter(|_| decision.is_denied())
                .and_then(|limits| limits.get(decision.limit_index()))
                .map(ToString::to_string),
            limits: None,
            reset: None,
            receipt: None,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_false(value: &bool) -> bool {
    !value
}

/// The figures of one limit.
#[derive(Serialize)]
struct LimitJson<'a> {
    /// The name of the policy, or null for inline limits.
    policy: Option<&'a str>,
    /// The limit, in the syntax of policies.
    name: String,
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    /// Set for the limit that the other figures of the response describe.
    nearest: bool,
}

impl<'a> LimitJson<'a> {
    /// Returns the figures of every limit of a policy. A key without a limit has none, and neither
    /// has a decision of the failure policy that counted nothing.
    fn all(policy: &'a PolicyDecision, is_inline: bool) -> Vec<Self> {
        let Some(decision) = policy.decision().filter(|decision| decision.has_figures()) else {
            return Vec::new();
        };
        let own = [LimitFigures::from(decision)];
        let figures = if policy.limits().is_empty() {
            &own[..]
        } else {
            policy.limits()
        };
        let limits = policy
            .label()
            .policy()
            .map_or(&[][..], |policy| policy.limits());
        let label = policy.label().name().as_str();
        let limit = |(index, (limit, figures)): (usize, (&Limit, &LimitFigures))| Self {
            policy: (!is_inline).then_some(label),
            name: limit.to_string(),
            allowed: figures.is_allowed(),
            limit: figures.limit(),
            remaining: figures.remaining(),
            retry_after_us: match figures.retry_after() {
                Some(wait) => Some(microseconds(wait)),
                None => figures.is_allowed().then_some(0),
            },
            reset_after_us: microseconds(figures.reset_after()),
            nearest: index == decision.limit_index(),
        };
        limits.iter().zip(figures).enumerate().map(limit).collect()
    }
}

/// Returns the time until all enforced policies are reset.
fn longest_reset(verdict: &Verdict) -> Option<u64> {
    let enforced = verdict
        .decisions()
        .iter()
        .filter(|policy| !policy.is_shadow());
    enforced
        .filter_map(|policy| DecisionJson::from(policy.decision()?).reset_after_us)
        .max()
}

/// Returns the outcome of a shadow policy. Without the store it is unknown.
fn shadow_outcome(policy: &PolicyDecision) -> Option<&'static str> {
    let is_known = policy.decision().is_none_or(Decision::has_figures);
    (policy.is_shadow() && is_known).then(|| outcome(policy.would_deny()))
}

fn outcome(is_denied: bool) -> &'static str {
    if is_denied { "denied" } else { "allowed" }
}

/// Creates a response from a verdict, with the status `denied` if it is denied.
pub(super) fn from_verdict(
    active: &ActiveConfig,
    verdict: &Verdict,
    body: &CheckResponse<'_>,
    denied: StatusCode,
) -> Response {
    let mut response = json(body);
    let headers = rate_limit_headers(
        verdict,
        active.header_format,
        false,
        None,
        &active.policy_headers,
    );
    add_headers(response.headers_mut(), headers);
    if let Some(denial) = Denial::new(verdict) {
        add_headers(response.headers_mut(), denial.headers());
        // An outage is not the client's fault, whatever status it asked for.
        *response.status_mut() = match denial.reason() {
            DenialReason::Outage => StatusCode::SERVICE_UNAVAILABLE,
            _ => denied,
        };
    }
    response
}

/// The size up to which a body keeps its spare capacity.
const SMALL_BODY: usize = 1_024;

/// Creates a JSON response that must not be cached.
pub(super) fn json(value: &impl Serialize) -> Response {
    let mut body = Vec::with_capacity(256);
    // Strings and numbers only, so serialization cannot fail.
    let _ = serde_json::to_writer(&mut body, value);
    // The budget counts the bytes of a response, and a large vector has up to twice as many.
    if body.len() > SMALL_BODY {
        body.shrink_to_fit();
    }
    let mut response = Response::new(Full::new(Bytes::from(body)));
    let head = response.headers_mut();
    head.reserve(6);
    head.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    head.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
