//! The system's time at the price of the processor's counter.
//!
//! The counter is anchored to the system's monotonic clock, and anchored anew every few milliseconds by whichever check
//! comes first: each time the speed for the next stretch is set so that what little was off is gone at its end. So it
//! neither drifts nor steps. Where the counter is not steady, or is ever seen to disagree with the system's clock by
//! more than a thousandth, the system is asked each time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering, fence};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::hardware;

/// How long an anchor serves, in nanoseconds.
const STRETCH: u64 = 10_000_000;
/// The speed is in nanoseconds a count, times 2^32.
const SPEED_BITS: u32 = 32;
/// How far the counter may be from the system's clock at the end of a stretch that was not much too long.
const TOLERANCE: u64 = STRETCH / 1_000;
/// A reading of both clocks that took longer was interrupted and is not used.
const LONGEST_READING: u64 = 20_000;

/// What the counter is used for at the time.
const CALIBRATING: u8 = 0;
const TRUSTED: u8 = 1;
const DISTRUSTED: u8 = 2;

pub(super) struct AnchoredClock {
    /// The wall clock at `started`.
    epoch: u64,
    started: Instant,
    trust: AtomicU8,
    /// Odd while an anchor is being written; readers that met one write read again.
    version: AtomicU64,
    anchor_count: AtomicU64,
    anchor_time: AtomicU64,
    speed: AtomicU64,
    /// How many counts the anchor serves.
    stretch: AtomicU64,
    /// The last reading of both clocks. Held by the one that anchors; nobody waits for it.
    anchoring: Mutex<Option<Reading>>,
}

#[derive(Clone, Copy)]
struct Reading {
    count: u64,
    time: u64,
}

impl AnchoredClock {
    pub(super) fn global() -> &'static Self {
        static CLOCK: OnceLock<AnchoredClock> = OnceLock::new();
        CLOCK.get_or_init(Self::start)
    }

    #[allow(clippy::disallowed_methods)] // Here the clocks are read.
    fn start() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let trust = if hardware::has_steady_counter() { CALIBRATING } else { DISTRUSTED };
        Self {
            epoch,
            started: Instant::now(),
            trust: AtomicU8::new(trust),
            version: AtomicU64::new(0),
            anchor_count: AtomicU64::new(0),
            anchor_time: AtomicU64::new(0),
            speed: AtomicU64::new(0),
            stretch: AtomicU64::new(0),
            anchoring: Mutex::new(None),
        }
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        if self.trust.load(Ordering::Relaxed) != TRUSTED {
            return self.ask_and_calibrate();
        }
        let count = hardware::counter();
        // A counter that went back, as after a move to another host, is as far away as one that ran on for long.
        if count.wrapping_sub(self.anchor_count.load(Ordering::Relaxed)) >= self.stretch.load(Ordering::Relaxed) {
            return self.anchor_again();
        }
        self.at(count)
    }

    /// The time at `count`, by the anchor in force.
    #[inline]
    fn at(&self, count: u64) -> u64 {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let anchor_count = self.anchor_count.load(Ordering::Relaxed);
            let anchor_time = self.anchor_time.load(Ordering::Relaxed);
            let speed = self.speed.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if version % 2 == 0 && self.version.load(Ordering::Relaxed) == version {
                return time_at(count, anchor_count, anchor_time, speed);
            }
            std::hint::spin_loop();
        }
    }

    #[allow(clippy::disallowed_methods)] // Here the clocks are read.
    fn ask(&self) -> u64 {
        self.epoch.wrapping_add(self.started.elapsed().as_nanos() as u64)
    }

    /// Both clocks at one moment, or `None` if the thread was interrupted in between.
    fn read_both(&self) -> (u64, Option<Reading>) {
        let before = hardware::counter();
        let time = self.ask();
        let after = hardware::counter();
        let is_close = after.wrapping_sub(before) < LONGEST_READING;
        (time, is_close.then_some(Reading { count: before.wrapping_add(after.wrapping_sub(before) / 2), time }))
    }

    /// Answers by the system's clock; once a stretch has passed since the first answer, the speed is known.
    #[cold]
    fn ask_and_calibrate(&self) -> u64 {
        let (time, reading) = self.read_both();
        let (Some(reading), Some(mut last)) = (reading, self.anchoring.try_lock()) else { return time };
        if self.trust.load(Ordering::Relaxed) != CALIBRATING {
            return time;
        }
        let Some(first) = *last else {
            *last = Some(reading);
            return time;
        };
        if reading.time.saturating_sub(first.time) < STRETCH {
            return time;
        }
        if let Some(speed) = speed_between(first, reading) {
            *last = Some(reading);
            self.set_anchor(reading, reading.time, speed, counts_in(STRETCH, speed));
            self.trust.store(TRUSTED, Ordering::Release);
        }
        time
    }

    /// Anchors the counter to the system's clock again, unless another thread is just doing so.
    #[cold]
    fn anchor_again(&self) -> u64 {
        let (time, reading) = self.read_both();
        let (Some(reading), Some(mut last)) = (reading, self.anchoring.try_lock()) else { return time };
        let Some(previous) = *last else { return time };
        let Some(speed) = speed_between(previous, reading) else {
            self.trust.store(DISTRUSTED, Ordering::Relaxed);
            return time;
        };
        if reading.time - previous.time < STRETCH / 2 {
            return time; // Another thread has just done it.
        }
        let ours = self.at(reading.count);
        *last = Some(reading);
        let stretch = reading.time.saturating_sub(previous.time);
        let counts = counts_in(STRETCH, speed);
        if stretch > 2 * STRETCH {
            // Nobody asked for a while: nothing to be continuous with.
            self.set_anchor(reading, time, speed, counts);
            return time;
        }
        if ours.abs_diff(time) > TOLERANCE {
            self.trust.store(DISTRUSTED, Ordering::Relaxed);
            return time;
        }
        // So fast that the two meet at the end of the next stretch.
        let correction = (i128::from(time) - i128::from(ours)) * (1 << SPEED_BITS) / i128::from(counts.max(1));
        let corrected = u64::try_from(i128::from(speed) + correction).unwrap_or(speed);
        self.set_anchor(reading, ours, corrected, counts);
        ours
    }

    fn set_anchor(&self, reading: Reading, time: u64, speed: u64, counts: u64) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.anchor_count.store(reading.count, Ordering::Relaxed);
        self.anchor_time.store(time, Ordering::Relaxed);
        self.speed.store(speed, Ordering::Relaxed);
        self.stretch.store(counts, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

#[inline]
fn time_at(count: u64, anchor_count: u64, anchor_time: u64, speed: u64) -> u64 {
    // A reader may hold a count from just before the anchor was set.
    let since = count.saturating_sub(anchor_count);
    anchor_time + ((u128::from(since) * u128::from(speed)) >> SPEED_BITS) as u64
}

fn speed_between(first: Reading, last: Reading) -> Option<u64> {
    let counts = last.count.checked_sub(first.count).filter(|counts| *counts > 0)?;
    let time = last.time.checked_sub(first.time).filter(|time| *time > 0)?;
    u64::try_from((u128::from(time) << SPEED_BITS) / u128::from(counts)).ok()
}

fn counts_in(time: u64, speed: u64) -> u64 {
    u64::try_from((u128::from(time) << SPEED_BITS) / u128::from(speed.max(1))).unwrap_or(u64::MAX)
}
