//! The limiter: a policy on a store.
//!
//! `request` has the operations that users call, `acquire` waits until a request is allowed,
//! `guard` protects a remote store, `multi_key` decides one request under several limiters.

mod acquire;
mod batch;
mod builder;
mod check_many;
mod counters;
mod deny_cache;
mod error;
mod failure_policy;
mod global;
mod guard;
mod multi_key;
mod outage_log;
mod queue;
mod request;
mod stored_receipts;
mod with_receipt;

use std::fmt;
use std::sync::Arc;

pub use acquire::Acquire;
pub use batch::LimiterRequest;
pub use builder::LimiterBuilder;
pub use check_many::CheckMany;
use counters::AtomicCounters;
pub use counters::Counters;
pub(crate) use error::MAX_POLICIES;
pub use error::{AcquireError, CheckError};
pub use failure_policy::FailurePolicy;
pub use global::GlobalLimiter;
use guard::RemoteGuard;
pub(crate) use guard::RemoteSettings;
pub(crate) use multi_key::{Admissions, check_all, check_allowed};
use queue::KeyQueues;
pub use request::{
    Charge, Check, CheckFuture, CheckWithLimits, Peek, PeekWithLimits, Refund, Request,
    RequestKind, Reset, kind,
};
pub use with_receipt::CheckWithReceipt;

use crate::blocking;
use crate::cost::{Cost, CostError};
use crate::decision::{Decision, Degraded};
use crate::key::{AsKey, EmptyKey, IntoKey, Key, KeyBuf};
use crate::memory::MemoryStore;
use crate::name::Name;
use crate::policy::Policy;
use crate::record::Settlement;
use crate::store::{Admission, Charged, Store, StoreError};
use crate::subject::{EncodedKey, encoded, is_plain};

/// A rate limiter: a policy on a store. Clones share their counters.
///
/// Every operation returns a request that is run in one of three ways:
///
/// | Call | Store | Effect |
/// |---|---|---|
/// | `.now()` | memory | runs immediately |
/// | `.await` | any | runs asynchronously |
/// | `.blocking()` | any | runs, blocking the current thread |
///
/// For several named policies, tiers or exceptions use a [`Gate`](crate::Gate).
///
/// # Examples
///
/// ```
/// use tidegate::Limiter;
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
    namespace: Arc<str>,
    /// The guard of a remote store; `None` in memory.
    guard: Option<RemoteGuard>,
    /// The counters of a limiter that a program made. Gates and servers count in their own way;
    /// they also encode the keys, which is done here otherwise, see [`subject`](crate::subject).
    counters: Option<Arc<AtomicCounters>>,
    /// The requests that wait for each key.
    queues: KeyQueues,
}

impl Limiter<MemoryStore> {
    /// Creates a limiter on its own memory store, with [`MemoryStore::DEFAULT_MAX_KEYS`].
    ///
    /// Use [`MemoryStore::builder`] and [`Limiter::new`] for other settings.
    ///
    /// # Panics
    ///
    /// Panics if 46 MB of address space cannot be reserved.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("100/minute burst=20".parse()?);
    /// assert_eq!(limiter.check("user:42").now()?.remaining(), 19);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[allow(clippy::expect_used)] // Fails only if memory is exhausted.
    pub fn memory(policy: Policy) -> Self {
        Self::new(
            MemoryStore::builder()
                .build()
                .expect("46 MB of address space"),
            policy,
        )
    }
}

