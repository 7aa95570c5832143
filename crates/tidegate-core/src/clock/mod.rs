//! Clocks. This is the only module that reads a clock.

mod calibration;
mod system_clock;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use system_clock::SystemClock;

/// A point in time: nanoseconds since the Unix epoch, up to the year 2554.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::Timestamp;
///
/// let time = Timestamp::from_nanos(1_000).saturating_add(Duration::from_micros(1));
/// assert_eq!(time.as_nanos(), 2_000);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Creates a timestamp from nanoseconds since the epoch.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Timestamp;
    ///
    /// assert_eq!(Timestamp::from_nanos(1_500).as_nanos(), 1_500);
    /// ```
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Creates a timestamp from microseconds since the epoch. Returns `None` past the year 2554.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Timestamp;
    ///
    /// let time = Timestamp::from_micros(1_700_000_000_000_000);
    /// assert_eq!(time, Some(Timestamp::from_nanos(1_700_000_000_000_000_000)));
    /// // Beyond the year 2554.
    /// assert_eq!(Timestamp::from_micros(u64::MAX), None);
    /// ```
    #[must_use]
    pub const fn from_micros(micros: u64) -> Option<Self> {
        match micros.checked_mul(1_000) {
            Some(nanos) => Some(Self(nanos)),
            None => None,
        }
    }

    /// Returns the nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time `duration` later, or the latest time if that is out of range.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Timestamp;
    ///
    /// let time = Timestamp::from_nanos(5).saturating_add(Duration::from_nanos(2));
    /// assert_eq!(time.as_nanos(), 7);
    /// ```
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(duration)))
    }
}

fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The source of time for a memory store.
///
/// # Examples
///
/// ```
/// use tidegate::{Clock, ManualClock};
///
/// let manual = ManualClock::new();
/// assert_eq!(Clock::from(manual.clone()).now(), manual.now());
/// assert!(Clock::system().now() > manual.now());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug, Default)]
enum ClockSource {
    #[default]
    System,
    Manual(ManualClock),
}

impl Clock {
    /// Returns the system clock: the wall clock, read once and continued by the monotonic clock.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Clock;
    ///
    /// let clock = Clock::system();
    /// assert!(clock.now() <= clock.now());
    /// ```
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// Returns the current time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            ClockSource::System => Timestamp(SystemClock::global().now()),
            ClockSource::Manual(clock) => clock.now(),
        }
    }
}

impl Clock {
    /// Returns how far the wall clock is ahead of this process's clock, in nanoseconds.
    ///
    /// The two differ after the wall clock was set, or after the machine was suspended.
    pub(crate) fn wall_is_ahead_by(&self) -> i64 {
        match &self.0 {
            ClockSource::System => SystemClock::global().wall_is_ahead_by(),
            ClockSource::Manual(_) => 0,
        }
    }

    /// Returns a time not before `now` at which `is_ahead` is `false`, if waiting a moment achieves
    /// that.
    ///
    /// A thread that was interrupted between reading the clock and acquiring the lock may find a
    /// state that another thread wrote at a later time. That is not a clock step, so the state must
    /// not be clamped. Only a manual clock steps.
    #[cold]
    pub(crate) fn catch_up(&self, now: u64, is_ahead: impl Fn(u64) -> bool) -> u64 {
        const LONGEST: u32 = 1_000;
        let mut now = now.max(self.now().as_nanos());
        if matches!(self.0, ClockSource::System) {
            // A difference between two cores passes within this many readings.
            for _ in 0..LONGEST {
                if !is_ahead(now) {
                    break;
                }
                now = now.max(self.now().as_nanos());
            }
        }
        now
    }
}

impl From<ManualClock> for Clock {
    fn from(clock: ManualClock) -> Self {
        Self(ClockSource::Manual(clock))
    }
}

/// A clock that stands still until it is moved, for tests without sleeping. Clones share the time.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limiter, ManualClock, MemoryStore};
///
/// let clock = ManualClock::new();
/// let store = MemoryStore::builder().clock(clock.clone()).build()?;
/// let limiter = Limiter::new(store, "1/minute".parse()?);
///
/// assert!(limiter.check("user:42").now()?.is_allowed());
/// assert!(limiter.check("user:42").now()?.is_denied());
/// clock.advance(Duration::from_secs(60));
/// assert!(limiter.check("user:42").now()?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Creates a clock at 2023-11-15 00:00:00 UTC, the start of a window of any period up to a day.
    #[must_use]
    pub fn new() -> Self {
        Self::at(Timestamp(1_700_006_400_000_000_000))
    }

    /// Creates a clock at `time`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Timestamp};
    ///
    /// let clock = ManualClock::at(Timestamp::from_nanos(5));
    /// assert_eq!(clock.now().as_nanos(), 5);
    /// ```
    #[must_use]
    pub fn at(time: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(time.0)))
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }

    /// Sets the clock, forward or back.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Timestamp};
    ///
    /// let clock = ManualClock::new();
    /// clock.set(Timestamp::from_nanos(5));
    /// assert_eq!(clock.now().as_nanos(), 5);
    /// ```
    pub fn set(&self, time: Timestamp) {
        self.0.store(time.0, Ordering::SeqCst);
    }

    /// Moves the clock forward.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Timestamp};
    ///
    /// let clock = ManualClock::at(Timestamp::from_nanos(5));
    /// clock.advance(Duration::from_nanos(3));
    /// assert_eq!(clock.now().as_nanos(), 8);
    /// ```
    pub fn advance(&self, by: Duration) {
        let by = saturating_nanos(by);
        // The update cannot fail: the closure always returns a value.
        let _ = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
                Some(now.saturating_add(by))
            });
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}
