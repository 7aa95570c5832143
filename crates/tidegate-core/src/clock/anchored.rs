//! The system's time at the price of the processor's counter.
//!
//! The counter is anchored to the system's monotonic clock, and anchored anew every few milliseconds by whichever check
//! comes first: each time the speed for the next stretch is set so that what little was off is gone at its end. So it
//! neither drifts nor steps. Where the counter is not steady, or is ever seen to disagree with the system's clock by
//! more than a thousandth, the system is asked each time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::anchor::{self, Anchor, Line};
use crate::hardware;

/// How long an anchor serves, in nanoseconds.
const STRETCH: u64 = 10_000_000;
/// How far the counter may be from the system's clock at the end of a stretch.
const TOLERANCE: u64 = STRETCH / 1_000;
/// A reading of both clocks that took more counts was interrupted and is not used.
const LONGEST_READING: u64 = 2_000;

pub(super) struct AnchoredClock {
    /// The wall clock at `started`.
    epoch: u64,
    started: Instant,
    /// Whether there is a counter that can be trusted.
    has_counter: AtomicBool,
    anchor: Anchor,
    /// The last reading of both clocks. Held by the one that anchors; nobody waits for it.
    last: Mutex<Option<Reading>>,
}

/// Both clocks at one moment.
#[derive(Clone, Copy)]
struct Reading {
    count: u64,
    time: u64,
}

/// The wall clock, in nanoseconds since the epoch.
#[allow(clippy::disallowed_methods)] // Here the clocks are read.
fn wall() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(0)
}

