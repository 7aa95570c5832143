//! The limiter: a policy on a store. What users hold.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;

use crate::cost::{Cost, CostError};
use crate::decision::Decision;
use crate::key::{EmptyKey, Key};
use crate::memory::MemoryStore;
use crate::policy::Policy;
use crate::store::{Store, StoreError};

/// A policy on a store. Clones share: a limiter cloned a hundred times is one limiter.
///
/// What it is asked is done by `.await` on any store; in memory, where there is nothing to wait for, by `.now()`.
///
/// ```
/// use tidegate_core::Limiter;
///
/// let limiter = Limiter::memory("2/minute".parse()?);
/// let decision = limiter.check("user:42").now()?;
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), 1);
/// assert!(limiter.check("user:42").cost(1.5).now()?.is_denied());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Limiter<S: Store = MemoryStore> {
    shared: Arc<Shared<S>>,
}

struct Shared<S: Store> {
    store: Arc<S>,
    plan: S::Plan,
    policy: Policy,
}

/// Why a check could not be made. Nothing was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The key has no bytes.
    #[error(transparent)]
    EmptyKey(#[from] EmptyKey),
    /// The cost is not one.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The store could not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Limiter<MemoryStore> {
    /// A limiter on a memory store of its own, with [`MemoryStore::DEFAULT_MAX_KEYS`].
    /// [`MemoryStore::builder`] and [`Limiter::new`] make others.
    ///
    /// # Panics
    /// If the system has not the 46 MB of address space to reserve.
    #[must_use]
    #[allow(clippy::expect_used)] // As any allocation of this size in Rust does.
    pub fn memory(policy: Policy) -> Self {
        Self::new(MemoryStore::builder().build().expect("46 MB of address space"), policy)
    }
}

impl<S: Store> Limiter<S> {
    /// A limiter on a store.
    #[must_use]
    pub fn new(store: S, policy: Policy) -> Self {
        Self::on(Arc::new(store), policy)
    }

    fn on(store: Arc<S>, policy: Policy) -> Self {
        let plan = store.plan(&policy);
        Self { shared: Arc::new(Shared { store, plan, policy }) }
    }

    /// The same limiter under a changed policy. Where only limits or bursts differ, what was used counts on; where an
    /// algorithm, an anchor or a period does, keys start afresh.
    ///
    /// It is not a second limiter beside this one: where only limits or bursts differ, the two count together. Limits that
    /// are to count apart need a store each, or keys that differ.
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        Self::on(Arc::clone(&self.shared.store), policy)
    }

    /// The policy it holds keys to.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.shared.policy
    }

    /// The store it keeps its records in.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// May this request go on? It costs 1; [`Check::cost`] says otherwise.
    #[inline]
    pub fn check<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Check<'a, S> {
        Check { limiter: self, key: key.as_ref(), cost: Ok(Cost::ONE) }
    }

    /// Decides on a batch of requests in order, at one time, each for itself. In memory this is several times faster
    /// than one by one: the keys are all hashed and brought near before the first is decided on.
    #[inline]
    pub fn check_many<'a, K, C>(&'a self, requests: &'a [(K, C)]) -> CheckMany<'a, K, C, S>
    where
        K: AsRef<[u8]>,
        C: Copy + TryInto<Cost, Error: Into<CostError>>,
    {
        CheckMany { limiter: self, requests }
    }

    /// Gives back what a request took that did not happen after all, or cost less: never more than is counted now.
    /// Answers like a request of cost 0 made right after.
    #[inline]
    pub fn refund<'a, K, C>(&'a self, key: &'a K, cost: C) -> Refund<'a, S>
    where
        K: AsRef<[u8]> + ?Sized,
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        Refund { limiter: self, key: key.as_ref(), cost: cost.try_into().map_err(Into::into) }
    }

    /// Forgets what the key has used.
    #[inline]
    pub fn reset<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Reset<'a, S> {
        Reset { limiter: self, key: key.as_ref() }
    }
}

/// One request. Nothing happens until `.now()` (in memory) or `.await`.
#[must_use = "nothing is checked until `.now()` or `.await`"]
#[derive(Debug)]
pub struct Check<'a, S: Store> {
    limiter: &'a Limiter<S>,
    key: &'a [u8],
    cost: Result<Cost, CostError>,
}

impl<S: Store> Check<'_, S> {
    /// What the request takes: an integer, a decimal of at most three places, or a [`Cost`]. 0 looks without taking.
    #[inline]
    pub fn cost<C: TryInto<Cost, Error: Into<CostError>>>(mut self, cost: C) -> Self {
        self.cost = cost.try_into().map_err(Into::into);
        self
    }
}

impl Check<'_, MemoryStore> {
    /// Decides.
    ///
    /// # Errors
    /// If the key is empty or the cost is not one. Then nothing is taken.
    #[inline]
    pub fn now(self) -> Result<Decision, CheckError> {
        let Shared { store, plan, .. } = &*self.limiter.shared;
        Ok(store.check(plan, Key::new(self.key)?, self.cost?))
    }
}

/// A batch of requests. Nothing happens until `.now()` (in memory) or `.await`.
#[must_use = "nothing is checked until `.now()` or `.await`"]
#[derive(Debug)]
pub struct CheckMany<'a, K, C, S: Store> {
    limiter: &'a Limiter<S>,
    requests: &'a [(K, C)],
}

