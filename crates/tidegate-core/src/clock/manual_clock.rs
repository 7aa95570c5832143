//! A clock that a test sets.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::Timestamp;

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
pub struct ManualClock(Arc<ManualTime>);

#[derive(Debug)]
struct ManualTime {
    now: AtomicU64,
    sleepers: Mutex<Sleepers>,
}

/// The wakers of sleeping tasks, by the time at which they end. The number tells apart those that
/// end at the same time.
#[derive(Debug, Default)]
struct Sleepers {
    by_end: BTreeMap<(Timestamp, u64), Waker>,
    next_number: u64,
}

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
        Self(Arc::new(ManualTime {
            now: AtomicU64::new(time.as_nanos()),
            sleepers: Mutex::default(),
        }))
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.now.load(Ordering::SeqCst))
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
        self.0.now.store(time.as_nanos(), Ordering::SeqCst);
        self.wake();
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
        let by = super::saturating_nanos(by);
        // The update cannot fail: the closure always returns a value.
        let _ = self
            .0
            .now
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
                Some(now.saturating_add(by))
            });
        self.wake();
    }

    /// Returns the end of the sleep that ends first, or `None` if no task sleeps.
    ///
    /// A test can advance the clock to it, so that waiting tasks continue one after the other.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let sleepers = self.0.sleepers.lock();
        let ((end, _), _) = sleepers.by_end.first_key_value()?;
        Some(*end)
    }

    /// Wakes the tasks whose sleep is over.
    fn wake(&self) {
        let mut sleepers = self.0.sleepers.lock();
        let now = self.now();
        let later = sleepers.by_end.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut sleepers.by_end, later);
        drop(sleepers);
        due.into_values().for_each(Waker::wake);
    }

    pub(super) fn sleep(&self, duration: Duration) -> ManualSleep {
        ManualSleep {
            clock: self.clone(),
            end: self.now().saturating_add(duration),
            number: None,
        }
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

/// A sleep until a manual clock reaches a time.
pub(crate) struct ManualSleep {
    clock: ManualClock,
    end: Timestamp,
    number: Option<u64>,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // The time is read under the lock: either it is over, or `wake` finds the waker.
        let mut sleepers = this.clock.0.sleepers.lock();
        if this.clock.now() >= this.end {
            return Poll::Ready(());
        }
        let number = *this.number.get_or_insert_with(|| {
            sleepers.next_number += 1;
            sleepers.next_number
        });
        sleepers
            .by_end
            .insert((this.end, number), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut sleepers = self.clock.0.sleepers.lock();
            sleepers.by_end.remove(&(self.end, number));
        }
    }
}
