//! Trials: requests at chosen instants against a policy in memory, relative to the edge of a
//! window. Each run has a key of its own, so runs do not affect each other.

use std::cell::Cell;
use std::time::Duration;

use tidegate_core::{Cost, Decision, Limiter, ManualClock, MemoryStore, Policy, Timestamp};

use crate::explain::period_ns;

/// The earliest origin, ten years after 1970, so that instants before it exist.
const EARLIEST_NS: u128 = 10 * 365 * 86_400 * 1_000_000_000;
/// The latest origin: 400 years later there is still time for a trial.
const LATEST_NS: u128 = 150 * 365 * 86_400 * 1_000_000_000;
/// The number of keys that may be in use. A run needs one.
const KEYS: u64 = 1 << 16;

/// A policy in memory, on a manual clock.
pub(crate) struct Trial {
    limiter: Limiter,
    clock: ManualClock,
    origin_ns: u64,
    runs: Cell<u64>,
}

/// One run of a [`Trial`], from a fresh state.
pub(crate) struct Run<'a> {
    trial: &'a Trial,
    key: u64,
}

impl Trial {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self::at(policy, origin([policy]))
    }

    /// Creates a trial whose instants are relative to `origin_ns`.
    pub(crate) fn at(policy: &Policy, origin_ns: u64) -> Self {
        let clock = ManualClock::at(Timestamp::from_nanos(origin_ns));
        let builder = MemoryStore::builder().max_keys(KEYS).clock(clock.clone());
        // The number of keys is valid, and small enough to allocate.
        let store = builder
            .build()
            .unwrap_or_else(|_| unreachable!("a valid number of keys"));
        Self {
            limiter: Limiter::new(store, policy.clone()),
            clock,
            origin_ns,
            runs: Cell::new(0),
        }
    }

    pub(crate) fn start(&self) -> Run<'_> {
        self.runs.set(self.runs.get() + 1);
        Run {
            trial: self,
            key: self.runs.get(),
        }
    }
}

/// Returns an instant at which windows of all periods begin, or at least those of the longest.
pub(crate) fn origin<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> u64 {
    let limits = policies.into_iter().flat_map(|policy| policy.limits());
    let periods: Vec<u128> = limits.map(|limit| u128::from(period_ns(limit))).collect();
    let common = periods.iter().try_fold(1_u128, |common, period| {
        let next = common / greatest_common_divisor(common, *period) * period;
        (next <= LATEST_NS).then_some(next)
    });
    let multiple = common.unwrap_or_else(|| periods.iter().copied().max().unwrap_or(1));
    (EARLIEST_NS.div_ceil(multiple) * multiple) as u64
}

const fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Run<'_> {
    fn set(&self, instant: i64) {
        let now = self.trial.origin_ns.saturating_add_signed(instant);
        self.trial.clock.set(Timestamp::from_nanos(now));
    }

    /// Sends `count` requests of cost 1 as one. Returns `true` if they pass.
    pub(crate) fn take(&mut self, instant: i64, count: u64) -> bool {
        self.check(instant, units(count))
            .is_some_and(|decision| decision.is_allowed())
    }

    /// Sends a request. In memory it fails only for an invalid key or cost.
    pub(crate) fn check(&mut self, instant: i64, cost: Cost) -> Option<Decision> {
        self.set(instant);
        self.trial.limiter.check(self.key).cost(cost).now().ok()
    }

    /// Returns the number of requests of cost 1 that would pass.
    pub(crate) fn remaining(&self, instant: i64) -> u64 {
        self.set(instant);
        let look = self.trial.limiter.check(self.key).cost(Cost::ZERO).now();
        look.map_or(0, |decision| decision.remaining())
    }

    /// Returns the wait of a request of cost 1 if it is denied, and the time until everything is
    /// free.
    pub(crate) fn changes(&self, instant: i64) -> (Option<Duration>, Option<Duration>) {
        self.set(instant);
        let Ok(peek) = self.trial.limiter.peek(self.key).now() else {
            return (None, None);
        };
        (peek.retry_after(), Some(peek.reset_after()))
    }

    /// Returns the wait of a request of cost 1; `None` if it is never allowed.
    pub(crate) fn wait(&self, instant: i64) -> Option<Duration> {
        self.set(instant);
        let peek = self.trial.limiter.peek(self.key).now().ok()?;
        peek.retry_after()
    }
}

/// Returns the cost of `count` requests of cost 1. A capacity is at most the largest cost.
pub(crate) fn units(count: u64) -> Cost {
    Cost::from_thousandths(count.saturating_mul(1_000)).unwrap_or(Cost::ONE)
}