impl<S: Store> Limiter<S> {
    /// Creates a limiter on a store, with the default [`FailurePolicy`] if the store is remote.
    ///
    /// Use [`Limiter::builder`] for other settings.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limiter, MemoryStore};
    ///
    /// let store = MemoryStore::builder().max_keys(10_000).build()?;
    /// let limiter = Limiter::new(store, "100/minute".parse()?);
    /// assert!(limiter.check("user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn new(store: S, policy: Policy) -> Self {
        Self::builder(store, policy).build()
    }

    /// Returns a builder: for a namespace, a failure policy and a deny cache.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{FailurePolicy, Limiter, MemoryStore, Name};
    ///
    /// let limiter = Limiter::builder(MemoryStore::builder().build()?, "100/minute".parse()?)
    ///     .namespace(Name::new("api")?)
    ///     .failure_policy(FailurePolicy::Closed)
    ///     .build();
    /// assert_eq!(limiter.policy().to_string(), "token_bucket 100/minute");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(store: S, policy: Policy) -> LimiterBuilder<S> {
        LimiterBuilder {
            store,
            policy,
            namespace: None,
            settings: RemoteSettings::default(),
        }
    }

    /// Creates a limiter in a namespace whose keys are already encoded.
    pub(crate) fn on(
        store: Arc<S>,
        policy: Policy,
        namespace: Arc<str>,
        settings: RemoteSettings,
    ) -> Self {
        let guard = store
            .is_remote()
            .then(|| RemoteGuard::new(settings, &policy, &namespace, Arc::default()));
        Self::guarded(store, policy, namespace, guard, None)
    }

    fn guarded(
        store: Arc<S>,
        policy: Policy,
        namespace: Arc<str>,
        guard: Option<RemoteGuard>,
        counters: Option<Arc<AtomicCounters>>,
    ) -> Self {
        let plan = match &guard {
            Some(guard) => guard.plan(&*store, &policy, &namespace),
            None => store.plan(&policy, &namespace),
        };
        Self {
            shared: Arc::new(Shared {
                store,
                plan,
                policy,
                namespace,
                guard,
                counters,
                queues: KeyQueues::default(),
            }),
        }
    }

    /// Returns a limiter with another policy, on the same store and in the same namespace.
    ///
    /// Without a [namespace](LimiterBuilder::namespace), limits are identified by their whole text,
    /// so any other policy has its own counters. In a namespace, windows and logs keep their counts
    /// when only their limits differ. A bucket with another rate or burst is another bucket and
    /// starts full.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let free = Limiter::memory("fixed_window 1/hour".parse()?);
    /// let paid = free.with_policy("fixed_window 100/hour".parse()?);
    /// assert!(free.check("user:42").now()?.is_allowed());
    /// assert_eq!(paid.check("user:42").now()?.remaining(), 99);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        let namespace = &self.shared.namespace;
        let guard = self
            .shared
            .guard
            .as_ref()
            .map(|guard| guard.for_policy(&policy, namespace));
        Self::guarded(
            Arc::clone(&self.shared.store),
            policy,
            Arc::clone(namespace),
            guard,
            self.shared.counters.clone(),
        )
    }

    /// Returns a limiter on the same store, with the same settings and its own counters.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limiter, Name};
    ///
    /// let api = Limiter::memory("fixed_window 1/hour".parse()?);
    /// let login = api.in_namespace(&Name::new("login")?, "fixed_window 1/hour".parse()?);
    /// assert!(api.check("user:42").now()?.is_allowed());
    /// assert!(login.check("user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn in_namespace(&self, name: &Name, policy: Policy) -> Self {
        let namespace = name.shared();
        let guard = self
            .shared
            .guard
            .as_ref()
            .map(|guard| guard.for_policy(&policy, &namespace));
        Self::guarded(
            Arc::clone(&self.shared.store),
            policy,
            namespace,
            guard,
            self.shared.counters.clone(),
        )
    }

    /// Returns the counters, and the health of a remote store.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("1/minute".parse()?);
    /// limiter.check("user:42").now()?.or_deny()?;
    /// assert!(limiter.check("user:42").now()?.is_denied());
    /// let counters = limiter.counters();
    /// assert_eq!((counters.allowed, counters.denied), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn counters(&self) -> Counters {
        let shared = &*self.shared;
        match (&shared.guard, &shared.counters) {
            (Some(guard), _) => guard.counters(&*shared.store),
            (None, Some(counters)) => counters.snapshot(shared.store.health()),
            (None, None) => Counters::default(),
        }
    }

    /// Returns the failure policy, or `None` in memory, which cannot fail.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// // A memory store needs none.
    /// assert_eq!(Limiter::memory("1/minute".parse()?).failure_policy(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn failure_policy(&self) -> Option<FailurePolicy> {
        self.shared.guard.as_ref().map(RemoteGuard::failure)
    }

    /// Returns `true` if the policy may use quota leases.
    pub(crate) fn has_leases(&self) -> bool {
        let guard = self.shared.guard.as_ref();
        guard.is_some_and(RemoteGuard::has_leases)
    }

    /// Settles a request where it was counted: in the store, or locally if `taken_locally` is set.
    pub(crate) async fn settle(
        &self,
        key: Key<'_>,
        settlement: &Settlement<'_>,
        taken_locally: Option<Degraded>,
    ) -> Result<Charged, StoreError> {
        let shared = &*self.shared;
        match &shared.guard {
            Some(guard) => {
                guard
                    .settle(&*shared.store, &shared.plan, key, settlement, taken_locally)
                    .await
            }
            None => {
                let settled = shared.store.settle(&shared.plan, key, settlement).await?;
                if let Some(counters) = &shared.counters {
                    counters.settle(&settled, settlement);
                }
                Ok(settled)
            }
        }
    }

    /// Admits a request from quota that this process has leased.
    #[inline]
    pub(crate) fn check_leased(&self, key: Key<'_>, cost: Cost) -> Option<Decision> {
        let shared = &*self.shared;
        let guard = shared.guard.as_ref()?;
        guard.check_leased(&*shared.store, &shared.plan, key, cost)
    }

    /// Decides without a future, if the store is in this process.
    #[inline]
    pub(crate) fn check_local(&self, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        blocking::ready(self.shared.store.check(&self.shared.plan, key, cost))
    }

    /// Charges an encoded key.
    pub(crate) async fn charge_encoded(
        &self,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Charged, StoreError> {
        self.shared.charge(key, cost).await
    }

    /// Peeks at an encoded key.
    pub(crate) async fn peek_encoded(
        &self,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Admission, StoreError> {
        self.shared.peek(key, cost).await
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.shared.namespace
    }

    /// Returns the policy.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("100/minute".parse()?);
    /// assert_eq!(limiter.policy().to_string(), "token_bucket 100/minute");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.shared.policy
    }

    /// Returns the store.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("100/minute".parse()?);
    /// limiter.check("user:42").now()?.or_deny()?;
    /// assert_eq!(limiter.store().stats().keys, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Checks a request of cost 1. Use [`cost`](Request::cost) for another cost.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("10/minute".parse()?);
    /// let decision = limiter.check("user:42").cost(3).now()?;
    /// assert_eq!(decision.remaining(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn check<'a>(&'a self, key: impl IntoKey<'a>) -> Check<'a, S> {
        Request::new(self, key.into_key(), Ok(Cost::ONE))
    }

    /// Returns the decision that a request of cost 1 would get, and takes nothing. Use
    /// [`cost`](Request::cost) for another cost.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 10/day".parse()?);
    /// assert!(limiter.peek("user:42").cost(10).now()?.is_allowed());
    /// assert!(limiter.peek("user:42").cost(10).now()?.is_allowed());
    /// limiter.check("user:42").cost(10).now()?.or_deny()?;
    /// assert!(limiter.peek("user:42").now()?.retry_after().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn peek<'a>(&'a self, key: impl IntoKey<'a>) -> Peek<'a, S> {
        Request::new(self, key.into_key(), Ok(Cost::ONE))
    }

    /// Waits until a request of cost 1 is allowed, first come first served for each key in this
    /// process.
    ///
    /// A waiter that is dropped takes nothing. See [`Acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Limiter;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::memory("5/second".parse()?);
    /// limiter.acquire("api.example.com").timeout(Duration::from_secs(2)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire<'a>(&'a self, key: impl IntoKey<'a>) -> Acquire<'a, S> {
        Acquire::new(self, key.into_key())
    }

    /// Returns this limiter without keys: all requests count together.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let api = Limiter::memory("5/second".parse()?).global();
    /// api.check().now()?.or_deny()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn global(&self) -> GlobalLimiter<S> {
        GlobalLimiter::new(self.clone())
    }

    /// Checks a batch of requests, in order and independently, all with one timestamp.
    ///
    /// In memory a batch is several times faster than single checks: all keys are hashed and
    /// prefetched before the first is decided. On Redis it is sent in parts of up to 256 limits.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("10/minute".parse()?);
    /// let decisions = limiter.check_many(&[("user:1", 1), ("user:2", 3)]).now()?;
    /// assert_eq!(decisions[1].remaining(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn check_many<'a, K, C>(&'a self, requests: &'a [(K, C)]) -> CheckMany<'a, K, C, S>
    where
        K: AsKey,
        C: Copy + TryInto<Cost, Error: Into<CostError>>,
    {
        CheckMany {
            limiter: self,
            requests,
        }
    }

    /// Takes a cost whatever the limit says: for costs that are known only afterwards.
    ///
    /// Usage may exceed the capacity by the policy's [`debt`](crate::Limit::debt); more is dropped
    /// and [counted](Counters::dropped). While usage exceeds the capacity, requests are denied.
    ///
    /// If the store is unavailable, the failure policy answers, and [`FailurePolicy::Local`] counts
    /// the cost in this process.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("1_000/minute debt=5_000".parse()?);
    /// limiter.charge("user:42", 4_000).now()?;
    /// assert!(limiter.check("user:42").now()?.is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn charge<'a, C>(&'a self, key: impl IntoKey<'a>, cost: C) -> Charge<'a, S>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        Request::new(self, key.into_key(), cost.try_into().map_err(Into::into))
    }

    /// Gives back the cost of a request that did not happen or cost less: at most what is counted
    /// now. Returns the usage right after.
    ///
    /// Call this right away. After a window has ended or a bucket has refilled, it frees capacity
    /// that other requests took in the meantime. A [receipt](Request::with_receipt) gives back only
    /// what still counts.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("10/minute".parse()?);
    /// limiter.check("user:42").cost(5).now()?.or_deny()?;
    /// assert_eq!(limiter.refund("user:42", 2).now()?.remaining(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn refund<'a, C>(&'a self, key: impl IntoKey<'a>, cost: C) -> Refund<'a, S>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        Request::new(self, key.into_key(), cost.try_into().map_err(Into::into))
    }

    /// Deletes the usage of a key. Returns `true` if there was any.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("1/hour".parse()?);
    /// limiter.check("user:42").now()?.or_deny()?;
    /// assert!(limiter.reset("user:42").now()?);
    /// assert!(limiter.check("user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn reset<'a>(&'a self, key: impl IntoKey<'a>) -> Reset<'a, S> {
        Request::new(self, key.into_key(), Ok(Cost::ZERO))
    }
}

