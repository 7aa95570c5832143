//! The action that middleware takes after a check: fail, deny, proceed or delay.

use std::time::Duration;

use tidegate_core::{Store, Verdict};

use crate::charge::{ActualCost, Charge, PendingCharge};
use crate::error::RequestError;
use crate::framework::Framework;
use crate::limits::Limits;
use crate::lookup::CheckResult;

/// An admitted request.
#[derive(Debug)]
pub struct Admitted<S: Store> {
    /// The verdict of the gate.
    pub verdict: Verdict,
    /// The cost that may have to be given back.
    pub pending: Option<Box<PendingCharge<S>>>,
}

/// The action that middleware takes for a request.
#[derive(Debug)]
pub enum Action<S: Store> {
    /// Respond with an error: the request could not be checked.
    Fail(RequestError),
    /// Deny the request. With a duration, its delay in a queue was too long by that time.
    Deny(Verdict, Option<Duration>),
    /// Pass the request on.
    Proceed(Admitted<S>),
    /// Pass the request on after a delay, and call [`Limits::start`] then.
    Delay(Duration, Admitted<S>),
}

impl<F: Framework, S: Store> Limits<F, S> {
    /// Returns the action for the result of a check.
    #[doc(hidden)] // For middleware.
    pub fn action(&self, result: CheckResult<S>) -> Action<S> {
        let (verdict, receipt) = match result {
            Ok(checked) => checked,
            Err(error) => return Action::Fail(error.into()),
        };
        #[cfg(feature = "tracing")]
        trace(&verdict);
        if verdict.is_denied() {
            // The costs taken by shadow policies stay taken.
            return Action::Deny(verdict, None);
        }
        let Some(receipt) = receipt else {
            let pending = None;
            return Action::Proceed(Admitted { verdict, pending });
        };
        let delay = match self.delay(&verdict) {
            Ok(delay) => delay,
            Err(excess) => {
                receipt.turn_away();
                return Action::Deny(verdict, Some(excess));
            }
        };
        let mut pending = PendingCharge::new(*receipt, self.actual_cost(), self.settled());
        pending.set_queued(!delay.is_zero());
        let pending = Some(Box::new(pending));
        let admitted = Admitted { verdict, pending };
        if delay.is_zero() {
            Action::Proceed(self.start(admitted))
        } else {
            Action::Delay(delay, admitted)
        }
    }

    /// Marks an admitted request as started. From now on only its outcome gives its cost back.
    #[doc(hidden)] // For middleware.
    pub fn start(&self, mut admitted: Admitted<S>) -> Admitted<S> {
        if let Some(pending) = &mut admitted.pending {
            pending.set_queued(false);
        }
        if !self.charges_by_outcome()
            && let Some(mut pending) = admitted.pending.take()
        {
            pending.keep();
        }
        if let Some(pending) = admitted.pending.as_mut().filter(|_| self.counts_aborted()) {
            pending.count_if_aborted();
        }
        admitted
    }
}

impl<S: Store> Admitted<S> {
    /// Returns the [`Charge`] for the handler, if the handler reports the cost.
    #[must_use]
    pub fn charge(&self) -> Option<Charge> {
        match self.pending.as_ref()?.actual_cost() {
            ActualCost::Reported(charge) => Some(charge.clone()),
            ActualCost::AsTaken | ActualCost::Bytes(_) => None,
        }
    }
}

#[cfg(feature = "tracing")]
fn trace(verdict: &Verdict) {
    for decision in verdict.decisions() {
        let policy = decision.label().name().as_str();
        if let Some(reason) = decision.decision().and_then(|decision| decision.degraded()) {
            let reason = reason.name();
            tracing::debug!(target: "tidegate", policy, reason, "store unavailable, failure policy applied");
        }
        if decision.would_deny() {
            let shadow = decision.is_shadow();
            tracing::debug!(target: "tidegate", policy, shadow, "request denied");
        }
    }
}
