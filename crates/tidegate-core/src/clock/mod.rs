//! Clocks. This is the only module that reads a clock.

mod calibration;
mod manual_clock;
mod system_clock;
mod time_source;
mod timer;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub use manual_clock::ManualClock;
use manual_clock::ManualSleep;
use system_clock::SystemClock;
pub use time_source::{SleepFuture, TimeSource};
use timer::SystemSleep;

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

    /// Returns the time from `earlier` until this time, or zero if it is later.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Timestamp;
    ///
    /// let time = Timestamp::from_nanos(7);
    /// assert_eq!(time.saturating_since(Timestamp::from_nanos(5)), Duration::from_nanos(2));
    /// assert_eq!(time.saturating_since(Timestamp::from_nanos(9)), Duration::ZERO);
    /// ```
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The source of time for a memory store: the system's clock, a [`ManualClock`] or a
/// [`TimeSource`].
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
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Manual(ManualClock),
    Custom(Arc<dyn TimeSource>),
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
            Source::System => Timestamp(SystemClock::global().now()),
            Source::Manual(clock) => clock.now(),
            Source::Custom(source) => source.now(),
        }
    }

    /// Creates a clock from a [`TimeSource`].
    pub fn from_source(source: impl TimeSource) -> Self {
        Self(Source::Custom(Arc::new(source)))
    }

    /// Sleeps until this clock has advanced by `duration`.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        match &self.0 {
            Source::System => Sleep::System(SystemSleep::new(duration)),
            Source::Manual(clock) => Sleep::Manual(clock.sleep(duration)),
            Source::Custom(source) => Sleep::Custom(source.sleep(duration)),
        }
    }
}

/// A sleep until a clock has advanced.
pub(crate) enum Sleep {
    System(SystemSleep),
    Manual(ManualSleep),
    Custom(SleepFuture),
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut *self {
            Self::System(sleep) => Pin::new(sleep).poll(context),
            Self::Manual(sleep) => Pin::new(sleep).poll(context),
            Self::Custom(sleep) => sleep.as_mut().poll(context),
        }
    }
}

impl Clock {
    /// Returns how far the wall clock is ahead of this process's clock, in nanoseconds.
    ///
    /// The two differ after the wall clock was set, or after the machine was suspended.
    pub(crate) fn wall_is_ahead_by(&self) -> i64 {
        match &self.0 {
            Source::System => SystemClock::global().wall_is_ahead_by(),
            Source::Manual(_) | Source::Custom(_) => 0,
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
        if matches!(self.0, Source::System) {
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
        Self(Source::Manual(clock))
    }
}
