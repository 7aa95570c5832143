//! The line by which counts are read as times: a point and a speed, read whole or not at all.

use crate::sync::{AtomicU64, Ordering, fence, spin_loop};

/// The speed is in nanoseconds a count, times 2^32.
const SPEED_BITS: u32 = 32;

/// How often a line is read again before it is given up.
const LONGEST_WAIT: u32 = if cfg!(tidegate_loom) { 3 } else { 100 };

/// Where a line begins and how steep it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) count: u64,
    pub(super) time: u64,
    pub(super) speed: u64,
    /// How many counts it serves; 0 for none.
    pub(super) stretch: u64,
}

impl Line {
    /// The time at `count`, if the line serves that. A count from before it began, as after a move to another host, is as
    /// far away as one from long after it.
    #[inline]
    pub(super) fn at(&self, count: u64) -> Option<u64> {
        let since = count.wrapping_sub(self.count);
        (since < self.stretch).then(|| self.after(since))
    }

    /// The time so many counts after it began.
    #[inline]
    pub(super) fn after(&self, since: u64) -> u64 {
        // Of two stretches at most, so 20 ms: their nanoseconds times 2^32 are below 2^57.
        self.time
            .wrapping_add(since.wrapping_mul(self.speed) >> SPEED_BITS)
    }
}

/// How fast the time goes, if it goes on at all.
pub(super) fn speed(counts: u64, time: u64) -> Option<u64> {
    if counts == 0 || time == 0 {
        return None;
    }
    u64::try_from((u128::from(time) << SPEED_BITS) / u128::from(counts))
        .ok()
        .filter(|speed| *speed > 0)
}

/// How many counts there are in a time at a speed: at most ten a nanosecond, whatever was measured.
pub(super) fn counts(time: u64, speed: u64) -> u64 {
    let counts = (u128::from(time) << SPEED_BITS) / u128::from(speed.max(1));
    u64::try_from(counts)
        .unwrap_or(u64::MAX)
        .min(time.saturating_mul(10))
}

/// A speed that gains `time` in so many counts over another, or loses it.
pub(super) fn corrected(speed: u64, time: i64, counts: u64) -> u64 {
    let gain = i128::from(time) * (1 << SPEED_BITS) / i128::from(counts.max(1));
    u64::try_from(i128::from(speed) + gain).unwrap_or(speed)
}

/// The line in force: written by one thread at a time, read by all without a lock.
#[derive(Debug)]
pub(super) struct Anchor {
    /// Odd while a line is being written. Who met a write reads again.
    version: AtomicU64,
    count: AtomicU64,
    time: AtomicU64,
    speed: AtomicU64,
    stretch: AtomicU64,
}

impl Anchor {
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            version: zero(),
            count: zero(),
            time: zero(),
            speed: zero(),
            stretch: zero(),
        }
    }

    /// `None` if it is being written for longer than that takes, because the writer was interrupted.
    #[inline]
    pub(super) fn line(&self) -> Option<Line> {
        for _ in 0..LONGEST_WAIT {
            let version = self.version.load(Ordering::Acquire);
            let line = Line {
                count: self.count.load(Ordering::Relaxed),
                time: self.time.load(Ordering::Relaxed),
                speed: self.speed.load(Ordering::Relaxed),
                stretch: self.stretch.load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return Some(line);
            }
            spin_loop();
        }
        None
    }

    /// Only one thread at a time may.
    pub(super) fn set(&self, line: Line) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.count.store(line.count, Ordering::Relaxed);
        self.time.store(line.time, Ordering::Relaxed);
        self.speed.store(line.speed, Ordering::Relaxed);
        self.stretch.store(line.stretch, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Whatever a reader sees was written together.
    #[test]
    fn lines_are_read_whole() {
        loom::model(|| {
            let anchor = Arc::new(Anchor::new());
            let writer = Arc::clone(&anchor);
            let thread = thread::spawn(move || {
                writer.set(Line {
                    count: 1,
                    time: 1,
                    speed: 1,
                    stretch: 1,
                });
            });
            if let Some(Line {
                count,
                time,
                speed,
                stretch,
            }) = anchor.line()
            {
                assert!(count == time && time == speed && speed == stretch);
            }
            thread.join().unwrap();
            assert_eq!(anchor.line().unwrap().count, 1);
        });
    }
}