impl AnchoredClock {
    #[inline]
    pub(super) fn global() -> &'static Self {
        static CLOCK: OnceLock<AnchoredClock> = OnceLock::new();
        CLOCK.get_or_init(Self::start)
    }

    pub(super) fn wall_is_ahead_by(&self) -> i64 {
        i64::try_from(i128::from(wall()) - i128::from(self.now())).unwrap_or(0)
    }

    #[allow(clippy::disallowed_methods)] // Here the clocks are read.
    fn start() -> Self {
        Self {
            epoch: wall(),
            started: Instant::now(),
            has_counter: AtomicBool::new(hardware::has_steady_counter()),
            anchor: Anchor::new(),
            last: Mutex::new(None),
        }
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        let Some(line) = self.anchor.line() else {
            return self.ask();
        };
        match line.at(hardware::counter()) {
            Some(time) => time,
            None => self.read_and_anchor(line),
        }
    }

    /// What the system's clock says.
    fn ask(&self) -> u64 {
        self.epoch
            .saturating_add(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// What the system's clock says, and both clocks together unless the thread was interrupted in between.
    fn read_both(&self) -> (u64, Option<Reading>) {
        let before = hardware::counter();
        let time = self.ask();
        let between = hardware::counter().wrapping_sub(before);
        let reading = Reading {
            count: before.wrapping_add(between / 2),
            time,
        };
        (time, (between < LONGEST_READING).then_some(reading))
    }

    /// The line is at its end: sets the next one, unless another thread is just doing so.
    #[cold]
    fn read_and_anchor(&self, line: Line) -> u64 {
        if !self.has_counter.load(Ordering::Relaxed) {
            return self.ask();
        }
        if let Some(mut last) = self.last.try_lock()
            && let (_, Some(reading)) = self.read_both()
        {
            self.anchor_at(reading, &mut last);
        }
        // On along the old line where it was in force until just now, so that nobody sees a step.
        let since = hardware::counter().wrapping_sub(line.count);
        let is_recent = since < 2 * line.stretch;
        if is_recent && self.has_counter.load(Ordering::Relaxed) {
            line.after(since)
        } else {
            self.ask()
        }
    }

    /// Sets the line for the next stretch.
    fn anchor_at(&self, reading: Reading, last: &mut Option<Reading>) {
        let Some(previous) = last.replace(reading) else {
            return;
        };
        let (Some(line), Some(counts)) = (
            self.anchor.line(),
            reading.count.checked_sub(previous.count),
        ) else {
            return self.distrust();
        };
        let stretch = reading.time.saturating_sub(previous.time);
        if stretch < STRETCH / 2 {
            *last = Some(previous); // Another thread has just done it, or we have just begun.
            return;
        }
        if stretch > 2 * STRETCH {
            // Nobody asked for a while. What was between may have been a pause in which one clock stood still: nothing
            // to measure a speed by, and nothing to be continuous with.
            if line.stretch > 0 {
                self.anchor.set(Line {
                    count: reading.count,
                    time: reading.time,
                    ..line
                });
            }
            return;
        }
        match anchor::speed(counts, stretch) {
            Some(speed) => self.go_on(line, reading, speed),
            None => self.distrust(),
        }
    }

    /// From where the last line has come to, so fast that it meets the system's clock at the end of the stretch.
    fn go_on(&self, line: Line, reading: Reading, speed: u64) {
        let counts = anchor::counts(STRETCH, speed);
        let next = Line {
            count: reading.count,
            time: reading.time,
            speed,
            stretch: counts,
        };
        if line.stretch == 0 {
            return self.anchor.set(next);
        }
        // It was in force until just now, but one who was interrupted may have read long after it.
        let since = reading.count.wrapping_sub(line.count).min(2 * line.stretch);
        let ours = line.after(since);
        if ours.abs_diff(reading.time) > TOLERANCE {
            return self.distrust();
        }
        let behind = reading.time.wrapping_sub(ours) as i64;
        self.anchor.set(Line {
            time: ours,
            speed: anchor::corrected(speed, behind, counts),
            ..next
        });
    }

    fn distrust(&self) {
        self.has_counter.store(false, Ordering::Relaxed);
        self.anchor.set(Line::default());
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    /// Reads our clock between two readings of the system's, for some stretches: it is never far outside them.
    #[test]
    fn it_keeps_to_the_systems_clock() {
        let clock = AnchoredClock::start();
        let mut last = 0;
        while clock.ask() < clock.epoch + 8 * STRETCH {
            let before = clock.ask();
            let ours = clock.now();
            let after = clock.ask();
            assert!(
                before <= ours + TOLERANCE && ours <= after + TOLERANCE,
                "{before} {ours} {after}"
            );
            assert!(last <= ours + TOLERANCE, "back from {last} to {ours}");
            last = ours;
        }
    }

    /// An hour in which the counter ran on and the system's clock did not, as a suspended machine may see it.
    #[test]
    fn a_pause_of_one_clock_does_not_set_the_speed() {
        let clock = AnchoredClock::start();
        let speed = anchor::speed(3, 1).unwrap();
        let before = Line {
            count: 1_000,
            time: 5_000,
            speed,
            stretch: anchor::counts(STRETCH, speed),
        };
        clock.anchor.set(before);
        let mut last = Some(Reading {
            count: 1_000,
            time: 5_000,
        });
        let after = Reading {
            count: 1_000 + 3 * 3_600_000_000_000,
            time: 5_000 + 3 * STRETCH,
        };
        clock.anchor_at(after, &mut last);
        let line = clock.anchor.line().unwrap();
        assert_eq!(
            line,
            Line {
                count: after.count,
                time: after.time,
                ..before
            }
        );
    }

    #[test]
    fn a_counter_that_runs_wild_is_not_trusted_again() {
        let clock = AnchoredClock::start();
        // A line that is far from the truth, at the end of its stretch, and a reading from when it began.
        let (_, reading) = std::iter::repeat_with(|| clock.read_both())
            .find(|(_, reading)| reading.is_some())
            .unwrap();
        let reading = reading.unwrap();
        let speed = anchor::speed(1_000, 1_000).unwrap();
        clock.anchor.set(Line {
            count: reading.count,
            time: reading.time + 10 * TOLERANCE,
            speed,
            stretch: 1,
        });
        let line = clock.anchor.line().unwrap();
        clock.go_on(line, reading, speed);
        assert!(!clock.has_counter.load(Ordering::Relaxed));
        let before = clock.ask();
        assert!((before..=before + 1_000_000_000).contains(&clock.now()));
    }
}
