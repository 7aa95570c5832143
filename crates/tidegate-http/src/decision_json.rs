//! A decision as JSON: the fields and their rounding, for the server and the command line.

use serde::Serialize;
use tidegate_core::{Decision, Outcome};

use crate::rounding::microseconds;

/// The figures of a decision. Durations are in microseconds, rounded up.
///
/// If the failure policy answered with `open` or `closed`, the amounts are `None`: they are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DecisionJson {
    /// True if the request may proceed.
    pub allowed: bool,
    /// The capacity.
    pub limit: Option<u64>,
    /// The number of requests of cost 1 that would be allowed now.
    pub remaining: Option<u64>,
    /// 0 if allowed; `None` if the request can never be allowed, or if the wait is unknown.
    pub retry_after_us: Option<u64>,
    /// The time until the whole capacity is free.
    pub reset_after_us: Option<u64>,
    /// The delay of an admitted request in a leaky bucket's queue.
    pub delay_us: u64,
}

impl From<&Decision> for DecisionJson {
    fn from(decision: &Decision) -> Self {
        let has_figures = decision.has_figures();
        let reset_after_us = microseconds(decision.reset_after());
        Self {
            allowed: decision.is_allowed(),
            limit: Some(decision.limit()),
            remaining: has_figures.then_some(decision.remaining()),
            retry_after_us: match decision.outcome() {
                Outcome::Allowed { .. } => Some(0),
                Outcome::Denied { retry_after } => Some(microseconds(retry_after)),
                Outcome::NeverAllowed => None,
            },
            reset_after_us: has_figures.then_some(reset_after_us),
            delay_us: microseconds(decision.delay()),
        }
    }
}