impl<S: Store> Shared<S> {
    /// Returns `true` if the key is stored unchanged.
    #[inline]
    fn is_plain(&self, key: &KeyBuf<'_>) -> bool {
        is_plain(key) || self.has_encoded_keys()
    }

    /// Returns `true` if a gate or a server has encoded the keys.
    #[inline]
    fn has_encoded_keys(&self) -> bool {
        self.counters.is_none()
    }

    /// Returns the key as it is stored.
    #[inline]
    fn key<'a>(&self, key: &'a KeyBuf<'_>) -> Result<EncodedKey<'a>, EmptyKey> {
        if self.has_encoded_keys() {
            Ok(EncodedKey::Plain(Key::new(key.as_bytes())?.as_bytes()))
        } else {
            encoded(None, key)
        }
    }

    /// Counts a decision in memory. A request of cost 0 is not counted.
    #[inline]
    fn count(&self, decision: &Decision, cost: Cost) {
        if let (Some(counters), true) = (&self.counters, cost > Cost::ZERO) {
            counters.check(decision);
        }
    }

    /// Counts a decision of [`check_all`], which counts those of a remote store itself.
    fn count_in_memory(&self, decision: &Decision, cost: Cost) {
        if self.guard.is_none() {
            self.count(decision, cost);
        }
    }

