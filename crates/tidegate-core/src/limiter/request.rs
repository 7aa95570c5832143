//! The operations of a limiter. Nothing happens until `.now()` (in memory), `.await` or
//! `.blocking()`.
//!
//! A [`Request`] has a key, a cost and a [kind](RequestKind): check, peek, charge, refund or reset.

use std::cell::Cell;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{CheckError, CheckWithReceipt, Limiter, Shared};
use crate::blocking;
use crate::cost::{Cost, CostError};
use crate::decision::{Decision, LimitFigures};
use crate::denied::Usage;
use crate::key::{Key, KeyBuf};
use crate::memory::MemoryStore;
use crate::store::{Admission, Store};

/// The future of a request.
#[must_use = "futures do nothing unless they are awaited"]
pub struct CheckFuture<'a, T>(FutureState<'a, T>);

enum FutureState<'a, T> {
    /// The result is already known.
    Known {
        answer: Option<Result<T, CheckError>>,
        yields_first: bool,
    },
    Asked(Pin<Box<dyn Future<Output = Result<T, CheckError>> + Send + 'a>>),
}

impl<'a, T> CheckFuture<'a, T> {
    /// Creates a future that is ready. One in 256 yields first, so that a loop over cached denials
    /// does not starve other tasks.
    fn cached(answer: T) -> Self {
        thread_local! { static COUNT: Cell<u8> = const { Cell::new(0) } }
        let count = COUNT.with(|count| count.replace(count.get().wrapping_add(1)));
        Self(FutureState::Known {
            answer: Some(Ok(answer)),
            yields_first: count == 0,
        })
    }

    pub(super) fn asked(answer: impl Future<Output = Result<T, CheckError>> + Send + 'a) -> Self {
        Self(FutureState::Asked(Box::pin(answer)))
    }
}

impl<T: Unpin> Future for CheckFuture<'_, T> {
    type Output = Result<T, CheckError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            FutureState::Known { yields_first, .. } if *yields_first => {
                *yields_first = false;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            // Polled after completion.
            FutureState::Known { answer, .. } => answer.take().map_or(Poll::Pending, Poll::Ready),
            FutureState::Asked(answer) => answer.as_mut().poll(context),
        }
    }
}

impl<T> std::fmt::Debug for CheckFuture<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckFuture").finish_non_exhaustive()
    }
}

/// One operation on one key. Nothing happens until `.now()` (in memory), `.await` or `.blocking()`.
///
/// [`Limiter::check`], [`peek`](Limiter::peek), [`charge`](Limiter::charge),
/// [`refund`](Limiter::refund) and [`reset`](Limiter::reset) create it.
#[must_use = "nothing happens until `.now()`, `.await` or `.blocking()`"]
pub struct Request<'a, S: Store, K> {
    pub(super) limiter: &'a Limiter<S>,
    pub(super) key: KeyBuf<'a>,
    pub(super) cost: Result<Cost, CostError>,
    kind: PhantomData<fn() -> K>,
}

/// A check. See [`Limiter::check`].
pub type Check<'a, S> = Request<'a, S, kind::Check>;
/// A check that also returns the figures of every limit. See [`Request::with_limits`].
pub type CheckWithLimits<'a, S> = Request<'a, S, kind::CheckWithLimits>;
/// A peek. See [`Limiter::peek`].
pub type Peek<'a, S> = Request<'a, S, kind::Peek>;
/// A peek that also returns the figures of every limit. See [`Request::with_limits`].
pub type PeekWithLimits<'a, S> = Request<'a, S, kind::PeekWithLimits>;
/// A charge. See [`Limiter::charge`].
pub type Charge<'a, S> = Request<'a, S, kind::Charge>;
/// A refund. See [`Limiter::refund`].
pub type Refund<'a, S> = Request<'a, S, kind::Refund>;
/// A reset. See [`Limiter::reset`].
pub type Reset<'a, S> = Request<'a, S, kind::Reset>;

/// The kinds of requests.
pub mod kind {
    /// Decides, and takes the cost of an allowed request.
    #[derive(Debug)]
    pub enum Check {}
    /// Like [`Check`], and returns the figures of every limit.
    #[derive(Debug)]
    pub enum CheckWithLimits {}
    /// Decides without taking.
    #[derive(Debug)]
    pub enum Peek {}
    /// Like [`Peek`], and returns the figures of every limit.
    #[derive(Debug)]
    pub enum PeekWithLimits {}
    /// Takes whatever the limits say.
    #[derive(Debug)]
    pub enum Charge {}
    /// Gives back.
    #[derive(Debug)]
    pub enum Refund {}
    /// Deletes the usage.
    #[derive(Debug)]
    pub enum Reset {}
}

