//! The operations of a limiter. Nothing happens until `.now()` (in memory), `.await` or `.wait()`.

use std::cell::Cell;
use std::future::IntoFuture;
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;

use super::multi_key::check_all;
use super::{CheckError, Limiter, LimiterRequest};
use crate::blocking;
use crate::cost::{Cost, CostError};
use crate::decision::Decision;
use crate::gate::{Receipt, ReceiptEntry};
use crate::key::Key;
use crate::memory::MemoryStore;
use crate::store::Store;
use crate::subject::{EncodedKey, KeyBytes};

/// The future of a check.
#[must_use = "futures do nothing unless they are awaited"]
pub struct CheckFuture<'a, T>(FutureState<'a, T>);

enum FutureState<'a, T> {
    /// The result is already known.
    Known {
        answer: Option<Result<T, CheckError>>,
        yields_first: bool,
    },
    LimiterRequest(Pin<Box<dyn Future<Output = Result<T, CheckError>> + Send + 'a>>),
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

    fn asked(answer: impl Future<Output = Result<T, CheckError>> + Send + 'a) -> Self {
        Self(FutureState::LimiterRequest(Box::pin(answer)))
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
            FutureState::LimiterRequest(answer) => answer.as_mut().poll(context),
        }
    }
}

impl<T> std::fmt::Debug for CheckFuture<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckFuture").finish_non_exhaustive()
    }
}

/// One request. Nothing happens until `.now()` (in memory), `.await` or `.wait()`.
#[must_use = "nothing is checked until `.now()`, `.await` or `.wait()`"]
#[derive(Debug)]
pub struct Check<'a, S: Store> {
    pub(super) limiter: &'a Limiter<S>,
    pub(super) key: &'a [u8],
    pub(super) cost: Result<Cost, CostError>,
}

impl<'a, S: Store> Check<'a, S> {
    /// Sets the cost: an integer, a decimal with up to three places, or a [`Cost`]. 0 looks without
    /// taking.
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

    /// Also returns a [`Receipt`], which corrects the request once its actual cost is known.
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

    /// Returns the decision if the deny cache has it.
    fn cached(&self) -> Option<Decision> {
        let guard = self.limiter.shared.guard.as_ref()?;
        let (Ok(key), Ok(cost)) = (self.limiter.shared.key(self.key), self.cost) else {
            return None;
        };
        guard.cached(Key::new(&key).ok()?, cost)
    }

    async fn answer(self) -> Result<Decision, CheckError> {
        let key = self.limiter.shared.key(self.key)?;
        Ok(self
            .limiter
            .shared
            .check(Key::new(&key)?, self.cost?)
            .await?)
    }

    /// Runs the check, blocking the current thread. For programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty, if the cost is invalid, or if the current thread runs
    /// async tasks. Nothing is taken then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("100/minute".parse()?);
    /// assert!(limiter.check("user:42").wait()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(self) -> Result<Decision, CheckError> {
        match self.cached() {
            Some(decision) => Ok(decision),
            None => self.limiter.store().block_on(self.answer())?,
        }
    }
}

impl Check<'_, MemoryStore> {
    /// Runs the check.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty or the cost is invalid. Nothing is taken then.
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
    pub fn now(self) -> Result<Decision, CheckError> {
        let shared = &*self.limiter.shared;
        let key = Key::new(self.key)?;
        if shared.is_plain(key) {
            Ok(shared.store.check(&shared.plan, key, self.cost?))
        } else {
            self.now_encoded()
        }
    }

    #[cold]
    fn now_encoded(self) -> Result<Decision, CheckError> {
        let shared = &*self.limiter.shared;
        Ok(shared
            .store
            .check(&shared.plan, Key::new(&shared.key(self.key)?)?, self.cost?))
    }
}

impl<'a, S: Store> IntoFuture for Check<'a, S> {
    type Output = Result<Decision, CheckError>;
    type IntoFuture = CheckFuture<'a, Decision>;

    fn into_future(self) -> Self::IntoFuture {
        match self.cached() {
            Some(decision) => CheckFuture::cached(decision),
            None => CheckFuture::asked(self.answer()),
        }
    }
}

/// One request that returns a receipt. Nothing happens until `.now()` (in memory), `.await` or
/// `.wait()`.
#[must_use = "nothing is checked until `.now()`, `.await` or `.wait()`"]
#[derive(Debug)]
pub struct CheckWithReceipt<'a, S: Store> {
    check: Check<'a, S>,
}

