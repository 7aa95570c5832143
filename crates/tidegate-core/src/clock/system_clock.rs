//! The system's time, read from the processor's counter.
//!
//! The counter is calibrated against the system's monotonic clock every few milliseconds, by
//! whichever check comes first. Each time, the speed for the next interval is set so that the
//! remaining error is gone at its end. The clock therefore neither drifts nor steps.
//!
//! If the counter is not steady, or ever differs from the system's clock by more than a thousandth,
//! the system is asked each time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::calibration::{self, Calibration, CalibrationCell};
use crate::hardware;

/// The time between two calibrations, in nanoseconds.
const INTERVAL: u64 = 10_000_000;
/// The largest accepted difference from the system's clock at the end of an interval.
const TOLERANCE: u64 = INTERVAL / 1_000;
/// The largest number of counts that reading both clocks may take. A longer reading was
/// interrupted.
const MAX_READING: u64 = 2_000;

pub(super) struct SystemClock {
    /// The wall clock at `started`.
    epoch: u64,
    started: Instant,
    /// Set while the counter is trusted.
    has_counter: AtomicBool,
    calibration: CalibrationCell,
    /// The last reading of both clocks. The thread that calibrates holds the lock; no thread waits
    /// for it.
    last: Mutex<Option<Reading>>,
}

/// Both clocks at the same moment.
#[derive(Clone, Copy)]
struct Reading {
    count: u64,
    time: u64,
}

/// Returns the wall clock in nanoseconds since the epoch.
#[allow(clippy::disallowed_methods)] // Here the clocks are read.
fn wall() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(0)
}

