//! What a limiter is asked. Nothing happens until `.now()` (in memory), `.await` or `.wait()` (on any store).

use std::cell::Cell;
use std::future::IntoFuture;
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;

use super::together::{Asked, check_together};
use super::{CheckError, Limiter};
use crate::blocking;
use crate::cost::{Cost, CostError};
use crate::decision::Decision;
use crate::gate::{Receipt, Taken};
use crate::key::Key;
use crate::memory::MemoryStore;
use crate::store::Store;
use crate::subject::{Composed, KeyBytes};

/// What `.await` waits for.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Answer<'a, T>(Progress<'a, T>);

enum Progress<'a, T> {
    /// Known without asking.
    Known {
        answer: Option<Result<T, CheckError>>,
        lets_others_run: bool,
    },
    Asked(Pin<Box<dyn Future<Output = Result<T, CheckError>> + Send + 'a>>),
}

impl<'a, T> Answer<'a, T> {
    /// Now and then others are let run first: who asks in a loop for what is known would otherwise never pause.
    fn known(answer: T) -> Self {
        thread_local! { static COUNT: Cell<u8> = const { Cell::new(0) } }
        let count = COUNT.with(|count| count.replace(count.get().wrapping_add(1)));
        Self(Progress::Known {
            answer: Some(Ok(answer)),
            lets_others_run: count == 0,
        })
    }

    fn asked(answer: impl Future<Output = Result<T, CheckError>> + Send + 'a) -> Self {
        Self(Progress::Asked(Box::pin(answer)))
    }
}

impl<T: Unpin> Future for Answer<'_, T> {
    type Output = Result<T, CheckError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Progress::Known {
                lets_others_run, ..
            } if *lets_others_run => {
                *lets_others_run = false;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            // Asked for again after it was given, as no one should: there will be nothing.
            Progress::Known { answer, .. } => answer.take().map_or(Poll::Pending, Poll::Ready),
            Progress::Asked(answer) => answer.as_mut().poll(context),
        }
    }
}

impl<T> std::fmt::Debug for Answer<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
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
    /// What the request takes: an integer, a decimal of at most three places, or a [`Cost`]. 0 looks without taking.
    #[inline]
    pub fn cost<C: TryInto<Cost, Error: Into<CostError>>>(mut self, cost: C) -> Self {
        self.cost = cost.try_into().map_err(Into::into);
        self
    }

    /// Also returns a [`Receipt`], by which what the request took can be corrected once its actual cost is known.
    pub fn with_receipt(self) -> CheckWithReceipt<'a, S> {
        CheckWithReceipt { check: self }
    }

    /// The answer, if the store need not be asked.
    fn known(&self) -> Option<Decision> {
        let guard = self.limiter.shared.guard.as_ref()?;
        let (Ok(key), Ok(cost)) = (self.limiter.shared.key(self.key), self.cost) else {
            return None;
        };
        guard.known(Key::new(&key).ok()?, cost)
    }

    async fn answer(self) -> Result<Decision, CheckError> {
        let key = self.limiter.shared.key(self.key)?;
        Ok(self
            .limiter
            .shared
            .check(Key::new(&key)?, self.cost?)
            .await?)
    }

    /// Decides, and holds this thread up meanwhile: for programs without an async runtime.
    ///
    /// # Errors
    /// If the key is empty, the cost is not one, or this thread runs async tasks. Then nothing is taken.
    pub fn wait(self) -> Result<Decision, CheckError> {
        match self.known() {
            Some(decision) => Ok(decision),
            None => self.limiter.store().block_on(self.answer())?,
        }
    }
}

impl Check<'_, MemoryStore> {
    /// Decides.
    ///
    /// # Errors
    /// If the key is empty or the cost is not one. Then nothing is taken.
    #[inline]
    pub fn now(self) -> Result<Decision, CheckError> {
        let shared = &*self.limiter.shared;
        let key = Key::new(self.key)?;
        if shared.is_plain(key) {
            Ok(shared.store.check(&shared.plan, key, self.cost?))
        } else {
            self.now_composed()
        }
    }

    #[cold]
    fn now_composed(self) -> Result<Decision, CheckError> {
        let shared = &*self.limiter.shared;
        Ok(shared
            .store
            .check(&shared.plan, Key::new(&shared.key(self.key)?)?, self.cost?))
    }
}

impl<'a, S: Store> IntoFuture for Check<'a, S> {
    type Output = Result<Decision, CheckError>;
    type IntoFuture = Answer<'a, Decision>;

    fn into_future(self) -> Self::IntoFuture {
        match self.known() {
            Some(decision) => Answer::known(decision),
            None => Answer::asked(self.answer()),
        }
    }
}

/// One request that returns a receipt. Nothing happens until `.now()` (in memory), `.await` or `.wait()`.
#[must_use = "nothing is checked until `.now()`, `.await` or `.wait()`"]
#[derive(Debug)]
pub struct CheckWithReceipt<'a, S: Store> {
    check: Check<'a, S>,
}

impl<S: Store> CheckWithReceipt<'_, S> {
    async fn answer(self) -> Result<(Decision, Receipt<S>), CheckError> {
        let Check { limiter, key, cost } = self.check;
        let key = limiter.shared.key(key)?;
        let asked = Asked {
            limiter,
            key: Key::new(&key)?,
            cost: cost?,
        };
        let answer = check_together(std::slice::from_ref(&asked), true)
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
            let (key, cost, locally) =
                (KeyBytes::from_slice(&key), asked.cost, decision.degraded());
            taken.push(Taken {
                limiter: limiter.clone(),
                key,
                cost,
                claims,
                locally,
                tally: None,
            });
        }
        Ok((decision, Receipt::new(taken)))
    }

    /// Runs the check, blocking the current thread: for programs without an async runtime.
    ///
    /// # Errors
    /// If the key is empty, the cost is invalid, or this thread runs async tasks. Then nothing is taken.
    pub fn wait(self) -> Result<(Decision, Receipt<S>), CheckError> {
        self.check.limiter.store().block_on(self.answer())?
    }
}