    async fn check(&self, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        match &self.guard {
            Some(guard) => Ok(guard.check(&*self.store, &self.plan, key, cost).await),
            None => {
                let decision = self.store.check(&self.plan, key, cost).await?;
                self.count(&decision, cost);
                Ok(decision)
            }
        }
    }

    async fn check_many(&self, requests: &[(Key<'_>, Cost)]) -> Result<Vec<Decision>, StoreError> {
        match &self.guard {
            Some(guard) => Ok(guard.check_many(&*self.store, &self.plan, requests).await),
            None => {
                let decisions = self.store.check_many(&self.plan, requests).await;
                let decisions: Vec<Decision> = decisions.into_iter().collect::<Result<_, _>>()?;
                self.count_many(&decisions, requests.iter().map(|(_, cost)| *cost));
                Ok(decisions)
            }
        }
    }

    /// Counts a batch of decisions in memory.
    fn count_many(&self, decisions: &[Decision], costs: impl Iterator<Item = Cost>) {
        if let Some(counters) = &self.counters {
            counters.check_many(decisions.iter().zip(costs));
        }
    }

    async fn peek(&self, key: Key<'_>, cost: Cost) -> Result<Admission, StoreError> {
        match &self.guard {
            Some(guard) => Ok(guard.peek(&*self.store, &self.plan, key, cost).await),
            None => self.store.peek(&self.plan, key, cost).await,
        }
    }

    async fn charge(&self, key: Key<'_>, cost: Cost) -> Result<Charged, StoreError> {
        match &self.guard {
            Some(guard) => Ok(guard.charge(&*self.store, &self.plan, key, cost).await),
            None => {
                let charged = self.store.charge(&self.plan, key, cost).await?;
                if let Some(counters) = &self.counters {
                    counters.charge(&charged);
                }
                Ok(charged)
            }
        }
    }

    async fn refund(&self, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        match &self.guard {
            Some(guard) => guard.refund(&*self.store, &self.plan, key, cost).await,
            None => {
                let decision = self.store.refund(&self.plan, key, cost).await?;
                if let Some(counters) = &self.counters {
                    counters.refund(&decision);
                }
                Ok(decision)
            }
        }
    }

    async fn reset(&self, key: Key<'_>) -> Result<bool, StoreError> {
        match &self.guard {
            Some(guard) => guard.reset(&*self.store, &self.plan, key).await,
            None => self.store.reset(&self.plan, key).await,
        }
    }
}

impl<S: Store> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: Store> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("policy", &self.shared.policy.to_string())
            .finish_non_exhaustive()
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
        let _ = std::thread::spawn(move || clone.check("k").now().unwrap())
            .join()
            .unwrap();
        assert_eq!(limiter.check("k").now().unwrap().remaining(), 0);
    }

