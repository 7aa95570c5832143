//! sliding_window_counter: the count of the current window, plus the count of the previous window
//! weighted by its overlap with the last period.
//!
//! A request is allowed if `previous × (period − elapsed) / period + current + cost ≤ limit`. Both
//! sides are multiplied by the period and compared in 128 bits, so the comparison is exact.

use super::fixed_window::end_of_window;
use super::{Algorithm, Claim};
use crate::cost::THOUSANDTHS;
use crate::policy::Limit;

/// The window last written to, identified by its end, with its count and that of the window before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CounterState {
    pub(crate) end: u64,
    pub(crate) current: u64,
    pub(crate) previous: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct SlidingWindowCounter {
    /// The limit in thousandths.
    limit: u64,
    /// The limit and the debt in thousandths.
    most_counted: u64,
    period: u64,
}

impl SlidingWindowCounter {
    pub(crate) fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.limit() * THOUSANDTHS,
            most_counted: limit.most_counted() * THOUSANDTHS,
            period: limit.period_ns(),
        }
    }

    /// Returns the largest count of a window, in thousandths.
    pub(crate) fn most_counted(&self) -> u64 {
        self.most_counted
    }

    #[inline]
    pub(crate) fn period(&self) -> u64 {
        self.period
    }

    /// Returns the state at `now`. After a window has passed, its count becomes the previous one;
    /// after two, both are 0.
    #[inline]
    fn at(&self, state: &CounterState, now: u64) -> CounterState {
        if now < state.end {
            return *state;
        }
        let end = end_of_window(now, self.period);
        let is_next_window = now - state.end < self.period;
        CounterState {
            end,
            current: 0,
            previous: if is_next_window { state.current } else { 0 },
        }
    }

    /// Returns the weighted usage multiplied by the period.
    #[inline]
    fn usage(&self, state: &CounterState, now: u64) -> u128 {
        (u128::from(state.previous) * u128::from(state.end - now))
            .saturating_add(self.times_period(state.current))
    }

    #[inline]
    fn times_period(&self, amount: u64) -> u128 {
        u128::from(amount) * u128::from(self.period)
    }

    /// Returns the shortest time until `count`, weighted by its share of a window with `left` to
    /// go, is at most `room`.
    #[inline]
    fn until_faded(&self, count: u64, left: u64, room: u64) -> u64 {
        let excess = (u128::from(count) * u128::from(left)).saturating_sub(self.times_period(room));
        excess.div_ceil(u128::from(count.max(1))) as u64
    }
}

impl Algorithm for SlidingWindowCounter {
    type State = CounterState;

    #[inline]
    fn capacity_cost(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn is_from_future(&self, state: &CounterState, now: u64) -> bool {
        // The window begins after now.
        state.end > now.saturating_add(self.period)
    }

    #[inline]
    fn clamp(&self, state: &mut CounterState, now: u64) {
        state.end = end_of_window(now, self.period);
    }

    #[inline]
    fn wait(&self, state: &CounterState, now: u64, cost: u64) -> Option<u64> {
        let state = self.at(state, now);
        if self
            .usage(&state, now)
            .saturating_add(self.times_period(cost))
            <= self.times_period(self.limit)
        {
            return None;
        }
        let left = state.end - now;
        let Some(room) = self.limit.checked_sub(state.current.saturating_add(cost)) else {
            // The request fits in the next window at the earliest, where `current` becomes
            // `previous` and fades.
            let room = self.limit.saturating_sub(cost);
            return Some(left.saturating_add(self.until_faded(state.current, self.period, room)));
        };
        Some(self.until_faded(state.previous, left, room))
    }

    #[inline]
    fn take(&self, state: &mut CounterState, now: u64, cost: u64) {
        *state = self.at(state, now);
        state.current = state.current.saturating_add(cost);
    }

    #[inline]
    fn refund_cost(&self, state: &mut CounterState, now: u64, cost: u64) {
        *state = self.at(state, now);
        let from_current = cost.min(state.current);
        state.current -= from_current;
        state.previous = state.previous.saturating_sub(cost - from_current);
    }

    fn claim(&self, state: &CounterState, _now: u64) -> Claim {
        Claim {
            time: state.end,
            part: 0,
        }
    }

    fn refund_claimed(&self, state: &mut CounterState, now: u64, claim: Claim, cost: u64) {
        *state = self.at(state, now);
        if claim.time == state.end {
            state.current = state.current.saturating_sub(cost);
        } else if claim.time.saturating_add(self.period) == state.end {
            state.previous = state.previous.saturating_sub(cost);
        }
    }

    fn charge(&self, state: &mut CounterState, now: u64, cost: u64) -> u64 {
        *state = self.at(state, now);
        let free = self
            .times_period(self.most_counted)
            .saturating_sub(self.usage(state, now));
        // At most the largest count, so it fits.
        let fits = cost.min((free / u128::from(self.period)) as u64);
        state.current = state.current.saturating_add(fits);
        cost - fits
    }

    fn trial_copy(&self, state: &CounterState, _now: u64) -> CounterState {
        *state
    }

    #[inline]
    fn remaining(&self, state: &CounterState, now: u64) -> u64 {
        let state = self.at(state, now);
        let free = self
            .times_period(self.limit)
            .saturating_sub(self.usage(&state, now));
        // At most the limit, so it fits. Two divisions, each by a 64-bit number.
        (free / u128::from(self.period)) as u64 / THOUSANDTHS
    }

    #[inline]
    fn reset_after(&self, state: &CounterState, now: u64) -> u64 {
        let state = self.at(state, now);
        match state {
            CounterState {
                current: 0,
                previous: 0,
                ..
            } => 0,
            CounterState { current: 0, .. } => state.end - now,
            _ => (state.end - now).saturating_add(self.period),
        }
    }
}