impl CheckWithReceipt<'_, MemoryStore> {
    /// Runs the check.
    ///
    /// # Errors
    /// If the key is empty or the cost is invalid. Then nothing is taken.
    pub fn now(self) -> Result<(Decision, Receipt<MemoryStore>), CheckError> {
        blocking::ready(self.answer())
    }
}

impl<'a, S: Store> IntoFuture for CheckWithReceipt<'a, S> {
    type Output = Result<(Decision, Receipt<S>), CheckError>;
    type IntoFuture = Answer<'a, (Decision, Receipt<S>)>;

    fn into_future(self) -> Self::IntoFuture {
        Answer::asked(self.answer())
    }
}

/// A batch of requests. Nothing happens until `.now()` (in memory), `.await` or `.wait()`.
#[must_use = "nothing is checked until `.now()`, `.await` or `.wait()`"]
#[derive(Debug)]
pub struct CheckMany<'a, K, C, S: Store> {
    pub(super) limiter: &'a Limiter<S>,
    pub(super) requests: &'a [(K, C)],
}

/// One request of a batch, checked.
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
    /// Decides on all, in order.
    ///
    /// # Errors
    /// If a key is empty or a cost is not one. Then nothing is taken, from any key.
    pub fn now(self) -> Result<Vec<Decision>, CheckError> {
        let mut decisions = Vec::with_capacity(self.requests.len());
        self.now_into(&mut decisions)?;
        Ok(decisions)
    }

    /// Decides on all, in order, and adds the decisions to a list that is used again and again.
    ///
    /// # Errors
    /// If a key is empty or a cost is not one. Then nothing is taken, from any key, and nothing is added.
    pub fn now_into(self, decisions: &mut Vec<Decision>) -> Result<(), CheckError> {
        let shared = &*self.limiter.shared;
        let mut is_any_composed = false;
        for request in self.requests {
            let (key, _) = keyed(request)?;
            is_any_composed |= !shared.is_plain(key);
        }
        decisions.reserve(self.requests.len());
        let requests = self
            .requests
            .iter()
            .filter_map(|request| keyed(request).ok());
        if is_any_composed {
            let composed: Vec<(Composed<'_>, Cost)> = requests
                .filter_map(|(key, cost)| Some((shared.key(key.as_bytes()).ok()?, cost)))
                .collect();
            let requests = composed
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
        let composed = |request| {
            let (key, cost) = keyed(request)?;
            Ok((shared.key(key.as_bytes())?, cost))
        };
        let composed = self
            .requests
            .iter()
            .map(composed)
            .collect::<Result<Vec<_>, CheckError>>()?;
        let requests = composed
            .iter()
            .map(|(key, cost)| Ok((Key::new(key)?, *cost)))
            .collect::<Result<Vec<(Key<'_>, Cost)>, CheckError>>()?;
        Ok(shared.check_many(&requests).await?)
    }

    /// Decides on all, and holds this thread up meanwhile: for programs without an async runtime.
    ///
    /// # Errors
    /// If a key is empty, a cost is not one, or this thread runs async tasks. Then nothing is taken, from any key.
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
    type IntoFuture = Answer<'a, Vec<Decision>>;

    fn into_future(self) -> Self::IntoFuture {
        Answer::asked(self.answer())
    }
}

/// Something to give back. Nothing happens until `.now()` (in memory), `.await` or `.wait()`.
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

    /// Gives back, and holds this thread up meanwhile: for programs without an async runtime.
    ///
    /// # Errors
    /// If the key is empty, the cost is not one, or this thread runs async tasks. Then nothing is given back.
    pub fn wait(self) -> Result<Decision, CheckError> {
        self.limiter.store().block_on(self.answer())?
    }
}

impl Refund<'_, MemoryStore> {
    /// Gives back.
    ///
    /// # Errors
    /// If the key is empty or the cost is not one. Then nothing is given back.
    pub fn now(self) -> Result<Decision, CheckError> {
        let shared = &*self.limiter.shared;
        Ok(shared
            .store
            .refund(&shared.plan, Key::new(&shared.key(self.key)?)?, self.cost?))
    }
}

impl<'a, S: Store> IntoFuture for Refund<'a, S> {
    type Output = Result<Decision, CheckError>;
    type IntoFuture = Answer<'a, Decision>;

    fn into_future(self) -> Self::IntoFuture {
        Answer::asked(self.answer())
    }
}

/// A key to forget. Nothing happens until `.now()` (in memory), `.await` or `.wait()`.
#[must_use = "nothing is forgotten until `.now()`, `.await` or `.wait()`"]
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

    /// Forgets, and holds this thread up meanwhile: for programs without an async runtime.
    ///
    /// # Errors
    /// If the key is empty, the store could not answer, or this thread runs async tasks.
    pub fn wait(self) -> Result<(), CheckError> {
        self.limiter.store().block_on(self.answer())?
    }
}

impl Reset<'_, MemoryStore> {
    /// Forgets.
    ///
    /// # Errors
    /// If the key is empty.
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
    type IntoFuture = Answer<'a, ()>;

    fn into_future(self) -> Self::IntoFuture {
        Answer::asked(self.answer())
    }
}