    #[test]
    fn namespaces_count_apart() {
        let limiter = Limiter::memory("2/minute".parse().unwrap());
        let beside = limiter.in_namespace(&Name::new("beside").unwrap(), limiter.policy().clone());
        assert!(limiter.check("k").cost(2).now().unwrap().is_allowed());
        assert!(beside.check("k").cost(2).now().unwrap().is_allowed());
        assert!(
            beside
                .with_policy("2/minute".parse().unwrap())
                .check("k")
                .now()
                .unwrap()
                .is_denied()
        );
    }

    #[test]
    fn bad_input_is_an_error_and_takes_nothing() {
        let limiter = Limiter::memory("10/minute".parse().unwrap());
        assert!(matches!(
            limiter.check("").now(),
            Err(CheckError::EmptyKey(_))
        ));
        assert!(matches!(
            limiter.refund("", 1).now(),
            Err(CheckError::EmptyKey(_))
        ));
        assert!(matches!(
            limiter.reset("").now(),
            Err(CheckError::EmptyKey(_))
        ));
        let batch = [("k", Cost::ONE), ("", Cost::ONE)];
        assert!(matches!(
            limiter.check_many(&batch).now(),
            Err(CheckError::EmptyKey(_))
        ));
        assert!(matches!(
            limiter.check_many(&[("k", 1), ("k", -1)]).now(),
            Err(CheckError::Cost(_))
        ));
        for cost in [-1.0, f64::NAN, f64::INFINITY, 0.0001, 1e10] {
            assert!(
                matches!(
                    limiter.check("k").cost(cost).now(),
                    Err(CheckError::Cost(_))
                ),
                "{cost}"
            );
            assert!(
                matches!(limiter.refund("k", cost).now(), Err(CheckError::Cost(_))),
                "{cost}"
            );
        }
        assert!(matches!(
            limiter.check("k").cost(-1).now(),
            Err(CheckError::Cost(CostError::Negative))
        ));
        assert!(matches!(
            limiter.check("k").cost(u64::MAX).now(),
            Err(CheckError::Cost(CostError::TooLarge))
        ));
        assert_eq!(limiter.check("k").cost(0).now().unwrap().remaining(), 10);
        assert_eq!(limiter.store().stats().keys, 0);
    }

    #[test]
    fn a_batch_is_decided_in_order_at_one_time() {
        let limiter = Limiter::memory("3/minute".parse().unwrap());
        let requests: Vec<(String, Cost)> = (0..100)
            .map(|n| (format!("{}", n % 25), Cost::ONE))
            .collect();
        let decisions = limiter.check_many(&requests).now().unwrap();
        let allowed: Vec<bool> = decisions.iter().map(Decision::is_allowed).collect();
        assert_eq!(allowed, (0..100).map(|n| n < 75).collect::<Vec<_>>());
    }
}
