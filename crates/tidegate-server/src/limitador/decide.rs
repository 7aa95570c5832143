//! Decides a request by the limits of its namespace.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::{AnyStore, Decision, Key, Limiter};
use tidegate_core::LimiterRequest;

use super::expression::{Bindings, bind_limit};
use super::limits::{Limitador, LimitadorLimit, Namespace};
use crate::activity::{Label, Observed};
use crate::descriptors::{
    DecideError, DescriptorKey, Figures, available, check_together, cost, encode_values, failed,
};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::server::Server;

/// The effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckKind {
    /// Takes the hits if all limits allow it.
    CheckAndReport,
    /// Takes nothing.
    Check,
    /// Takes the hits whatever the limits say.
    Report,
}

/// The decision of a request.
pub(crate) struct LimitadorDecision {
    pub(crate) is_over: bool,
    /// Every limit that applies, the nearest to exhaustion first.
    pub(crate) limits: Vec<(Arc<LimitadorLimit>, Figures)>,
}

/// A limit that applies, and the key of its counter.
struct Applied<'a> {
    limit: &'a Arc<LimitadorLimit>,
    key: DescriptorKey,
    /// The values of its variables.
    values: String,
}

/// Decides a request. Limits are all or nothing. In an unknown namespace there are no limits.
///
/// # Errors
///
/// Returns an error if an expression fails, before anything is taken, or if the store is
/// unavailable and the failure policy denies.
pub(crate) async fn decide(
    server: &Server,
    limits: &Limitador,
    namespace: &str,
    bindings: &Bindings<'_>,
    kind: CheckKind,
    hits: u64,
) -> Result<LimitadorDecision, DecideError> {
    let Some(namespace) = limits.namespace(namespace) else {
        return Ok(LimitadorDecision {
            is_over: false,
            limits: Vec::new(),
        });
    };
    let applied = applied(namespace, bindings).map_err(DecideError::Invalid)?;
    let figures = match kind {
        CheckKind::CheckAndReport => check_all(&applied, hits).await?,
        CheckKind::Check | CheckKind::Report => each(&applied, kind, hits).await?,
    };
    for (applied, figures) in applied.iter().zip(&figures) {
        server.metrics.degraded_rule(figures.degraded);
        if kind != CheckKind::Check {
            observe(server, applied, figures, hits);
        }
    }
    let mut limits: Vec<_> = applied
        .iter()
        .map(|applied| Arc::clone(applied.limit))
        .zip(figures)
        .collect();
    limits.sort_by_key(|(_, figures)| (!figures.is_over, figures.remaining));
    let is_over = kind != CheckKind::Report && limits.iter().any(|(_, figures)| figures.is_over);
    count(namespace, is_over, hits);
    Ok(LimitadorDecision { is_over, limits })
}

/// Reports a decision to the dashboard.
fn observe(server: &Server, applied: &Applied<'_>, figures: &Figures, hits: u64) {
    let limit = applied.limit;
    let label = limit.name.as_deref().or(limit.id.as_deref());
    let policy = limit.limiter.as_ref().map(Limiter::policy);
    let observed = Observed {
        label: Label::Rule(label.unwrap_or("limitador")),
        tenant: None,
        key: applied.values.as_bytes(),
        cost: cost(hits),
        is_denied: figures.is_over,
        retry_after: figures.retry_after,
        limit: policy.and_then(|policy| policy.limits().first()),
    };
    server.activity.observe(&server.clock, &observed);
}

fn count(namespace: &Namespace, is_over: bool, hits: u64) {
    let counters = &namespace.counters;
    if is_over {
        counters.limited_calls.fetch_add(1, Relaxed);
    } else {
        counters.authorized_calls.fetch_add(1, Relaxed);
        counters.authorized_hits.fetch_add(hits, Relaxed);
    }
}

/// Returns the limits whose conditions hold and whose variables all have a value.
fn applied<'a>(
    namespace: &'a Namespace,
    bindings: &Bindings<'_>,
) -> Result<Vec<Applied<'a>>, String> {
    let mut context = bindings.context();
    let mut applied = Vec::new();
    'limits: for limit in &namespace.limits {
        bind_limit(&mut context, limit.name.as_deref(), limit.id.as_deref());
        for condition in &limit.conditions {
            if !condition.is_true(&context)? {
                continue 'limits;
            }
        }
        let mut parts: SmallVec<[String; 4]> = SmallVec::new();
        parts.push(limit.identity.to_string());
        for variable in &limit.variables {
            match variable.value(&context)? {
                Some(value) => parts.push(value),
                None => continue 'limits,
            }
        }
        let key = encode_values(parts.iter().map(String::as_str));
        let values = parts[1..].join(" ");
        applied.push(Applied { limit, key, values });
    }
    Ok(applied)
}

/// Takes from all limits or from none.
async fn check_all(applied: &[Applied<'_>], hits: u64) -> Result<Vec<Figures>, DecideError> {
    if applied
        .iter()
        .any(|applied| applied.limit.limiter.is_none())
    {
        // A limit of 0 denies, so nothing is taken.
        return each(applied, CheckKind::Check, hits).await;
    }
    let mut requests: SmallVec<[LimiterRequest<'_, AnyStore>; 4]> = SmallVec::new();
    for applied in applied {
        if let Some(limiter) = &applied.limit.limiter {
            let key = Key::new(&applied.key).map_err(|error| failed(error.into()))?;
            let cost = cost(hits);
            requests.push(LimiterRequest { limiter, key, cost });
        }
    }
    Ok(check_together(&requests).await?.into_vec())
}

/// Looks at each limit, or charges it.
async fn each(
    applied: &[Applied<'_>],
    kind: CheckKind,
    hits: u64,
) -> Result<Vec<Figures>, DecideError> {
    let mut figures = Vec::with_capacity(applied.len());
    for Applied { limit, key, .. } in applied {
        figures.push(match &limit.limiter {
            None => blocked(limit.period()),
            Some(limiter) => one(limiter, key, kind, hits).await?,
        });
    }
    Ok(figures)
}

async fn one(
    limiter: &Limiter<AnyStore>,
    key: &[u8],
    kind: CheckKind,
    hits: u64,
) -> Result<Figures, DecideError> {
    let decision = match kind {
        CheckKind::Report => limiter.charge(key, cost(hits)).await.map(Decision::from),
        CheckKind::Check | CheckKind::CheckAndReport => limiter.peek(key).cost(cost(hits)).await,
    };
    Ok(Figures::of(&available(decision.map_err(failed)?)?))
}

fn blocked(period: Duration) -> Figures {
    Figures {
        is_over: true,
        remaining: 0,
        reset_after: period,
        retry_after: None,
        degraded: None,
    }
}

/// Returns a limit as Envoy shows it.
pub(crate) fn rate_limit(limit: &LimitadorLimit) -> RateLimit {
    const DAY: u64 = 86_400;
    let unit = match limit.seconds {
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        DAY => Unit::Day,
        604_800 => Unit::Week,
        2_592_000 => Unit::Month,
        31_536_000 => Unit::Year,
        _ => Unit::Unknown,
    };
    RateLimit {
        requests_per_unit: u32::try_from(limit.max_value).unwrap_or(u32::MAX),
        unit: unit.into(),
        name: limit.name.as_deref().unwrap_or_default().to_owned(),
    }
}
