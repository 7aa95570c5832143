//! The figures of a decision, and the steps that decisions of descriptors share.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tidegate::{AnyStore, CheckError, Cost, Decision, Degraded, Limiter};
use tidegate_core::LimiterRequest;

use super::compile::MAX_COUNT;

/// The error of a request that was not decided.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum DecideError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The store is unavailable, and the failure policy denies.
    #[error("the store is unavailable")]
    Unavailable,
}

/// The figures of a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) is_over: bool,
    /// 0 if the limit is exceeded.
    pub(crate) remaining: u64,
    /// The wait until the same request fits, or until the whole limit is free.
    pub(crate) reset_after: Duration,
    /// The wait until a denied request fits, or `None` if it never does.
    pub(crate) retry_after: Option<Duration>,
    /// The reason if the failure policy decided.
    pub(crate) degraded: Option<Degraded>,
}

impl Figures {
    pub(crate) fn of(decision: &Decision) -> Self {
        let is_over = decision.is_denied();
        let retry_after = decision.retry_after();
        Self {
            is_over,
            remaining: if is_over { 0 } else { decision.remaining() },
            reset_after: retry_after.unwrap_or_else(|| decision.reset_after()),
            retry_after,
            degraded: decision.degraded(),
        }
    }
}

/// Decides checks all or nothing. If they are denied, those that would fit have the figures of a
/// look.
pub(crate) async fn check_together(
    requests: &[LimiterRequest<'_, AnyStore>],
) -> Result<SmallVec<[Figures; 2]>, DecideError> {
    // One check alone has a shorter way to every store.
    if let [LimiterRequest { limiter, key, cost }] = requests {
        let decision = limiter.check(key.as_bytes()).cost(*cost).await;
        let decision = available(decision.map_err(failed)?)?;
        return Ok(smallvec![Figures::of(&decision)]);
    }
    let decided = match Limiter::check_together(requests).ready_or_future() {
        Ok(decided) => decided,
        Err(future) => future.await,
    };
    let decided = decided.map_err(|error| failed(error.into()))?;
    let mut figures = SmallVec::new();
    for (request, decision) in requests.iter().zip(decided) {
        figures.push(match decision {
            Some(decision) => Figures::of(&available(decision)?),
            // A key on another node of a cluster, which was not asked.
            None => would_be(request).await?,
        });
    }
    Ok(figures)
}

/// Returns the cost of hits. More than the largest limit cannot fit anyway.
pub(crate) fn cost(hits: u64) -> Cost {
    Cost::try_from(hits.min(u64::from(MAX_COUNT))).unwrap_or(Cost::ONE)
}

/// Gives hits back. If the store cannot answer, the hits stay taken and the failure policy decides,
/// as for a look.
pub(crate) async fn refund(
    limiter: &Limiter<AnyStore>,
    key: &[u8],
    cost: Cost,
) -> Result<Decision, CheckError> {
    match limiter.refund(key, cost).await {
        Ok(usage) => Ok(usage.into()),
        Err(CheckError::Store(_)) => limiter.check(key).cost(Cost::ZERO).await,
        Err(error) => Err(error),
    }
}

/// Returns the figures of a check that is not taken, because the request is denied.
pub(crate) async fn would_be(
    request: &LimiterRequest<'_, AnyStore>,
) -> Result<Figures, DecideError> {
    let LimiterRequest { limiter, key, cost } = request;
    let peeked = limiter
        .peek(key.as_bytes())
        .cost(*cost)
        .await
        .map_err(failed)?;
    let peeked = available(peeked)?;
    if peeked.is_denied() {
        return Ok(Figures::of(&peeked));
    }
    let look = limiter.check(key.as_bytes()).cost(Cost::ZERO);
    Ok(Figures::of(&available(look.await.map_err(failed)?)?))
}

/// Fails if the store is unavailable and the failure policy denies.
pub(crate) fn available(decision: Decision) -> Result<Decision, DecideError> {
    if decision.is_denied() && !decision.has_figures() {
        return Err(DecideError::Unavailable);
    }
    Ok(decision)
}

pub(crate) fn failed(error: CheckError) -> DecideError {
    match error {
        CheckError::Store(_) => DecideError::Unavailable,
        other => DecideError::Invalid(other.to_string()),
    }
}