/// A kind of request, with the type of its result. All kinds are in [`kind`].
pub trait RequestKind: Sized + 'static {
    /// The result.
    type Output: Send + Unpin;

    /// Runs the operation on an encoded key.
    #[doc(hidden)]
    fn run<S: Store>(
        limiter: &Limiter<S>,
        key: Key<'_>,
        cost: Cost,
    ) -> impl Future<Output = Result<Self::Output, CheckError>> + Send;

    /// Returns the result if this process knows it: from a lease or from the deny cache.
    #[doc(hidden)]
    fn cached<S: Store>(_: &Limiter<S>, _: Key<'_>, _: Cost) -> Option<Self::Output> {
        None
    }

    /// Runs the operation in memory.
    #[doc(hidden)]
    #[inline]
    fn now(request: Request<'_, MemoryStore, Self>) -> Result<Self::Output, CheckError> {
        blocking::ready(request.answer())
    }
}

/// A kind of request whose cost can be set: all but a reset.
pub trait HasCost: RequestKind {}

/// A kind of request that can also return the figures of every limit.
pub trait HasLimits: RequestKind {
    /// The kind that does.
    type WithLimits: RequestKind;
}

impl<'a, S: Store, K: RequestKind> Request<'a, S, K> {
    #[inline]
    pub(super) fn new(
        limiter: &'a Limiter<S>,
        key: KeyBuf<'a>,
        cost: Result<Cost, CostError>,
    ) -> Self {
        Self {
            limiter,
            key,
            cost,
            kind: PhantomData,
        }
    }

    fn cached(&self) -> Option<K::Output> {
        self.limiter.shared.guard.as_ref()?;
        let key = self.limiter.shared.key(&self.key).ok()?;
        K::cached(self.limiter, Key::new(&key).ok()?, self.cost.ok()?)
    }

    async fn answer(self) -> Result<K::Output, CheckError> {
        let key = self.limiter.shared.key(&self.key)?;
        K::run(self.limiter, Key::new(&key)?, self.cost?).await
    }

    /// Runs the request, blocking the current thread. For programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty, if the cost is invalid, or if the current thread runs
    /// async tasks. A refund and a reset also fail if the store cannot answer. Nothing changes then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("100/minute".parse()?);
    /// assert!(limiter.check("user:42").blocking()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn blocking(self) -> Result<K::Output, CheckError> {
        let limiter = self.limiter;
        limiter.store().block_on(async {
            match self.cached() {
                Some(output) => Ok(output),
                None => self.answer().await,
            }
        })?
    }
}

impl<S: Store, K: HasCost> Request<'_, S, K> {
    /// Sets the cost: an integer, a decimal with up to three places, or a [`Cost`]. A check of cost
    /// 0 looks without taking.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("10/minute".parse()?);
    /// assert_eq!(limiter.check("user:42").cost(2.5).now()?.remaining(), 7);
    /// assert_eq!(limiter.check("user:42").cost(0).now()?.remaining(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn cost<C: TryInto<Cost, Error: Into<CostError>>>(mut self, cost: C) -> Self {
        self.cost = cost.try_into().map_err(Into::into);
        self
    }
}

impl<'a, S: Store, K: HasLimits> Request<'a, S, K> {
    /// Also returns the figures of every limit, in the policy's order.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("5/second; fixed_window 100/day".parse()?);
    /// let (decision, limits) = limiter.peek("user:42").with_limits().now()?;
    /// assert_eq!(decision.limit_index(), 0);
    /// assert_eq!((limits[0].limit(), limits[1].limit()), (5, 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_limits(self) -> Request<'a, S, K::WithLimits> {
        Request::new(self.limiter, self.key, self.cost)
    }
}

impl<'a, S: Store> Check<'a, S> {
    /// Also returns a [`Receipt`](crate::Receipt), which corrects the request once its actual cost
    /// is known.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 1_000/hour".parse()?);
    /// let (decision, receipt) = limiter.check("user:42").cost(500).with_receipt().now()?;
    /// assert_eq!(decision.remaining(), 500);
    /// assert_eq!(receipt.settle_now(120)?[0].remaining(), 880);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_receipt(self) -> CheckWithReceipt<'a, S> {
        CheckWithReceipt { check: self }
    }
}

impl<K: RequestKind> Request<'_, MemoryStore, K> {
    /// Runs the request.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty or the cost is invalid. Nothing changes then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("100/minute".parse()?);
    /// assert!(limiter.check("user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn now(self) -> Result<K::Output, CheckError> {
        K::now(self)
    }
}

impl<'a, S: Store, K: RequestKind> IntoFuture for Request<'a, S, K> {
    type Output = Result<K::Output, CheckError>;
    type IntoFuture = CheckFuture<'a, K::Output>;