impl<S: Store> CheckWithReceipt<'_, S> {
    async fn answer(self) -> Result<(Decision, Receipt<S>), CheckError> {
        let Check { limiter, key, cost } = self.check;
        let key = limiter.shared.key(key)?;
        let asked = LimiterRequest {
            limiter,
            key: Key::new(&key)?,
            cost: cost?,
        };
        let answer = check_all(std::slice::from_ref(&asked), true)
            .await?
            .pop()
            .flatten();
        let Some((decision, claims)) = answer else {
            return Ok((
                limiter.shared.check(asked.key, Cost::ZERO).await?,
                Receipt::new(SmallVec::new()),
            ));
        };
        let mut taken = SmallVec::new();
        if !claims.is_empty() {
            let key = KeyBytes::from_slice(&key);
            taken.push(ReceiptEntry {
                limiter: limiter.clone(),
                key,
                cost: asked.cost,
                claims,
                degraded: decision.degraded(),
                counters: None,
            });
        }
        Ok((decision, Receipt::new(taken)))
    }

    /// Runs the check, blocking the current thread. For programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty, if the cost is invalid, or if the current thread runs
    /// async tasks. Nothing is taken then.
    pub fn wait(self) -> Result<(Decision, Receipt<S>), CheckError> {
        self.check.limiter.store().block_on(self.answer())?
    }
}

impl CheckWithReceipt<'_, MemoryStore> {
    /// Runs the check.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty or the cost is invalid. Nothing is taken then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 5/day".parse()?);
    /// let (decision, receipt) = limiter.check("user:42").cost(5).with_receipt().now()?;
    /// assert!(decision.is_allowed());
    /// assert_eq!(receipt.settle_now(2)?[0].remaining(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now(self) -> Result<(Decision, Receipt<MemoryStore>), CheckError> {
        blocking::ready(self.answer())
    }
}

impl<'a, S: Store> IntoFuture for CheckWithReceipt<'a, S> {
    type Output = Result<(Decision, Receipt<S>), CheckError>;
    type IntoFuture = CheckFuture<'a, (Decision, Receipt<S>)>;

    fn into_future(self) -> Self::IntoFuture {
        CheckFuture::asked(self.answer())
    }
}

/// A batch of requests. Nothing happens until `.now()` (in memory), `.await` or `.wait()`.
#[must_use = "nothing is checked until `.now()`, `.await` or `.wait()`"]
#[derive(Debug)]
pub struct CheckMany<'a, K, C, S: Store> {
    pub(super) limiter: &'a Limiter<S>,
    pub(super) requests: &'a [(K, C)],
}

/// Checks the key and the cost of one request of a batch.
#[inline]
fn keyed<K, C>((key, cost): &(K, C)) -> Result<(Key<'_>, Cost), CheckError>
where
    K: AsRef<[u8]>,
    C: Copy + TryInto<Cost, Error: Into<CostError>>,
{
    Ok((
        Key::new(key.as_ref())?,
        (*cost).try_into().map_err(Into::into)?,
    ))
}

impl<K, C> CheckMany<'_, K, C, MemoryStore>
where
    K: AsRef<[u8]>,
    C: Copy + TryInto<Cost, Error: Into<CostError>>,
{
    /// Runs the checks in order.
    ///
    /// # Errors
    ///
    /// Returns an error if a key is empty or a cost is invalid. Nothing is taken then, from any
    /// key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 5/day".parse()?);
    /// let decisions = limiter.check_many(&[("user:1", 1), ("user:2", 3)]).now()?;
    /// assert_eq!(decisions[1].remaining(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now(self) -> Result<Vec<Decision>, CheckError> {
        let mut decisions = Vec::with_capacity(self.requests.len());
        self.now_into(&mut decisions)?;
        Ok(decisions)
    }

    /// Runs the checks in order and appends the decisions to a vector, which can be reused.
    ///
    /// # Errors
    ///
    /// Returns an error if a key is empty or a cost is invalid. Nothing is taken then, from any
    /// key, and nothing is appended.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 5/day".parse()?);
    /// let mut decisions = Vec::new();
    /// // The vector is reused for every batch.
    /// limiter.check_many(&[("user:1", 1), ("user:2", 3)]).now_into(&mut decisions)?;
    /// assert_eq!(decisions.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now_into(self, decisions: &mut Vec<Decision>) -> Result<(), CheckError> {
        let shared = &*self.limiter.shared;
        let mut is_any_encoded = false;
        for request in self.requests {
            let (key, _) = keyed(request)?;
            is_any_encoded |= !shared.is_plain(key);
        }
        decisions.reserve(self.requests.len());
        let requests = self
            .requests
            .iter()
            .filter_map(|request| keyed(request).ok());
        if is_any_encoded {
            let encoded: Vec<(EncodedKey<'_>, Cost)> = requests
                .filter_map(|(key, cost)| Some((shared.key(key.as_bytes()).ok()?, cost)))
                .collect();
            let requests = encoded
                .iter()
                .filter_map(|(key, cost)| Some((Key::new(key).ok()?, *cost)));
            shared.store.check_many(&shared.plan, requests, decisions);
        } else {
            shared.store.check_many(&shared.plan, requests, decisions);
        }
        Ok(())
    }
}

