//! The algorithms, as pure steps: no clock, no lock, no I/O.
//!
//! Each has the same drawers ([`Algorithm`]), works on a state of its own and on whole numbers only: times in
//! nanoseconds, amounts in thousandths of a unit. A fresh state is the default one. [`decide`] and [`refund`] put
//! several limits together, all or nothing; a policy of one limit is the same with one.

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
pub(crate) use decide::{Written, decide, is_ahead, probe, refund, settle};
pub(crate) use fixed_window::{FixedWindow, WindowState};
pub(crate) use sliding_window_counter::{CounterState, SlidingWindowCounter};
use sliding_window_log::SlidingWindowLog;
pub(crate) use sliding_window_log::{LogState, MAX_ENTRIES};
pub(crate) use span::{Fractional, Span, Whole};
pub(crate) use step::{BucketVersions, Step, StepState};

use crate::cost::THOUSANDTHS;

/// One limit's arithmetic. `now` is in nanoseconds since the epoch, `cost` in thousandths.
///
/// Whatever looks at a state or takes from it expects one that is not [ahead](Self::is_ahead).
pub(crate) trait Algorithm {
    /// What is kept for one key. The default is the fresh one.
    type State: Default;

    /// The capacity in thousandths: what no single request may exceed.
    fn capacity_cost(&self) -> u64;

    /// The capacity in units.
    #[inline]
    fn capacity(&self) -> u64 {
        self.capacity_cost() / THOUSANDTHS
    }

    /// Whether a state is from the future, or was kept under a larger capacity.
    fn is_ahead(&self, state: &Self::State, now: u64) -> bool;

    /// Brings a state that is ahead back to now.
    fn bring_back(&self, state: &mut Self::State, now: u64);

    /// The shortest wait after which `cost` fits, or `None` if it fits now. `cost` is at most the capacity.
    fn wait(&self, state: &Self::State, now: u64, cost: u64) -> Option<u64>;

    /// How long a request that is admitted now waits for those before it.
    fn delay(&self, _state: &Self::State, _now: u64) -> u64 {
        0
    }

    /// Takes `cost`, which fits.
    fn take(&self, state: &mut Self::State, now: u64, cost: u64);

    /// Gives `cost` back, at most what is counted now.
    fn give_back(&self, state: &mut Self::State, now: u64, cost: u64);

    /// Where the request that was just taken is counted.
    fn claim(&self, state: &Self::State, now: u64) -> Claim;

    /// Gives `cost` back, at most what is still counted of the request that `claim` is of.
    fn give_back_claimed(&self, state: &mut Self::State, now: u64, claim: Claim, cost: u64);

    /// Takes `cost`, or as much of it as fits.
    fn charge(&self, state: &mut Self::State, now: u64, cost: u64);

    /// How many requests of cost 1 fit now.
    fn remaining(&self, state: &Self::State, now: u64) -> u64;

    /// The shortest wait after which the state equals a fresh one.
    fn reset_after(&self, state: &Self::State, now: u64) -> u64;
}
