//! sliding_window_counter: the count of the current window, plus the count of the previous window
//! weighted by its overlap with the last period.
//!
//! A request is allowed if `previous × (period − elapsed) / period + current + cost ≤ limit`. Both
//! sides are multiplied by the period and compared in 128 bits, so the comparison is exact.

use super::divisor::{Divisor, QUOTIENT_BITS, WideDivisor};
use super::fixed_window::end_of_window;
use super::{Algorithm, Answer, Claim};
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
    /// The limit, and a unit, multiplied by the period.
    limit_times_period: u128,
    unit_times_period: u128,
    by_period: Divisor,
    by_period_wide: WideDivisor,
    /// Set if the quotients of [`remaining`](Algorithm::remaining) fit `by_period_wide`.
    is_narrow: bool,
}

impl SlidingWindowCounter {
    pub(crate) fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.limit() * THOUSANDTHS,
            most_counted: limit.most_counted() * THOUSANDTHS,
            period: limit.period_ns(),
            limit_times_period: u128::from(limit.limit() * THOUSANDTHS)
                * u128::from(limit.period_ns()),
            unit_times_period: u128::from(THOUSANDTHS) * u128::from(limit.period_ns()),
            by_period: Divisor::new(limit.period_ns()),
            by_period_wide: WideDivisor::new(limit.period_ns()),
            is_narrow: limit.limit() * THOUSANDTHS < 1 << QUOTIENT_BITS,
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
    #[inline(always)]
    fn at(&self, state: &CounterState, now: u64) -> CounterState {
        if now < state.end {
            return *state;
        }
        let end = end_of_window(now, self.period, &self.by_period);
        let is_next_window = now - state.end < self.period;
        CounterState {
            end,
            current: 0,
            previous: if is_next_window { state.current } else { 0 },
        }
    }

    /// Returns the weighted usage multiplied by the period.
    #[inline(always)]
    fn usage(&self, state: &CounterState, now: u64) -> u128 {
        (u128::from(state.previous) * u128::from(state.end - now))
            .saturating_add(self.times_period(state.current))
    }

    #[inline(always)]
    fn times_period(&self, amount: u64) -> u128 {
        if amount == THOUSANDTHS {
            return self.unit_times_period;
        }
        u128::from(amount) * u128::from(self.period)
    }

    /// Returns the whole units in an amount that is multiplied by the period and at most the limit.
    #[inline(always)]
    fn units(&self, free: u128) -> u64 {
        let thousandths = if self.is_narrow {
            self.by_period_wide.divide(free)
        } else {
            // At most the limit, so it fits.
            (free / u128::from(self.period)) as u64
        };
        thousandths / THOUSANDTHS
    }

    /// Returns the wait of a request that does not fit.
    #[inline(always)]
    fn wait_of_denied(&self, state: &CounterState, now: u64, cost: u64) -> u64 {
        let left = state.end - now;
        match self.limit.checked_sub(state.current.saturating_add(cost)) {
            Some(room) => self.until_faded(state.previous, left, room),
            // The request fits in the next window at the earliest, where `current` becomes
            // `previous` and fades.
            None => {
                let room = self.limit.saturating_sub(cost);
                left.saturating_add(self.until_faded(state.current, self.period, room))
            }
        }
    }

    /// Returns the shortest time until `count`, weighted by its share of a window with `left` to
    /// go, is at most `room`.
    #[inline(always)]
    fn until_faded(&self, count: u64, left: u64, room: u64) -> u64 {
        let excess = (u128::from(count) * u128::from(left)).saturating_sub(self.times_period(room));
        let count = count.max(1);
        match u64::try_from(excess) {
            Ok(excess) => excess.div_ceil(count),
            // At most `left`, so it fits.
            Err(_) => excess.div_ceil(u128::from(count)) as u64,
        }
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
        state.end = end_of_window(now, self.period, &self.by_period);
    }

    #[inline]
    fn wait(&self, state: &CounterState, now: u64, cost: u64) -> Option<u64> {
        let state = self.at(state, now);
        if self
            .usage(&state, now)
            .saturating_add(self.times_period(cost))
            <= self.limit_times_period
        {
            return None;
        }
        Some(self.wait_of_denied(&state, now, cost))
    }

    #[inline(always)]
    fn answer(&self, state: &CounterState, now: u64, cost: u64) -> Option<Answer<CounterState>> {
        if cost == 0 || cost > self.limit || !self.is_narrow || self.is_from_future(state, now) {
            return None;
        }
        let state = self.at(state, now);
        if state.end <= now {
            // The end of time.
            return None;
        }
        let free = self
            .limit_times_period
            .saturating_sub(self.usage(&state, now));
        let Some(left_over) = free.checked_sub(self.times_period(cost)) else {
            return Some(Answer {
                taken: None,
                wait: self.wait_of_denied(&state, now, cost),
                remaining: self.units(free),
                reset_after: self.reset_after(&state, now),
            });
        };
        let taken = CounterState {
            current: state.current.checked_add(cost)?,
            ..state
        };
        Some(Answer {
            wait: 0,
            remaining: self.units(left_over),
            reset_after: (state.end - now).saturating_add(self.period),
            taken: Some(taken),
        })
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
        self.units(free)
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
