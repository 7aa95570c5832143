//! Waiting until a request is allowed.
//!
//! Requests of one key queue in this process, and only the first asks the store. It sleeps for the
//! wait that the store returned, and asks again. An admission also tells the next request how long
//! to sleep, so a request usually costs one call.

use std::future::IntoFuture;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::future::{Either, select};

use super::queue::QueuePlace;
use super::{AcquireError, CheckError, Limiter};
use crate::clock::Timestamp;
use crate::cost::{Cost, CostError};
use crate::decision::Degraded;
use crate::denied::{Denied, Usage};
use crate::gate::Undelivered;
use crate::key::{Key, KeyBuf};
use crate::store::{Admission, Store, StoreError};
use crate::subject::KeyBytes;

/// A request that waits until it is allowed. Nothing happens until `.await` or `.blocking()`.
///
/// - Requests of one key are served first come first served, within this process. Processes that
///   share a store share the limit, in any order.
/// - A future that is dropped takes nothing.
/// - It sleeps until the store said that the request fits. It does not poll.
/// - With a [`timeout`](Self::timeout), it fails at once if the request cannot be allowed in time.
///
/// A `leaky_bucket` also returns a [`delay`](crate::Decision::delay), which is left to the caller.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::Limiter;
///
/// let limiter = Limiter::memory("100/second burst=1".parse()?);
/// limiter.acquire("api.example.com").blocking()?;
/// // The second request waits for 10 ms.
/// limiter.acquire("api.example.com").timeout(Duration::from_secs(1)).blocking()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is acquired until `.await` or `.blocking()`"]
#[derive(Debug)]
pub struct Acquire<'a, S: Store> {
    limiter: &'a Limiter<S>,
    key: KeyBuf<'a>,
    cost: Result<Cost, CostError>,
    timeout: Option<Duration>,
}

impl<'a, S: Store> Acquire<'a, S> {
    pub(super) fn new(limiter: &'a Limiter<S>, key: KeyBuf<'a>) -> Self {
        Self {
            limiter,
            key,
            cost: Ok(Cost::ONE),
            timeout: None,
        }
    }

    /// Sets the cost. The default is 1.
    pub fn cost<C: TryInto<Cost, Error: Into<CostError>>>(mut self, cost: C) -> Self {
        self.cost = cost.try_into().map_err(Into::into);
        self
    }

    /// Sets the longest time to wait. The default is no limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{AcquireError, Limiter};
    ///
    /// let limiter = Limiter::memory("fixed_window 1/day".parse()?);
    /// limiter.acquire("user:42").blocking()?;
    /// let error = limiter.acquire("user:42").timeout(Duration::from_secs(2)).blocking().unwrap_err();
    /// assert!(matches!(error, AcquireError::Denied(denied) if denied.retry_after().is_some()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Waits, blocking the current thread. For programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the request can never be allowed or not before the timeout, if the key is
    /// empty, if the cost is invalid, or if the current thread runs async tasks. Nothing is taken
    /// then.
    pub fn blocking(self) -> Result<Usage, AcquireError> {
        self.limiter.store().block_on(self.wait())?
    }

    async fn wait(self) -> Result<Usage, AcquireError> {
        let key = self.limiter.shared.key(&self.key)?;
        let (key, cost) = (Key::new(&key)?, self.cost?);
        let clock = self.limiter.store().clock();
        let deadline = self.timeout.map(|timeout| Deadline {
            timeout,
            at: clock.now().saturating_add(timeout),
        });
        let place = self.limiter.shared.queues.join(key.as_bytes());
        wait_for_turn(&place, &clock, deadline).await?;
        // A time beyond the deadline is asked for, so that the error has figures.
        let expected = place
            .expected(cost)
            .filter(|at| deadline.is_none_or(|deadline| *at <= deadline.at));
        if let Some(at) = expected {
            clock.sleep(at.saturating_since(clock.now())).await;
        }
        loop {
            let admission = self.limiter.admit_cancel_safe(key, cost).await?;
            let decision = admission.decision;
            let now = clock.now();
            if decision.is_allowed() {
                let again = admission.again_after;
                place.expect(cost, again.map(|wait| now.saturating_add(wait)));
                return Ok(Usage(decision));
            }
            let Some(wait) = decision.retry_after() else {
                return Err(Denied::of(decision).into());
            };
            if deadline.is_some_and(|deadline| now.saturating_add(wait) > deadline.at) {
                return Err(Denied::of(decision).into());
            }
            clock.sleep(wait).await;
        }
    }
}

/// The end of a wait.
#[derive(Clone, Copy)]
struct Deadline {
    timeout: Duration,
    at: Timestamp,
}

async fn wait_for_turn(
    place: &QueuePlace<'_>,
    clock: &crate::clock::Clock,
    deadline: Option<Deadline>,
) -> Result<(), AcquireError> {
    let Some(Deadline { timeout, at }) = deadline else {
        place.turn().await;
        return Ok(());
    };
    let sleep = pin!(clock.sleep(at.saturating_since(clock.now())));
    match select(place.turn(), sleep).await {
        Either::Left(_) => Ok(()),
        Either::Right(_) => Err(AcquireError::Timeout(timeout)),
    }
}

impl<S: Store> Limiter<S> {
    /// Decides a request. If the future is dropped before it completes, nothing stays taken.
    async fn admit_cancel_safe(&self, key: Key<'_>, cost: Cost) -> Result<Admission, CheckError> {
        if !self.store().is_remote() {
            return Ok(self.admit_with_receipt(key, cost).await?.0);
        }
        let (send, receive) = oneshot::channel();
        let (limiter, key) = (self.clone(), KeyBytes::from_slice(key.as_bytes()));
        self.store().detach(async move {
            let admitted = match Key::new(&key) {
                Ok(key) => limiter.admit_with_receipt(key, cost).await,
                Err(empty) => Err(empty.into()),
            };
            // If the receiver is gone, the result is dropped, which gives everything back.
            let _ = send.send(Undelivered::new(admitted));
        });
        match receive.await {
            Ok(undelivered) => Ok(undelivered.deliver()?.0),
            Err(gone) => Err(StoreError::new(Degraded::Disconnected, gone).into()),
        }
    }
}

impl<'a, S: Store> IntoFuture for Acquire<'a, S> {
    type Output = Result<Usage, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.wait())
    }
}
