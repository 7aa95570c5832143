//! A limiter without keys.

use super::request::Request;
use super::{Acquire, Charge, Check, Limiter, Peek, Refund, Reset};
use crate::cost::{Cost, CostError};
use crate::memory::MemoryStore;
use crate::store::Store;

/// The key of all requests. It is the key of the middleware's `key::global()` too.
const GLOBAL: &str = "global";

/// A limiter without keys: all requests count together. For limiting a service as a whole, or a
/// program's own calls. Clones share their counters.
///
/// [`Limiter::global`] creates it.
///
/// # Examples
///
/// ```
/// use tidegate::Limiter;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let api = Limiter::memory("5/second".parse()?).global();
/// api.acquire().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GlobalLimiter<S: Store = MemoryStore>(Limiter<S>);

impl<S: Store> GlobalLimiter<S> {
    pub(super) fn new(limiter: Limiter<S>) -> Self {
        Self(limiter)
    }

    /// Returns the limiter with keys. The key of this one is `global`.
    #[must_use]
    pub fn limiter(&self) -> &Limiter<S> {
        &self.0
    }

    /// Checks a request. See [`Limiter::check`].
    pub fn check(&self) -> Check<'_, S> {
        self.0.check(GLOBAL)
    }

    /// Returns the decision that a request would get. See [`Limiter::peek`].
    pub fn peek(&self) -> Peek<'_, S> {
        self.0.peek(GLOBAL)
    }

    /// Waits until a request is allowed. See [`Limiter::acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let api = Limiter::memory("100/second burst=1".parse()?).global();
    /// for _ in 0..3 {
    ///     api.acquire().blocking()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire(&self) -> Acquire<'_, S> {
        self.0.acquire(GLOBAL)
    }

    /// Takes a cost whatever the limit says. See [`Limiter::charge`].
    pub fn charge<C>(&self, cost: C) -> Charge<'_, S>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        self.0.charge(GLOBAL, cost)
    }

    /// Gives back a cost. See [`Limiter::refund`].
    pub fn refund<C>(&self, cost: C) -> Refund<'_, S>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        self.0.refund(GLOBAL, cost)
    }

    /// Deletes the usage. See [`Limiter::reset`].
    pub fn reset(&self) -> Reset<'_, S> {
        Request::new(&self.0, GLOBAL.into(), Ok(Cost::ZERO))
    }
}

impl<S: Store> Clone for GlobalLimiter<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
