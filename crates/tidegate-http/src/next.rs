//! What becomes of a request once it has been asked about.

use std::time::Duration;

use tidegate_core::{Store, Verdict};

use crate::charge::{Charge, Open, Settling};
use crate::error::RequestError;
use crate::framework::Framework;
use crate::limits::Limits;
use crate::prepared::Answer;

/// A request that goes on.
#[derive(Debug)]
pub struct Admitted<S: Store> {
    /// What was said of it.
    pub verdict: Verdict,
    /// What it may have to give back.
    pub open: Option<Box<Open<S>>>,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Next<S: Store> {
    /// It could not be asked about.
    Fail(RequestError),
    /// It is denied: outright, or because it would have to wait by so much too long in a queue.
    Deny(Verdict, Option<Duration>),
    /// It goes on.
    Go(Admitted<S>),
    /// It goes on after so long.
    Wait(Duration, Admitted<S>),
}

impl<F: Framework, S: Store> Limits<F, S> {
    /// What becomes of a request that was answered so.
    #[doc(hidden)] // For middleware.
    pub fn next(&self, answer: Answer<S>) -> Next<S> {
        let (verdict, receipt) = match answer {
            Ok(answer) => answer,
            Err(error) => return Next::Fail(error.into()),
        };
        #[cfg(feature = "tracing")]
        trace(&verdict);
        if verdict.is_denied() {
            // What those in shadow took stays taken.
            return Next::Deny(verdict, None);
        }
        let Some(receipt) = receipt else {
            return Next::Go(Admitted {
                verdict,
                open: None,
            });
        };
        match self.delay(&verdict) {
            Err(excess) => {
                receipt.turn_away();
                Next::Deny(verdict, Some(excess))
            }
            Ok(delay) => {
                let mut open = Open::new(receipt, self.settling());
                open.set_waiting(!delay.is_zero());
                let admitted = Admitted {
                    verdict,
                    open: Some(Box::new(open)),
                };
                if delay.is_zero() {
                    Next::Go(self.going(admitted))
                } else {
                    Next::Wait(delay, admitted)
                }
            }
        }
    }

    /// A request that has waited for its turn goes on: from now on only its outcome gives anything back.
    #[doc(hidden)] // For middleware.
    pub fn going(&self, mut admitted: Admitted<S>) -> Admitted<S> {
        if let Some(open) = &mut admitted.open {
            open.set_waiting(false);
        }
        if !self.charges_by_outcome()
            && let Some(mut open) = admitted.open.take()
        {
            open.keep();
        }
        if let Some(open) = admitted.open.as_mut().filter(|_| self.counts_aborted()) {
            open.count_if_aborted();
        }
        admitted
    }
}

impl<S: Store> Admitted<S> {
    /// What the handler is to be given, where it tells the cost.
    #[must_use]
    pub fn charge(&self) -> Option<Charge> {
        match self.open.as_ref()?.settling() {
            Settling::Told(charge) => Some(charge.clone()),
            Settling::Not | Settling::Bytes(_) => None,
        }
    }
}

#[cfg(feature = "tracing")]
fn trace(verdict: &Verdict) {
    for ruling in verdict.rulings() {
        let policy = ruling.label().name().as_str();
        if let Some(reason) = ruling.decision().and_then(|decision| decision.degraded()) {
            tracing::debug!(target: "tidegate", policy, reason = reason.name(), "answered without the store");
        }
        if ruling.would_deny() {
            tracing::debug!(target: "tidegate", policy, shadow = ruling.is_shadow(), "denied");
        }
    }
}
