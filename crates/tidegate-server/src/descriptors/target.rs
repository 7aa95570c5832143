//! The counters that the descriptors of a request apply to.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::{AnyStore, Gate, Limiter};

use super::compile::{BLOCKED, MAX_COUNT, override_policy, unit_period};
use super::decide::LimitRequest;
use super::figures::DecideError;
use super::key::{DescriptorKey, encode};
use super::rules::{Domain, Rule, RuleLimit, RuleMatch};
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;

/// The counter of a descriptor, if it has one.
pub(super) enum Target<'a> {
    /// No rule, or one that another rule of the request replaces.
    None,
    Unlimited(&'a Arc<Rule>),
    Limited(LimitedTarget<'a>),
}

/// A descriptor with a limit.
pub(super) struct LimitedTarget<'a> {
    pub(super) counter: Counter<'a>,
    pub(super) shown: Cow<'a, RateLimit>,
    /// The rule, or `None` if the limit came with the descriptor.
    pub(super) rule: Option<&'a Arc<Rule>>,
}

pub(super) enum Counter<'a> {
    /// 0 requests per unit, of this length.
    Blocked(Cow<'a, Limiter<AnyStore>>, DescriptorKey, Duration),
    Limited(Cow<'a, Limiter<AnyStore>>, DescriptorKey),
}

impl Counter<'_> {
    pub(super) fn key(&self) -> &[u8] {
        match self {
            Self::Blocked(_, key, _) | Self::Limited(_, key) => key,
        }
    }
}

pub(super) type Targets<'a> = SmallVec<[Target<'a>; 2]>;

/// Finds the targets of all descriptors.
pub(super) fn find<'a>(
    domain: &'a Domain,
    gate: &Gate<AnyStore>,
    requests: &'a [LimitRequest<'a>],
) -> Result<Targets<'a>, DecideError> {
    let targets = requests.iter().map(|request| match request.limit {
        Some(limit) => overridden(domain, gate, request, limit),
        None => Ok(matched(domain, request)),
    });
    let mut targets = targets.collect::<Result<Targets<'a>, _>>()?;
    replace(&mut targets);
    Ok(targets)
}

fn matched<'a>(domain: &'a Domain, request: &LimitRequest<'a>) -> Target<'a> {
    let entries = request.entries.iter();
    let entries = entries.map(|entry| (entry.key.as_str(), entry.value.as_str()));
    let Some(RuleMatch { rule, shared }) = domain.find(entries) else {
        return Target::None;
    };
    let counter = match &rule.limit {
        RuleLimit::Unlimited => return Target::Unlimited(rule),
        RuleLimit::Blocked(limiter, period) => {
            let key = encode(request.entries, &shared);
            Counter::Blocked(Cow::Borrowed(limiter), key, *period)
        }
        RuleLimit::Limited(limiter) => {
            Counter::Limited(Cow::Borrowed(limiter), encode(request.entries, &shared))
        }
    };
    Target::Limited(LimitedTarget {
        counter,
        shown: Cow::Borrowed(&rule.shown),
        rule: Some(rule),
    })
}

/// Returns the target of a descriptor that brings its own limit. Its counter does not depend on the
/// number, only on the unit.
fn overridden<'a>(
    domain: &Domain,
    gate: &Gate<AnyStore>,
    request: &LimitRequest<'a>,
    limit: &RateLimitOverride,
) -> Result<Target<'a>, DecideError> {
    let invalid = |message: &str| Err(DecideError::Invalid(message.to_owned()));
    if request.entries.is_empty() {
        return invalid("a descriptor with a limit has no entries: expected at least one");
    }
    // The numbers of both enumerations agree.
    let unit = match Unit::try_from(limit.unit) {
        Ok(unit) if unit != Unit::Unknown => unit,
        _ => {
            return invalid("the unit of a descriptor's limit is unknown: expected SECOND to YEAR");
        }
    };
    let multiplier = limit.unit_multiplier.unwrap_or(1);
    let shown = RateLimit {
        requests_per_unit: limit.requests_per_unit.min(MAX_COUNT),
        unit: if multiplier == 1 { unit } else { Unit::Unknown }.into(),
        name: String::new(),
    };
    let requests = match shown.requests_per_unit {
        0 => BLOCKED,
        requests => requests,
    };
    let limiter = domain.override_limiter((requests, unit, multiplier), || {
        let policy = override_policy(requests, unit, multiplier)?;
        Ok(gate.service_limiter(&domain.namespace, policy))
    });
    let limiter = Cow::Owned(limiter.map_err(DecideError::Invalid)?);
    let key = encode(request.entries, &[]);
    let counter = match shown.requests_per_unit {
        0 => {
            let period = unit_period(unit).saturating_mul(multiplier.max(1));
            Counter::Blocked(limiter, key, period)
        }
        _ => Counter::Limited(limiter, key),
    };
    Ok(Target::Limited(LimitedTarget {
        counter,
        shown: Cow::Owned(shown),
        rule: None,
    }))
}

/// Removes the rules that other rules of the request replace. A replaced rule still replaces.
fn replace(targets: &mut Targets<'_>) {
    let mut replaced: SmallVec<[Box<str>; 4]> = SmallVec::new();
    for target in &*targets {
        let rule = match target {
            Target::Unlimited(rule) => Some(*rule),
            Target::Limited(limited) => limited.rule,
            Target::None => None,
        };
        replaced.extend(
            rule.into_iter()
                .flat_map(|rule| rule.replaces.iter().cloned()),
        );
    }
    if replaced.is_empty() {
        return;
    }
    for target in targets {
        if let Target::Limited(limited) = target
            && !limited.shown.name.is_empty()
            && replaced.iter().any(|name| **name == *limited.shown.name)
        {
            *target = Target::None;
        }
    }
}
