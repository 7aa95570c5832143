//! A linear function from counter values to times, which many threads read without a lock.

use crate::sync::{AtomicU64, Ordering, fence, spin_loop};

/// The fixed-point scale of the speed: nanoseconds per count, times 2^32.
const SPEED_BITS: u32 = 32;

/// The number of attempts to read a consistent calibration.
const MAX_ATTEMPTS: u32 = if cfg!(tidegate_loom) { 3 } else { 100 };

/// A calibration from counter values to times: a starting point, a speed and a length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Calibration {
    pub(super) count: u64,
    pub(super) time: u64,
    pub(super) speed: u64,
    /// The number of counts that the calibration is valid for; 0 if it is not.
    pub(super) interval: u64,
}

impl Calibration {
    /// Returns the time at `count`, or `None` if the calibration is not valid there.
    ///
    /// A count from before the calibration's start, for example after a move to another host, wraps around
    /// and is out of range too.
    #[inline]
    pub(super) fn at(&self, count: u64) -> Option<u64> {
        let since = count.wrapping_sub(self.count);
        (since < self.interval).then(|| self.after(since))
    }

    /// Returns the time `since` counts after the start.
    #[inline]
    pub(super) fn after(&self, since: u64) -> u64 {
        // At most two intervals, 20 ms: their nanoseconds times 2^32 are below 2^57.
        self.time
            .wrapping_add(since.wrapping_mul(self.speed) >> SPEED_BITS)
    }
}

/// Returns the speed, or `None` if either clock did not advance.
pub(super) fn speed(counts: u64, time: u64) -> Option<u64> {
    if counts == 0 || time == 0 {
        return None;
    }
    u64::try_from((u128::from(time) << SPEED_BITS) / u128::from(counts))
        .ok()
        .filter(|speed| *speed > 0)
}

/// Returns the number of counts in `time` at `speed`: at most ten per nanosecond, whatever was
/// measured.
pub(super) fn counts(time: u64, speed: u64) -> u64 {
    let counts = (u128::from(time) << SPEED_BITS) / u128::from(speed.max(1));
    u64::try_from(counts)
        .unwrap_or(u64::MAX)
        .min(time.saturating_mul(10))
}

/// Returns `speed`, adjusted to gain `time` over `counts` counts. A negative `time` slows it down.
pub(super) fn corrected(speed: u64, time: i64, counts: u64) -> u64 {
    let gain = i128::from(time) * (1 << SPEED_BITS) / i128::from(counts.max(1));
    u64::try_from(i128::from(speed) + gain).unwrap_or(speed)
}

/// The current calibration. One thread at a time writes it, all threads read it.
#[derive(Debug)]
pub(super) struct CalibrationCell {
    /// Odd while a calibration is being written. A reader that sees a change reads again.
    version: AtomicU64,
    count: AtomicU64,
    time: AtomicU64,
    speed: AtomicU64,
    interval: AtomicU64,
}

impl CalibrationCell {
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            version: zero(),
            count: zero(),
            time: zero(),
            speed: zero(),
            interval: zero(),
        }
    }

    /// Returns the calibration, or `None` if the writer was interrupted in the middle of a write.
    #[inline]
    pub(super) fn calibration(&self) -> Option<Calibration> {
        for _ in 0..MAX_ATTEMPTS {
            let version = self.version.load(Ordering::Acquire);
            let calibration = Calibration {
                count: self.count.load(Ordering::Relaxed),
                time: self.time.load(Ordering::Relaxed),
                speed: self.speed.load(Ordering::Relaxed),
                interval: self.interval.load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return Some(calibration);
            }
            spin_loop();
        }
        None
    }

    /// Sets the calibration. Only one thread at a time may call this.
    pub(super) fn set(&self, calibration: Calibration) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.count.store(calibration.count, Ordering::Relaxed);
        self.time.store(calibration.time, Ordering::Relaxed);
        self.speed.store(calibration.speed, Ordering::Relaxed);
        self.interval.store(calibration.interval, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A reader only sees values that were written together.
    #[test]
    fn lines_are_read_whole() {
        loom::model(|| {
            let calibration = Arc::new(CalibrationCell::new());
            let writer = Arc::clone(&calibration);
            let thread = thread::spawn(move || {
                writer.set(Calibration {
                    count: 1,
                    time: 1,
                    speed: 1,
                    interval: 1,
                });
            });
            if let Some(Calibration {
                count,
                time,
                speed,
                interval,
            }) = calibration.calibration()
            {
                assert!(count == time && time == speed && speed == interval);
            }
            thread.join().unwrap();
            assert_eq!(calibration.calibration().unwrap().count, 1);
        });
    }
}
