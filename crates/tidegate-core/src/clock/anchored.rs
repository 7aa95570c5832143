//! The system's time at the price of the processor's counter.
//!
//! The counter is anchored to the system's monotonic clock, and anchored anew every few milliseconds by whichever check
//! comes first: each time the speed for the next stretch is set so that what little was off is gone at its end. So it
//! neither drifts nor steps. Where the counter is not steady, or is ever seen to disagree with the system's clock by
//! more than a thousandth, the system is asked each time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
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

pub(super) struct AnchoredClock {
    /// The wall clock at `started`.
    epoch: u64,
    started: Instant,
    /// Whether there is a counter that can be trusted.
    has_counter: AtomicBool,
    /// Odd while an anchor is being written; readers that met one write read again.
    version: AtomicU64,
    anchor_count: AtomicU64,
    anchor_time: AtomicU64,
    speed: AtomicU64,
    /// How many counts the anchor serves; 0 while there is none.
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
        Self {
            epoch,
            started: Instant::now(),
            has_counter: AtomicBool::new(hardware::has_steady_counter()),
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
        let count = hardware::counter();
        // A counter that went back, as after a move to another host, is as far away as one that ran on for long. One
        // that is not trusted has no stretch.
        if count.wrapping_sub(self.anchor_count.load(Ordering::Relaxed)) >= self.stretch.load(Ordering::Relaxed) {
            return self.read_and_anchor();
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

    /// Answers by the system's clock, and anchors the counter to it, unless another thread is just doing so.
    #[cold]
    fn read_and_anchor(&self) -> u64 {
        if !self.has_counter.load(Ordering::Relaxed) {
            return self.ask();
        }
        let (time, reading) = self.read_both();
        let (Some(reading), Some(mut last)) = (reading, self.anchoring.try_lock()) else { return time };
        let Some(previous) = last.replace(reading) else { return time };
        let Some(speed) = speed_between(previous, reading) else {
            self.distrust();
            return time;
        };
        let stretch = reading.time - previous.time;
        if stretch < STRETCH / 2 {
            // Just begun, or another thread has just done it.
            *last = Some(previous);
            return time;
        }
        self.anchor(reading, speed, stretch)
    }

    fn anchor(&self, reading: Reading, speed: u64, stretch: u64) -> u64 {
        let Reading { time, .. } = reading;
        let counts = counts_in(STRETCH, speed);
        if stretch > 2 * STRETCH || self.stretch.load(Ordering::Relaxed) == 0 {
            // The first anchor, or nobody asked for a while: nothing to be continuous with.
            self.set_anchor(reading, time, speed, counts);
            return time;
        }
        let ours = self.at(reading.count);
        if ours.abs_diff(time) > TOLERANCE {
            self.distrust();
            return time;
        }
        // So fast that the two meet at the end of the next stretch.
        let correction = (i128::from(time) - i128::from(ours)) * (1 << SPEED_BITS) / i128::from(counts.max(1));
        let corrected = u64::try_from(i128::from(speed) + correction).unwrap_or(speed);
        self.set_anchor(reading, ours, corrected, counts);
        ours
    }

    fn distrust(&self) {
        self.has_counter.store(false, Ordering::Relaxed);
        self.stretch.store(0, Ordering::Relaxed);
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
