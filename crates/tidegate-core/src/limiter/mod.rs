//! The limiter: a policy on a store.
//!
//! `request` has the operations that users call, `guard` protects a remote store, `multi_key`
//! decides one request under several limiters.

mod batch;
mod counters;
mod deny_cache;
mod failure_policy;
mod guard;
mod multi_key;
mod request;
mod stored_receipts;

use std::fmt;
use std::sync::Arc;

pub use batch::LimiterRequest;
pub use counters::Counters;
pub use failure_policy::FailurePolicy;
use guard::RemoteGuard;
pub(crate) use guard::RemoteSettings;
pub(crate) use multi_key::{Admissions, check_all};
pub use request::{Check, CheckFuture, CheckMany, CheckWithReceipt, Refund, Reset};

use crate::blocking;
use crate::clock::Clock;
use crate::cost::{Cost, CostError};
use crate::decision::{Decision, Degraded};
use crate::key::{EmptyKey, Key};
use crate::memory::MemoryStore;
use crate::name::Name;
use crate::policy::Policy;
use crate::record::Settlement;
use crate::store::{BlockingError, Store, StoreError};
use crate::subject::{EncodedKey, encoded, is_plain};

/// The maximum number of policies in one request: as many as one atomic call holds on every store.
pub(crate) const MAX_POLICIES: usize = 32;

/// A rate limiter: a policy on a store. Clones share their counters.
///
/// Every operation returns a request that is run in one of three ways:
///
/// | Call | Store | Effect |
/// |---|---|---|
/// | `.now()` | memory | runs immediately |
/// | `.await` | any | runs asynchronously |
/// | `.wait()` | any | runs, blocking the current thread |
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
    /// Set if a gate or a server encodes the keys. Otherwise they are encoded here, see
    /// [`subject`](crate::subject).
    has_encoded_keys: bool,
}

/// The error of a check that could not be made. Nothing was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The key is empty.
    #[error(transparent)]
    EmptyKey(#[from] EmptyKey),
    /// The cost is invalid.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The store could not answer.
    ///
    /// Only a [refund](Limiter::refund), a [reset](Limiter::reset) and a settlement fail with this
    /// error: the failure policy does not apply to them. The store's counters are unchanged as far
    /// as is known.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The gate has no policy of this name.
    #[error("unknown policy `{name}`: {expected}")]
    UnknownPolicy {
        /// The name given.
        name: String,
        /// The existing policies, as the message names them.
        expected: String,
    },
    /// The request names more policies than one atomic call can hold.
    #[error("{count} policies in one request: expected at most {MAX_POLICIES}")]
    TooManyPolicies {
        /// The number of policies.
        count: usize,
    },
    /// The request names a key in two tiers of a policy with shared tiers.
    #[error(
        "policy {policy:?} is named twice for one key, in two tiers that share their counts: expected one tier"
    )]
    TwoTiers {
        /// The name of the policy.
        policy: String,
    },
    /// A blocking call on a thread that must not block.
    #[error(transparent)]
    Blocking(#[from] BlockingError),
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
        Self::guarded(store, policy, namespace, guard, true)
    }

    fn guarded(
        store: Arc<S>,
        policy: Policy,
        namespace: Arc<str>,
        guard: Option<RemoteGuard>,
        has_encoded_keys: bool,
    ) -> Self {
        let plan = store.plan(&policy, &namespace);
        Self {
            shared: Arc::new(Shared {
                store,
                plan,
                policy,
                namespace,
                guard,
                has_encoded_keys,
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
        let has_encoded_keys = self.shared.has_encoded_keys;
        Self::guarded(
            Arc::clone(&self.shared.store),
            policy,
            Arc::clone(namespace),
            guard,
            has_encoded_keys,
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
            self.shared.has_encoded_keys,
        )
    }

    /// Returns the counters and the health of the store. In memory nothing is counted.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("1/minute".parse()?);
    /// limiter.check("user:42").now()?;
    /// // Counted for remote stores: a memory store has no deny cache and is never unavailable.
    /// assert_eq!(limiter.counters().degraded_total(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared
            .guard
            .as_ref()
            .map_or_else(Counters::default, |guard| {
                guard.counters(&*self.shared.store)
            })
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

    /// Settles a request where it was counted: in the store, or locally if `taken_locally` is set.
    pub(crate) async fn settle(
        &self,
        key: Key<'_>,
        settlement: &Settlement<'_>,
        taken_locally: Option<Degraded>,
    ) -> Result<Decision, StoreError> {
        let shared = &*self.shared;
        match &shared.guard {
            Some(guard) => {
                guard
                    .settle(&*shared.store, &shared.plan, key, settlement, taken_locally)
                    .await
            }
            None => shared.store.settle(&shared.plan, key, settlement).await,
        }
    }

    /// Decides without a future, if the store is in this process.
    #[inline]
    pub(crate) fn check_local(&self, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        blocking::ready(self.shared.store.check(&self.shared.plan, key, cost))
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
    /// limiter.check("user:42").now()?;
    /// assert_eq!(limiter.store().stats().keys, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Checks a request of cost 1. Use [`Check::cost`] for another cost.
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
    pub fn check<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Check<'a, S> {
        Check {
            limiter: self,
            key: key.as_ref(),
            cost: Ok(Cost::ONE),
        }
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
        K: AsRef<[u8]>,
        C: Copy + TryInto<Cost, Error: Into<CostError>>,
    {
        CheckMany {
            limiter: self,
            requests,
        }
    }

    /// Gives back the cost of a request that did not happen or cost less: at most what is counted
    /// now. Returns the decision of a request of cost 0 made right after.
    ///
    /// Call this right away. After a window has ended or a bucket has refilled, it frees capacity
    /// that other requests took in the meantime. A [receipt](Check::with_receipt) gives back only
    /// what still counts.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("10/minute".parse()?);
    /// limiter.check("user:42").cost(5).now()?;
    /// assert_eq!(limiter.refund("user:42", 2).now()?.remaining(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn refund<'a, K, C>(&'a self, key: &'a K, cost: C) -> Refund<'a, S>
    where
        K: AsRef<[u8]> + ?Sized,
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        Refund {
            limiter: self,
            key: key.as_ref(),
            cost: cost.try_into().map_err(Into::into),
        }
    }

    /// Deletes the usage of a key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("1/hour".parse()?);
    /// limiter.check("user:42").now()?;
    /// limiter.reset("user:42").now()?;
    /// assert!(limiter.check("user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn reset<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Reset<'a, S> {
        Reset {
            limiter: self,
            key: key.as_ref(),
        }
    }
}

impl<S: Store> Shared<S> {
    /// Returns `true` if the key is stored unchanged.
    #[inline]
    fn is_plain(&self, key: Key<'_>) -> bool {
        is_plain(key) || self.has_encoded_keys
    }

    /// Returns the key as it is stored.
    #[inline]
    fn key<'a>(&self, key: &'a [u8]) -> Result<EncodedKey<'a>, EmptyKey> {
        let key = Key::new(key)?;
        Ok(if self.has_encoded_keys {
            EncodedKey::Plain(key.as_bytes())
        } else {
            encoded(None, key)
        })
    }

    async fn check(&self, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        match &self.guard {
            Some(guard) => Ok(guard.check(&*self.store, &self.plan, key, cost).await),
            None => self.store.check(&self.plan, key, cost).await,
        }
    }

    async fn check_many(&self, requests: &[(Key<'_>, Cost)]) -> Result<Vec<Decision>, StoreError> {
        match &self.guard {
            Some(guard) => Ok(guard.check_many(&*self.store, &self.plan, requests).await),
            None => self
                .store
                .check_many(&self.plan, requests)
                .await
                .into_iter()
                .collect(),
        }
    }

    async fn refund(&self, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        match &self.guard {
            Some(guard) => guard.refund(&*self.store, &self.plan, key, cost).await,
            None => self.store.refund(&self.plan, key, cost).await,
        }
    }

    async fn reset(&self, key: Key<'_>) -> Result<(), StoreError> {
        match &self.guard {
            Some(guard) => guard.reset(&*self.store, &self.plan, key).await,
            None => self.store.reset(&self.plan, key).await,
        }
    }
}

/// A builder for [`Limiter`]. In memory only the namespace has an effect.
///
/// # Examples
///
/// ```
/// use tidegate::{FailurePolicy, Limiter, MemoryStore};
///
/// let limiter = Limiter::builder(MemoryStore::builder().build()?, "100/minute".parse()?)
///     .namespace("api".parse()?)
///     .failure_policy(FailurePolicy::Closed)
///     .build();
/// assert!(limiter.check("user:42").now()?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct LimiterBuilder<S: Store> {
    store: S,
    policy: Policy,
    namespace: Option<Name>,
    settings: RemoteSettings,
}

