//! A source of time that a program implements.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use super::Timestamp;

/// The future of [`TimeSource::sleep`].
pub type SleepFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A source of time: for simulations, and for tests with the paused time of an async runtime.
///
/// [`Clock::from_source`](crate::Clock::from_source) makes it a clock.
///
/// # Examples
///
/// The time of tokio, which stands still in tests with `start_paused`:
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Clock, Limiter, MemoryStore, SleepFuture, TimeSource, Timestamp};
/// use tokio::time::Instant;
///
/// #[derive(Debug)]
/// struct TokioTime(Instant);
///
/// impl TimeSource for TokioTime {
///     fn now(&self) -> Timestamp {
///         Timestamp::from_nanos(1_700_000_000_000_000_000).saturating_add(self.0.elapsed())
///     }
///
///     fn sleep(&self, duration: Duration) -> SleepFuture {
///         Box::pin(tokio::time::sleep(duration))
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// let clock = Clock::from_source(TokioTime(Instant::now()));
/// let store = MemoryStore::builder().clock(clock).build()?;
/// let limiter = Limiter::new(store, "fixed_window 1/day".parse()?);
/// limiter.acquire("user:42").await?;
/// // Waits for up to a day of tokio's time, which passes at once.
/// limiter.acquire("user:42").await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait TimeSource: Debug + Send + Sync + 'static {
    /// Returns the current time. It should not go backwards.
    fn now(&self) -> Timestamp;

    /// Returns a future that completes when this clock has advanced by `duration`.
    fn sleep(&self, duration: Duration) -> SleepFuture;
}