/// One request of a batch, checked.
#[inline]
fn keyed<K, C>((key, cost): &(K, C)) -> Result<(Key<'_>, Cost), CheckError>
where
    K: AsRef<[u8]>,
    C: Copy + TryInto<Cost, Error: Into<CostError>>,
{
    Ok((Key::new(key.as_ref())?, (*cost).try_into().map_err(Into::into)?))
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
        let Shared { store, plan, .. } = &*self.limiter.shared;
        self.requests.iter().try_for_each(|request| keyed(request).map(drop))?;
        decisions.reserve(self.requests.len());
        store.check_many(plan, self.requests.iter().filter_map(|request| keyed(request).ok()), decisions);
        Ok(())
    }
}

/// Something to give back. Nothing happens until `.now()` (in memory) or `.await`.
#[must_use = "nothing is given back until `.now()` or `.await`"]
#[derive(Debug)]
pub struct Refund<'a, S: Store> {
    limiter: &'a Limiter<S>,
    key: &'a [u8],
    cost: Result<Cost, CostError>,
}

impl Refund<'_, MemoryStore> {
    /// Gives back.
    ///
    /// # Errors
    /// If the key is empty or the cost is not one. Then nothing is given back.
    pub fn now(self) -> Result<Decision, CheckError> {
        let Shared { store, plan, .. } = &*self.limiter.shared;
        Ok(store.refund(plan, Key::new(self.key)?, self.cost?))
    }
}

/// A key to forget. Nothing happens until `.now()` (in memory) or `.await`.
#[must_use = "nothing is forgotten until `.now()` or `.await`"]
#[derive(Debug)]
pub struct Reset<'a, S: Store> {
    limiter: &'a Limiter<S>,
    key: &'a [u8],
}

impl Reset<'_, MemoryStore> {
    /// Forgets.
    ///
    /// # Errors
    /// If the key is empty.
    pub fn now(self) -> Result<(), CheckError> {
        let Shared { store, plan, .. } = &*self.limiter.shared;
        store.reset(plan, Key::new(self.key)?);
        Ok(())
    }
}

/// What `.await` waits for.
type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, CheckError>> + Send + 'a>>;

impl<'a, S: Store> IntoFuture for Check<'a, S> {
    type Output = Result<Decision, CheckError>;
    type IntoFuture = Answer<'a, Decision>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Shared { store, plan, .. } = &*self.limiter.shared;
            Ok(store.check(plan, Key::new(self.key)?, self.cost?).await?)
        })
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
        Box::pin(async move {
            let Shared { store, plan, .. } = &*self.limiter.shared;
            let requests = self.requests.iter().map(keyed).collect::<Result<Vec<_>, _>>()?;
            Ok(store.check_many(plan, &requests).await?)
        })
    }
}

impl<'a, S: Store> IntoFuture for Refund<'a, S> {
    type Output = Result<Decision, CheckError>;
    type IntoFuture = Answer<'a, Decision>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Shared { store, plan, .. } = &*self.limiter.shared;
            Ok(store.refund(plan, Key::new(self.key)?, self.cost?).await?)
        })
    }
}

impl<'a, S: Store> IntoFuture for Reset<'a, S> {
    type Output = Result<(), CheckError>;
    type IntoFuture = Answer<'a, ()>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Shared { store, plan, .. } = &*self.limiter.shared;
            Ok(store.reset(plan, Key::new(self.key)?).await?)
        })
    }
}

impl<S: Store> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Store> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("policy", &self.shared.policy.to_string()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_and_go_anywhere() {
        fn goes_anywhere<T: Clone + Send + Sync + 'static>(_: &T) {}
        let limiter = Limiter::memory("2/minute".parse().unwrap());
        goes_anywhere(&limiter);
        let clone = limiter.clone();
        std::thread::spawn(move || clone.check("k").now().unwrap()).join().unwrap();
        assert_eq!(limiter.check("k").now().unwrap().remaining(), 0);
    }

    #[test]
    fn bad_input_is_an_error_and_takes_nothing() {
        let limiter = Limiter::memory("10/minute".parse().unwrap());
        assert!(matches!(limiter.check("").now(), Err(CheckError::EmptyKey(_))));
        assert!(matches!(limiter.refund("", 1).now(), Err(CheckError::EmptyKey(_))));
        assert!(matches!(limiter.reset("").now(), Err(CheckError::EmptyKey(_))));
        let batch = [("k", Cost::ONE), ("", Cost::ONE)];
        assert!(matches!(limiter.check_many(&batch).now(), Err(CheckError::EmptyKey(_))));
        assert!(matches!(limiter.check_many(&[("k", 1), ("k", -1)]).now(), Err(CheckError::Cost(_))));
        for cost in [-1.0, f64::NAN, f64::INFINITY, 0.0001, 1e10] {
            assert!(matches!(limiter.check("k").cost(cost).now(), Err(CheckError::Cost(_))), "{cost}");
            assert!(matches!(limiter.refund("k", cost).now(), Err(CheckError::Cost(_))), "{cost}");
        }
        assert!(matches!(limiter.check("k").cost(-1).now(), Err(CheckError::Cost(CostError::Negative))));
        assert!(matches!(limiter.check("k").cost(u64::MAX).now(), Err(CheckError::Cost(CostError::TooLarge))));
        assert_eq!(limiter.check("k").cost(0).now().unwrap().remaining(), 10);
        assert_eq!(limiter.store().stats().keys, 0);
    }

    #[test]
    fn a_batch_is_decided_in_order_at_one_time() {
        let limiter = Limiter::memory("3/minute".parse().unwrap());
        let requests: Vec<(String, Cost)> = (0..100).map(|n| (format!("{}", n % 25), Cost::ONE)).collect();
        let decisions = limiter.check_many(&requests).now().unwrap();
        let allowed: Vec<bool> = decisions.iter().map(Decision::is_allowed).collect();
        assert_eq!(allowed, (0..100).map(|n| n < 75).collect::<Vec<_>>());
    }
}
