//! A verdict as JSON and header fields.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use tidegate::{Decision, Degraded, Outcome, Verdict};
use tidegate_http::{Denial, fields};

use super::Response;
use crate::server::Live;

/// What became of one request. Durations are in microseconds, rounded up.
#[derive(Serialize)]
pub(super) struct Told<'a> {
    allowed: bool,
    policy: Option<&'a str>,
    tier: Option<&'a str>,
    limit: Option<u64>,
    remaining: Option<u64>,
    /// 0 if allowed, null where there is nothing to wait for: it never will be, or nobody knows.
    retry_after_us: Option<u64>,
    reset_after_us: Option<u64>,
    delay_us: u64,
    /// What the header says: whole seconds, null where there is no waiting for it.
    retry_after: Option<u64>,
    /// What a policy in shadow, or a candidate, would have done.
    shadow: Option<&'static str>,
    candidate: Option<&'static str>,
    /// Why the store was not asked, if it was not.
    degraded: Option<&'static str>,
    /// Where one was asked for: the receipt, null if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) receipt: Option<Option<String>>,
}

impl<'a> Told<'a> {
    /// Of a verdict: what the nearest of its policies says. Limits that came along have no name.
    pub(super) fn of(verdict: &'a Verdict, is_inline: bool) -> Self {
        Self::of_asked(verdict, is_inline, verdict.is_allowed())
    }

    /// Of a look, which takes nothing and is never denied: whether a request of cost 1 would be allowed. When it would be,
    /// nobody has asked.
    pub(super) fn of_look(verdict: &'a Verdict, is_inline: bool) -> Self {
        let is_known = verdict
            .nearest()
            .and_then(|ruling| ruling.decision())
            .is_some_and(Decision::has_figures);
        let allowed = verdict.is_allowed() && (!is_known || verdict.remaining() != Some(0));
        Self::of_asked(verdict, is_inline, allowed)
    }

    fn of_asked(verdict: &'a Verdict, is_inline: bool, allowed: bool) -> Self {
        let denial = Denial::of(verdict);
        let ruling = verdict.nearest().or_else(|| verdict.rulings().first());
        let decision = ruling.and_then(|ruling| ruling.decision());
        let figures = decision.filter(|decision| decision.has_figures());
        let label = ruling.map(|ruling| ruling.label()).filter(|_| !is_inline);
        let enforced = verdict
            .rulings()
            .iter()
            .filter(|ruling| !ruling.is_shadow());
        let resets = enforced
            .filter_map(|ruling| ruling.decision().filter(|decision| decision.has_figures()));
        let resets = resets.map(|decision| micros(decision.reset_after()));
        // What would have been denied, nobody knows without the store.
        let shadow = ruling.filter(|ruling| {
            ruling.is_shadow() && ruling.decision().is_none_or(Decision::has_figures)
        });
        Self {
            allowed,
            policy: label.map(|label| label.name().as_str()),
            tier: label
                .and_then(|label| label.tier())
                .map(|tier| tier.as_str()),
            limit: decision.map(Decision::limit),
            remaining: figures.map(Decision::remaining),
            retry_after_us: match &denial {
                None => allowed.then_some(0),
                Some(denial) => denial.retry_after().and(verdict.retry_after()).map(micros),
            },
            reset_after_us: resets
                .max()
                .or_else(|| figures.map(|decision| micros(decision.reset_after()))),
            delay_us: micros(verdict.delay()),
            retry_after: denial.as_ref().and_then(Denial::retry_after),
            shadow: shadow.map(|ruling| outcome(ruling.would_deny())),
            candidate: ruling
                .and_then(|ruling| ruling.candidate())
                .filter(|decision| decision.has_figures())
                .map(|decision| outcome(decision.is_denied())),
            degraded: verdict
                .degraded()
                .or_else(|| decision?.degraded())
                .map(Degraded::name),
            receipt: None,
        }
    }

    /// Of a decision beside the gate, that takes nothing.
    pub(super) fn of_decision(decision: &Decision, policy: Option<&'a str>) -> Self {
        let figures = decision.has_figures().then_some(decision);
        Self {
            allowed: decision.is_allowed(),
            policy,
            tier: None,
            limit: Some(decision.limit()),
            remaining: figures.map(Decision::remaining),
            retry_after_us: match decision.outcome() {
                Outcome::Allowed { .. } => Some(0),
                Outcome::Denied { retry_after } => Some(micros(retry_after)),
                Outcome::NeverAllowed => None,
            },
            reset_after_us: figures.map(|decision| micros(decision.reset_after())),
            delay_us: micros(decision.delay()),
            retry_after: None,
            shadow: None,
            candidate: None,
            degraded: decision.degraded().map(Degraded::name),
            receipt: None,
        }
    }
}

fn outcome(is_denied: bool) -> &'static str {
    if is_denied { "denied" } else { "allowed" }
}

/// Rounded up, so that who waits that long has waited long enough.
fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// A verdict as an answer: its status is `denied` where it denies.
pub(super) fn of_verdict(
    live: &Live,
    verdict: &Verdict,
    told: &Told<'_>,
    denied: StatusCode,
) -> Response {
    let mut response = json(told);
    let head = response.headers_mut();
    for field in fields(verdict, live.dialect, false, None, &live.written) {
        // Made of names that were checked, and of numbers.
        if let Ok(value) = HeaderValue::from_maybe_shared(field.value) {
            head.insert(HeaderName::from_static(field.name), value);
        }
    }
    if let Some(denial) = Denial::of(verdict) {
        if let Some(seconds) = denial.retry_after() {
            head.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        *response.status_mut() = denied;
    }
    response
}

/// What can be written, as an answer that nobody keeps.
pub(super) fn json(value: &impl Serialize) -> Response {
    let mut body = Vec::with_capacity(256);
    // Texts and numbers: there is nothing that could not be written.
    let _ = serde_json::to_writer(&mut body, value);
    let mut response = Response::new(Full::new(Bytes::from(body)));
    let head = response.headers_mut();
    head.reserve(6);
    head.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    head.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