impl<'a, K, C, S: Store> CheckMany<'a, K, C, S>
where
    K: AsRef<[u8]> + Sync,
    C: Copy + TryInto<Cost, Error: Into<CostError>> + Sync,
{
    async fn answer(self) -> Result<Vec<Decision>, CheckError> {
        let shared = &*self.limiter.shared;
        let encoded = |request| {
            let (key, cost) = keyed(request)?;
            Ok((shared.key(key.as_bytes())?, cost))
        };
        let encoded = self
            .requests
            .iter()
            .map(encoded)
            .collect::<Result<Vec<_>, CheckError>>()?;
        let requests = encoded
            .iter()
            .map(|(key, cost)| Ok((Key::new(key)?, *cost)))
            .collect::<Result<Vec<(Key<'_>, Cost)>, CheckError>>()?;
        Ok(shared.check_many(&requests).await?)
    }

    /// Runs the checks, blocking the current thread. For programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if a key is empty, if a cost is invalid, or if the current thread runs
    /// async tasks. Nothing is taken then, from any key.
    pub fn wait(self) -> Result<Vec<Decision>, CheckError> {
        self.limiter.store().block_on(self.answer())?
    }
}

impl<'a, K, C, S: Store> IntoFuture for CheckMany<'a, K, C, S>
where
    K: AsRef<[u8]> + Sync,
    C: Copy + TryInto<Cost, Error: Into<CostError>> + Sync,
{
    type Output = Result<Vec<Decision>, CheckError>;
    type IntoFuture = CheckFuture<'a, Vec<Decision>>;

    fn into_future(self) -> Self::IntoFuture {
        CheckFuture::asked(self.answer())
    }
}

/// A refund. Nothing happens until `.now()` (in memory), `.await` or `.wait()`.
#[must_use = "nothing is given back until `.now()`, `.await` or `.wait()`"]
#[derive(Debug)]
pub struct Refund<'a, S: Store> {
    pub(super) limiter: &'a Limiter<S>,
    pub(super) key: &'a [u8],
    pub(super) cost: Result<Cost, CostError>,
}

impl<S: Store> Refund<'_, S> {
    async fn answer(self) -> Result<Decision, CheckError> {
        let key = self.limiter.shared.key(self.key)?;
        Ok(self
            .limiter
            .shared
            .refund(Key::new(&key)?, self.cost?)
            .await?)
    }

    /// Runs the refund, blocking the current thread. For programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty, if the cost is invalid, if the store could not answer,
    /// or if the current thread runs async tasks. Nothing is given back then.
    pub fn wait(self) -> Result<Decision, CheckError> {
        self.limiter.store().block_on(self.answer())?
    }
}

impl Refund<'_, MemoryStore> {
    /// Runs the refund.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty or the cost is invalid. Nothing is given back then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 5/day".parse()?);
    /// limiter.check("user:42").cost(3).now()?;
    /// assert_eq!(limiter.refund("user:42", 1).now()?.remaining(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now(self) -> Result<Decision, CheckError> {
        let shared = &*self.limiter.shared;
        Ok(shared
            .store
            .refund(&shared.plan, Key::new(&shared.key(self.key)?)?, self.cost?))
    }
}

impl<'a, S: Store> IntoFuture for Refund<'a, S> {
    type Output = Result<Decision, CheckError>;
    type IntoFuture = CheckFuture<'a, Decision>;

    fn into_future(self) -> Self::IntoFuture {
        CheckFuture::asked(self.answer())
    }
}

/// A reset. Nothing happens until `.now()` (in memory), `.await` or `.wait()`.
#[must_use = "nothing is reset until `.now()`, `.await` or `.wait()`"]
#[derive(Debug)]
pub struct Reset<'a, S: Store> {
    pub(super) limiter: &'a Limiter<S>,
    pub(super) key: &'a [u8],
}

impl<S: Store> Reset<'_, S> {
    async fn answer(self) -> Result<(), CheckError> {
        let key = self.limiter.shared.key(self.key)?;
        Ok(self.limiter.shared.reset(Key::new(&key)?).await?)
    }

    /// Runs the reset, blocking the current thread. For programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty, if the store could not answer, or if the current
    /// thread runs async tasks.
    pub fn wait(self) -> Result<(), CheckError> {
        self.limiter.store().block_on(self.answer())?
    }
}

impl Reset<'_, MemoryStore> {
    /// Runs the reset.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 1/day".parse()?);
    /// limiter.check("user:42").now()?;
    /// limiter.reset("user:42").now()?;
    /// assert!(limiter.check("user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now(self) -> Result<(), CheckError> {
        let shared = &*self.limiter.shared;
        shared
            .store
            .reset(&shared.plan, Key::new(&shared.key(self.key)?)?);
        Ok(())
    }
}

impl<'a, S: Store> IntoFuture for Reset<'a, S> {
    type Output = Result<(), CheckError>;
    type IntoFuture = CheckFuture<'a, ()>;

    fn into_future(self) -> Self::IntoFuture {
        CheckFuture::asked(self.answer())
    }
}
