//! The algorithms as pure functions: no clock, no lock, no I/O.
//!
//! Every algorithm implements the [`Algorithm`] trait on its own state, with integers only: times
//! in nanoseconds, amounts in thousandths of a unit. The default state is a fresh one. [`decide`],
//! [`charge`], [`refund`] and [`settle`] combine the limits of a policy, all or nothing.

mod bucket;
mod claim;
mod decide;
mod divisor;
mod fixed_window;
mod sliding_window_counter;
mod sliding_window_log;
mod span;
mod step;
#[cfg(test)]
mod tests;

pub(crate) use bucket::{Bucket, BucketState, gcd};
pub use claim::{Claim, Claims};
pub(crate) use decide::{
    StateChange, charge, decide, is_from_future, limit_figures, peek, probe, refund, settle, wait,
};
pub(crate) use fixed_window::{FixedWindow, WindowState};
pub(crate) use sliding_window_counter::{CounterState, SlidingWindowCounter};
use sliding_window_log::SlidingWindowLog;
pub(crate) use sliding_window_log::{LogState, MAX_ENTRIES};
pub(crate) use span::{Fractional, Span, Whole};
pub(crate) use step::{BucketVersions, Step, StepState};

use crate::cost::THOUSANDTHS;

/// The answer of one limit to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer<S> {
    /// The state after an admitted request, or `None` if the request is denied and nothing changes.
    pub(crate) taken: Option<S>,
    /// The delay of an admitted request, or the wait of a denied one.
    pub(crate) wait: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_after: u64,
}

/// The arithmetic of one limit. `now` is in nanoseconds since the Unix epoch, `cost` in
/// thousandths.
///
/// Methods that read a state or take from it expect one that is not [from the
/// future](Self::is_from_future).
pub(crate) trait Algorithm {
    /// The state of one key. The default is a fresh one.
    type State: Default;

    /// Returns the capacity in thousandths, the largest cost that can ever fit.
    fn capacity_cost(&self) -> u64;

    /// Returns the capacity in units.
    #[inline]
    fn capacity(&self) -> u64 {
        self.capacity_cost() / THOUSANDTHS
    }

    /// Returns `true` if the state is from the future, or was written with a larger capacity.
    fn is_from_future(&self, state: &Self::State, now: u64) -> bool;

    /// Clamps a state from the future to now.
    fn clamp(&self, state: &mut Self::State, now: u64);

    /// Returns the shortest wait after which `cost` fits, or `None` if it fits now. `cost` is at
    /// most the capacity.
    fn wait(&self, state: &Self::State, now: u64, cost: u64) -> Option<u64>;

    /// Answers a request without slices and without a division of 128 bits, as [`decide`] would.
    /// Returns `None` if that is not possible: the cost is 0 or exceeds the capacity, the state is
    /// from the future or damaged, or the numbers are too large.
    #[inline(always)]
    fn answer(&self, _state: &Self::State, _now: u64, _cost: u64) -> Option<Answer<Self::State>> {
        None
    }

    /// Returns how long a request admitted now waits for the requests before it.
    fn delay(&self, _state: &Self::State, _now: u64) -> u64 {
        0
    }

    /// Takes `cost`, which fits.
    fn take(&self, state: &mut Self::State, now: u64, cost: u64);

    /// Gives `cost` back, at most what is counted now.
    fn refund_cost(&self, state: &mut Self::State, now: u64, cost: u64);

    /// Returns where the request just taken is counted.
    fn claim(&self, state: &Self::State, now: u64) -> Claim;

    /// Gives `cost` back, at most what is still counted of the request that `claim` belongs to.
    fn refund_claimed(&self, state: &mut Self::State, now: u64, claim: Claim, cost: u64);

    /// Takes `cost` whatever the limit says, as far as the debt allows. Returns the amount that was
    /// dropped because it exceeded the debt.
    fn charge(&self, state: &mut Self::State, now: u64, cost: u64) -> u64;

    /// Returns a copy for a trial: taking from it leaves the same figures as taking from `state`.
    /// The copy is small, however long a log is.
    fn trial_copy(&self, state: &Self::State, now: u64) -> Self::State;

    /// Returns the number of requests of cost 1 that fit now.
    fn remaining(&self, state: &Self::State, now: u64) -> u64;

    /// Returns the shortest wait after which the state equals a fresh one.
    fn reset_after(&self, state: &Self::State, now: u64) -> u64;
}
