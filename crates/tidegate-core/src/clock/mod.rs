//! Time. The one place where a clock is read.

mod anchor;
mod anchored;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anchored::AnchoredClock;

/// A point in time: nanoseconds since the Unix epoch, good until the year 2554.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// So many nanoseconds since the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// So many microseconds since the epoch; `None` past the year 2554.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Option<Self> {
        match micros.checked_mul(1_000) {
            Some(nanos) => Some(Self(nanos)),
            None => None,
        }
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This much later; the latest time there is where that is too far.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(duration)))
    }
}

fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Where a memory store takes its time from.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Manual(ManualClock),
}

impl Clock {
    /// The wall clock, read once in the process and carried on by the monotonic clock.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// The time now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp(AnchoredClock::global().now()),
            Source::Manual(clock) => clock.now(),
        }
    }
}

impl Clock {
    /// By how much the wall clock has been set, or the machine was suspended, since this process began to go on from it, in
    /// nanoseconds: how far the one is ahead of the other.
    pub(crate) fn wall_is_ahead_by(&self) -> i64 {
        match &self.0 {
            Source::System => AnchoredClock::global().wall_is_ahead_by(),
            Source::Manual(_) => 0,
        }
    }

    /// A time that is not before `now`, at which `is_ahead` no longer says that something is from the future, if waiting
    /// for a moment brings that about.
    ///
    /// A thread that was held up between reading the clock and being let in finds what others wrote meanwhile, at a later
    /// time: that is no step of the clock, and nothing to be brought back. Only a clock that is set by hand steps.
    #[cold]
    pub(crate) fn catch_up(&self, now: u64, is_ahead: impl Fn(u64) -> bool) -> u64 {
        const LONGEST: u32 = 1_000;
        let mut now = now.max(self.now().as_nanos());
        if matches!(self.0, Source::System) {
            // What two cores disagree by has passed before it is counted.
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

/// A clock that stands still until it is moved, so that limits are tested without sleeping. Clones share.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Limiter, ManualClock, MemoryStore};
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
    /// A clock at 2023-11-15 00:00:00 UTC, a time as good as any, at which windows of up to a day begin.
    #[must_use]
    pub fn new() -> Self {
        Self::at(Timestamp(1_700_006_400_000_000_000))
    }

    /// A clock at `time`.
    #[must_use]
    pub fn at(time: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(time.0)))
    }

    /// The time it shows.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }

    /// Sets it, forward or back.
    pub fn set(&self, time: Timestamp) {
        self.0.store(time.0, Ordering::SeqCst);
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        let by = saturating_nanos(by);
        // An update that cannot fail: the closure always answers.
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