impl<S: Store> LimiterBuilder<S> {
    /// Names the policy. It has its own counters on the store, and keeps the counts of its windows
    /// and logs when their limits change.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limiter, MemoryStore};
    ///
    /// let store = MemoryStore::builder().build()?;
    /// let limiter = Limiter::builder(store, "1/minute".parse()?).namespace("api".parse()?).build();
    /// assert!(limiter.check("user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn namespace(mut self, name: Name) -> Self {
        self.namespace = Some(name);
        self
    }

    /// Sets the failure policy. The default is [`FailurePolicy::Local`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{FailurePolicy, Limiter, MemoryStore};
    ///
    /// let store = MemoryStore::builder().build()?;
    /// let limiter = Limiter::builder(store, "1/minute".parse()?)
    ///     .failure_policy(FailurePolicy::local(4))
    ///     .build();
    /// assert!(limiter.check("user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn failure_policy(mut self, failure: FailurePolicy) -> Self {
        self.settings.failure = failure;
        self
    }

    /// Sets the number of denials that are cached for up to a second, so that the store is not
    /// asked again. The default is 16,384; 0 disables the cache.
    pub fn deny_cache(mut self, keys: usize) -> Self {
        self.settings.deny_cache = keys;
        self
    }

    /// Sets the clock for the deny cache and for local decisions. The default is the system's.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.settings.clock = clock.into();
        self
    }

    /// Creates the limiter.
    #[must_use]
    pub fn build(self) -> Limiter<S> {
        let namespace = self
            .namespace
            .map_or_else(|| Arc::from(""), |name| name.shared());
        let (store, settings) = (Arc::new(self.store), self.settings);
        let guard = store
            .is_remote()
            .then(|| RemoteGuard::new(settings, &self.policy, &namespace, Arc::default()));
        Limiter::guarded(store, self.policy, namespace, guard, false)
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
        std::thread::spawn(move || clone.check("k").now().unwrap())
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
