//! fixed_window: one count per window, aligned to the clock or to the first admitted request.

use super::divisor::Divisor;
use super::{Algorithm, Answer, Claim};
use crate::cost::THOUSANDTHS;
use crate::policy::Limit;

/// A window, identified by its end, and the amount admitted in it. A fresh state ended at the
/// epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowState {
    pub(crate) end: u64,
    pub(crate) count: u64,
}

impl WindowState {
    /// Returns the amount that counts now: 0 once the window is over.
    #[inline]
    fn count_at(&self, now: u64) -> u64 {
        if now < self.end { self.count } else { 0 }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct FixedWindow {
    /// The limit in thousandths.
    limit: u64,
    /// The limit and the debt in thousandths.
    most_counted: u64,
    period: u64,
    by_period: Divisor,
    opens_with_first_hit: bool,
}

impl FixedWindow {
    pub(crate) fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.limit() * THOUSANDTHS,
            most_counted: limit.most_counted() * THOUSANDTHS,
            period: limit.period_ns(),
            by_period: Divisor::new(limit.period_ns()),
            opens_with_first_hit: limit.opens_with_first_hit(),
        }
    }

    /// Returns the end of the window that a request at `now` opens.
    #[inline]
    fn new_end(&self, now: u64) -> u64 {
        if self.opens_with_first_hit {
            now.saturating_add(self.period)
        } else {
            end_of_window(now, self.period, &self.by_period)
        }
    }
}

/// Returns the end of the clock-aligned window that contains `now`.
#[inline]
pub(super) fn end_of_window(now: u64, period: u64, by_period: &Divisor) -> u64 {
    let (_, elapsed) = by_period.divide_with_rest(now);
    (now - elapsed).saturating_add(period)
}

impl Algorithm for FixedWindow {
    type State = WindowState;

    #[inline]
    fn capacity_cost(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn is_from_future(&self, state: &WindowState, now: u64) -> bool {
        // The window begins after now.
        state.end > now.saturating_add(self.period)
    }

    #[inline]
    fn clamp(&self, state: &mut WindowState, now: u64) {
        state.end = self.new_end(now);
    }

    #[inline]
    fn wait(&self, state: &WindowState, now: u64, cost: u64) -> Option<u64> {
        (state.count_at(now).saturating_add(cost) > self.limit)
            .then(|| state.end.saturating_sub(now))
    }

    #[inline(always)]
    fn answer(&self, state: &WindowState, now: u64, cost: u64) -> Option<Answer<WindowState>> {
        if cost == 0 || cost > self.limit || self.is_from_future(state, now) {
            return None;
        }
        let used = state.count_at(now);
        // Counts are at most 10^12, and so are costs.
        let count = used.checked_add(cost)?;
        if count > self.limit {
            let left = state.end.saturating_sub(now);
            return Some(Answer {
                taken: None,
                wait: left,
                remaining: self.limit.saturating_sub(used) / THOUSANDTHS,
                // The count is not 0, since a cost up to the limit does not fit.
                reset_after: left,
            });
        }
        let end = if now < state.end {
            state.end
        } else {
            self.new_end(now)
        };
        if end <= now {
            // The end of time.
            return None;
        }
        Some(Answer {
            taken: Some(WindowState { end, count }),
            wait: 0,
            remaining: (self.limit - count) / THOUSANDTHS,
            reset_after: end - now,
        })
    }

    #[inline]
    fn take(&self, state: &mut WindowState, now: u64, cost: u64) {
        let count = state.count_at(now).saturating_add(cost);
        let end = if now < state.end {
            state.end
        } else {
            self.new_end(now)
        };
        *state = WindowState { end, count };
    }

    #[inline]
    fn refund_cost(&self, state: &mut WindowState, now: u64, cost: u64) {
        let count = state.count_at(now).saturating_sub(cost);
        // A count of 0 closes the window: the state becomes a fresh one.
        *state = if count > 0 {
            WindowState {
                end: state.end,
                count,
            }
        } else {
            WindowState::default()
        };
    }

    fn claim(&self, state: &WindowState, _now: u64) -> Claim {
        Claim {
            time: state.end,
            part: 0,
        }
    }

    fn refund_claimed(&self, state: &mut WindowState, now: u64, claim: Claim, cost: u64) {
        self.refund_cost(state, now, if state.end == claim.time { cost } else { 0 });
    }

    fn charge(&self, state: &mut WindowState, now: u64, cost: u64) -> u64 {
        let fits = cost.min(self.most_counted.saturating_sub(state.count_at(now)));
        if fits > 0 {
            self.take(state, now, fits);
        }
        cost - fits
    }

    fn trial_copy(&self, state: &WindowState, _now: u64) -> WindowState {
        *state
    }

    #[inline]
    fn remaining(&self, state: &WindowState, now: u64) -> u64 {
        // Counts are kept when a limit is lowered, so the count may exceed the limit.
        self.limit.saturating_sub(state.count_at(now)) / THOUSANDTHS
    }

    #[inline]
    fn reset_after(&self, state: &WindowState, now: u64) -> u64 {
        if state.count_at(now) > 0 {
            state.end - now
        } else {
            0
        }
    }
}