impl SystemClock {
    #[inline]
    pub(super) fn global() -> &'static Self {
        static CLOCK: OnceLock<SystemClock> = OnceLock::new();
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
            calibration: CalibrationCell::new(),
            last: Mutex::new(None),
        }
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        let Some(calibration) = self.calibration.calibration() else {
            return self.read_system();
        };
        match calibration.at(hardware::counter()) {
            Some(time) => time,
            None => self.read_and_calibrate(calibration),
        }
    }

    /// Reads the system's monotonic clock.
    fn read_system(&self) -> u64 {
        self.epoch
            .saturating_add(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Reads the system's clock, and returns both clocks together unless the thread was
    /// interrupted.
    fn read_both(&self) -> (u64, Option<Reading>) {
        let before = hardware::counter();
        let time = self.read_system();
        let between = hardware::counter().wrapping_sub(before);
        let reading = Reading {
            count: before.wrapping_add(between / 2),
            time,
        };
        (time, (between < MAX_READING).then_some(reading))
    }

    /// Sets the next calibration at the end of an interval, unless another thread is doing so.
    #[cold]
    fn read_and_calibrate(&self, calibration: Calibration) -> u64 {
        if !self.has_counter.load(Ordering::Relaxed) {
            return self.read_system();
        }
        if let Some(mut last) = self.last.try_lock()
            && let (_, Some(reading)) = self.read_both()
        {
            self.calibrate_at(reading, &mut last);
        }
        // Continue along the old calibration if it was valid until just now, so that the time does not
        // step.
        let since = hardware::counter().wrapping_sub(calibration.count);
        let is_recent = since < 2 * calibration.interval;
        if is_recent && self.has_counter.load(Ordering::Relaxed) {
            calibration.after(since)
        } else {
            self.read_system()
        }
    }

    /// Sets the calibration for the next interval.
    fn calibrate_at(&self, reading: Reading, last: &mut Option<Reading>) {
        let Some(previous) = last.replace(reading) else {
            return;
        };
        let (Some(calibration), Some(counts)) = (
            self.calibration.calibration(),
            reading.count.checked_sub(previous.count),
        ) else {
            return self.distrust();
        };
        let interval = reading.time.saturating_sub(previous.time);
        if interval < INTERVAL / 2 {
            *last = Some(previous); // Another thread has just done it, or we have just begun.
            return;
        }
        if interval > 2 * INTERVAL {
            // The clock was idle. The machine may have been suspended while one of the clocks stood
            // still, so there is no speed to measure and nothing to be continuous with.
            if calibration.interval > 0 {
                self.calibration.set(Calibration {
                    count: reading.count,
                    time: reading.time,
                    ..calibration
                });
            }
            return;
        }
        match calibration::speed(counts, interval) {
            Some(speed) => self.continue_at(calibration, reading, speed),
            None => self.distrust(),
        }
    }

    /// Continues from the end of the last calibration, at the speed that meets the system's clock at the
    /// end of the next interval.
    fn continue_at(&self, calibration: Calibration, reading: Reading, speed: u64) {
        let counts = calibration::counts(INTERVAL, speed);
        let next = Calibration {
            count: reading.count,
            time: reading.time,
            speed,
            interval: counts,
        };
        if calibration.interval == 0 {
            return self.calibration.set(next);
        }
        // The calibration was valid until just now, but an interrupted thread may have read long after it.
        let since = reading
            .count
            .wrapping_sub(calibration.count)
            .min(2 * calibration.interval);
        let ours = calibration.after(since);
        if ours.abs_diff(reading.time) > TOLERANCE {
            return self.distrust();
        }
        let behind = reading.time.wrapping_sub(ours) as i64;
        self.calibration.set(Calibration {
            time: ours,
            speed: calibration::corrected(speed, behind, counts),
            ..next
        });
    }

    fn distrust(&self) {
        self.has_counter.store(false, Ordering::Relaxed);
        self.calibration.set(Calibration::default());
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    /// Reads our clock between two readings of the system's, for several intervals.
    #[test]
    fn it_follows_the_system_clock() {
        let clock = SystemClock::start();
        let mut last = 0;
        while clock.read_system() < clock.epoch + 8 * INTERVAL {
            let before = clock.read_system();
            let ours = clock.now();
            let after = clock.read_system();
            assert!(
                before <= ours + TOLERANCE && ours <= after + TOLERANCE,
                "{before} {ours} {after}"
            );
            assert!(last <= ours + TOLERANCE, "back from {last} to {ours}");
            last = ours;
        }
    }

    /// An hour in which the counter advanced and the system's clock did not, as on a suspended
    /// machine.
    #[test]
    fn a_pause_of_one_clock_does_not_set_the_speed() {
        let clock = SystemClock::start();
        let speed = calibration::speed(3, 1).unwrap();
        let before = Calibration {
            count: 1_000,
            time: 5_000,
            speed,
            interval: calibration::counts(INTERVAL, speed),
        };
        clock.calibration.set(before);
        let mut last = Some(Reading {
            count: 1_000,
            time: 5_000,
        });
        let after = Reading {
            count: 1_000 + 3 * 3_600_000_000_000,
            time: 5_000 + 3 * INTERVAL,
        };
        clock.calibrate_at(after, &mut last);
        let calibration = clock.calibration.calibration().unwrap();
        assert_eq!(
            calibration,
            Calibration {
                count: after.count,
                time: after.time,
                ..before
            }
        );
    }

    #[test]
    fn a_counter_that_runs_wild_is_not_trusted_again() {
        let clock = SystemClock::start();
        // A calibration that is far off at the end of its interval, and a reading from its start.
        let (_, reading) = std::iter::repeat_with(|| clock.read_both())
            .find(|(_, reading)| reading.is_some())
            .unwrap();
        let reading = reading.unwrap();
        let speed = calibration::speed(1_000, 1_000).unwrap();
        clock.calibration.set(Calibration {
            count: reading.count,
            time: reading.time + 10 * TOLERANCE,
            speed,
            interval: 1,
        });
        let calibration = clock.calibration.calibration().unwrap();
        clock.continue_at(calibration, reading, speed);
        assert!(!clock.has_counter.load(Ordering::Relaxed));
        let before = clock.read_system();
        assert!((before..=before + 1_000_000_000).contains(&clock.now()));
    }
}
