//! The circuit breaker: counts round trips without an answer, and attempts to connect.

use std::time::Duration;

/// The number of consecutive timeouts that open the breaker.
const MAX_TIMEOUTS: u32 = 3;

/// The delay after the first failed attempt, and the maximum. Jitter takes off up to half of it.
const FIRST_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_millis(500);

/// The failures since the last answer.
#[derive(Debug, Default)]
pub(super) struct FailureCount {
    timeouts: u32,
    attempts: u32,
}

impl FailureCount {
    /// Counts a round trip that was not answered in time. Returns `true` if the breaker must open.
    pub(super) fn timed_out(&mut self) -> bool {
        self.timeouts = self.timeouts.saturating_add(1);
        self.timeouts >= MAX_TIMEOUTS
    }

    /// Counts an attempt to connect.
    pub(super) fn attempted(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
    }

    /// Resets everything: a round trip was answered.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// Forgets the timeouts of the previous connection. The attempts count until the new one has
    /// answered: a server that accepts and closes must not be dialed without a delay.
    pub(super) fn connected(&mut self) {
        self.timeouts = 0;
    }

    /// Returns the delay before the next attempt to connect: exponential, with jitter.
    pub(super) fn delay(&self) -> Option<Duration> {
        let doublings = self.attempts.checked_sub(1)?.min(10);
        let delay = FIRST_DELAY.saturating_mul(1 << doublings).min(MAX_DELAY);
        Some(delay.mul_f64(0.5 + fastrand::f64() / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_timeouts_in_a_row_open_the_breaker() {
        let mut failures = FailureCount::default();
        assert_eq!([(); 2].map(|()| failures.timed_out()), [false, false]);
        failures.answered();
        assert_eq!([(); 3].map(|()| failures.timed_out()), [false, false, true]);
    }

    #[test]
    fn the_first_attempt_is_immediate_and_later_ones_back_off() {
        let mut failures = FailureCount::default();
        assert_eq!(failures.delay(), None);
        let mut longest = Duration::ZERO;
        for _ in 0..40 {
            failures.attempted();
            let delay = failures.delay().unwrap();
            assert!(delay >= FIRST_DELAY / 2 && delay <= MAX_DELAY, "{delay:?}");
            longest = longest.max(delay);
        }
        assert!(longest > MAX_DELAY / 2, "{longest:?}");
    }
}