    fn into_future(self) -> Self::IntoFuture {
        match self.cached() {
            Some(output) => CheckFuture::cached(output),
            None => CheckFuture::asked(self.answer()),
        }
    }
}

impl<S: Store, K> std::fmt::Debug for Request<'_, S, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("key", &self.key)
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

impl RequestKind for kind::Check {
    type Output = Decision;

    async fn run<S: Store>(
        limiter: &Limiter<S>,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, CheckError> {
        Ok(limiter.shared.check(key, cost).await?)
    }

    fn cached<S: Store>(limiter: &Limiter<S>, key: Key<'_>, cost: Cost) -> Option<Decision> {
        let shared = &*limiter.shared;
        let guard = shared.guard.as_ref()?;
        guard
            .check_leased(&*shared.store, &shared.plan, key, cost)
            .or_else(|| guard.cached(key, cost))
    }

    #[inline(always)]
    fn now(check: Check<'_, MemoryStore>) -> Result<Decision, CheckError> {
        // A borrowed key is known at compile time, so most of a request is never made.
        match (check.key.plain_borrowed(), check.cost) {
            (Some(key), Ok(cost)) => check_plain(&check.limiter.shared, key, cost),
            _ => now_any(check),
        }
    }
}

/// Checks a key that is stored unchanged. The result is written where the caller wants it.
#[inline(never)]
fn check_plain(
    shared: &Shared<MemoryStore>,
    key: Key<'_>,
    cost: Cost,
) -> Result<Decision, CheckError> {
    let decision = shared.store.check_inlined(&shared.plan, key, cost);
    if let (Some(counters), true) = (&shared.counters, cost > Cost::ZERO) {
        counters.check_in_memory(&decision);
    }
    Ok(decision)
}

#[inline(never)]
fn now_any(check: Check<'_, MemoryStore>) -> Result<Decision, CheckError> {
    let shared = &*check.limiter.shared;
    if !shared.is_plain(&check.key) {
        return blocking::ready(check.answer());
    }
    let (key, cost) = (Key::new(check.key.as_bytes())?, check.cost?);
    check_plain(shared, key, cost)
}

impl RequestKind for kind::Peek {
    type Output = Decision;

    async fn run<S: Store>(
        limiter: &Limiter<S>,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, CheckError> {
        Ok(limiter.shared.peek(key, cost).await?.decision)
    }
}

/// A decision with the figures of every limit.
type WithLimits = (Decision, Vec<LimitFigures>);

/// Returns the figures of every limit, also of a policy that has only one.
fn with_limits(admission: Admission) -> WithLimits {
    let Admission {
        decision,
        mut limits,
        ..
    } = admission;
    if limits.is_empty() {
        limits.push(LimitFigures::from(&decision));
    }
    (decision, limits)
}

impl RequestKind for kind::CheckWithLimits {
    type Output = WithLimits;

    async fn run<S: Store>(
        limiter: &Limiter<S>,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<WithLimits, CheckError> {
        Ok(with_limits(limiter.admit_with_receipt(key, cost).await?.0))
    }
}

impl RequestKind for kind::PeekWithLimits {
    type Output = WithLimits;

    async fn run<S: Store>(
        limiter: &Limiter<S>,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<WithLimits, CheckError> {
        Ok(with_limits(limiter.shared.peek(key, cost).await?))
    }
}

impl RequestKind for kind::Charge {
    type Output = Usage;

    async fn run<S: Store>(
        limiter: &Limiter<S>,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Usage, CheckError> {
        Ok(Usage(limiter.shared.charge(key, cost).await?.decision))
    }
}

impl RequestKind for kind::Refund {
    type Output = Usage;

    async fn run<S: Store>(
        limiter: &Limiter<S>,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Usage, CheckError> {
        Ok(Usage(limiter.shared.refund(key, cost).await?))
    }
}

impl RequestKind for kind::Reset {
    type Output = bool;

    async fn run<S: Store>(
        limiter: &Limiter<S>,
        key: Key<'_>,
        _: Cost,
    ) -> Result<bool, CheckError> {
        Ok(limiter.shared.reset(key).await?)
    }
}

impl HasCost for kind::Check {}
impl HasCost for kind::CheckWithLimits {}
impl HasCost for kind::Peek {}
impl HasCost for kind::PeekWithLimits {}
impl HasCost for kind::Charge {}
impl HasCost for kind::Refund {}

impl HasLimits for kind::Check {
    type WithLimits = kind::CheckWithLimits;
}

impl HasLimits for kind::Peek {
    type WithLimits = kind::PeekWithLimits;
}
