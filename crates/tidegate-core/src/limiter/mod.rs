//! The limiter: a policy on a store. What users hold.

mod by_id;
mod counters;
mod deny_cache;
mod each;
mod failure;
mod guard;
mod request;
mod together;

use std::fmt;
use std::sync::Arc;

pub use counters::Counters;
pub use each::Each;
pub use failure::FailurePolicy;
use guard::Guard;
pub(crate) use guard::Settings;
pub use request::{Answer, Check, CheckMany, CheckWithReceipt, Refund, Reset};
pub(crate) use together::{Answers, Asked, check_together};

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
use crate::subject::{Composed, composed, is_plain};

/// The most policies of one request: as many as one atomic call holds on every store.
pub(crate) const MOST_TOGETHER: usize = 32;

/// A policy on a store. Clones share: a limiter cloned a hundred times is one limiter.
///
/// What it is asked is done by `.await` on any store, by `.wait()` where there is no async runtime, and in memory, where
/// there is nothing to wait for, by `.now()`.
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
    namespace: Arc<str>,
    /// Where the store is across a network.
    guard: Option<Guard>,
    /// Set if keys come composed, from a gate or a server. Others are composed here: see [`subject`](crate::subject).
    has_composed_keys: bool,
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
    /// The store could not answer. Only a [refund](Limiter::refund) or a [reset](Limiter::reset) fails with this: nothing
    /// stands in for them, and the store's counters stay as they were, as far as is known.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A gate has no policy of this name.
    #[error("there is no policy `{name}`: expected one of {known}")]
    UnknownPolicy {
        /// What was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// More policies in one request than one atomic call can hold.
    #[error("{count} policies in one request: expected at most {MOST_TOGETHER}")]
    TooManyPolicies {
        /// The number of policies.
        count: usize,
    },
    /// One request names a key of a policy with shared tiers in two of them.
    #[error(
        "policy {policy:?} is named twice for one key, in two tiers that share their counts: expected one tier"
    )]
    TwoTiers {
        /// The name of the policy.
        policy: String,
    },
    /// `.wait()` on a thread that must not.
    #[error(transparent)]
    Blocking(#[from] BlockingError),
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
        Self::new(
            MemoryStore::builder()
                .build()
                .expect("46 MB of address space"),
            policy,
        )
    }
}

impl<S: Store> Limiter<S> {
    /// A limiter on a store. On a remote one with the default [`FailurePolicy`]; [`Limiter::builder`] makes others.
    #[must_use]
    pub fn new(store: S, policy: Policy) -> Self {
        Self::builder(store, policy).build()
    }

    /// A limiter with settings of its own: a namespace, and what happens when a remote store fails.
    pub fn builder(store: S, policy: Policy) -> LimiterBuilder<S> {
        LimiterBuilder {
            store,
            policy,
            namespace: None,
            settings: Settings::default(),
        }
    }

    /// A limiter of a namespace, whose keys are composed already.
    pub(crate) fn on(
        store: Arc<S>,
        policy: Policy,
        namespace: Arc<str>,
        settings: Settings,
    ) -> Self {
        let guard = store
            .is_remote()
            .then(|| Guard::new(settings, &policy, &namespace, Arc::default()));
        Self::guarded(store, policy, namespace, guard, true)
    }

    fn guarded(
        store: Arc<S>,
        policy: Policy,
        namespace: Arc<str>,
        guard: Option<Guard>,
        has_composed_keys: bool,
    ) -> Self {
        let plan = store.plan(&policy, &namespace);
        Self {
            shared: Arc::new(Shared {
                store,
                plan,
                policy,
                namespace,
                guard,
                has_composed_keys,
            }),
        }
    }

    /// Returns the limiter with another policy, on the same store and in the same namespace.
    ///
    /// Without a [namespace](LimiterBuilder::namespace), limits are identified by their whole text: any other policy counts
    /// apart. In a namespace, windows and logs keep their counts when only their limits differ. A bucket with another rate
    /// or burst is another bucket and starts full.
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        let namespace = &self.shared.namespace;
        let guard = self
            .shared
            .guard
            .as_ref()
            .map(|guard| guard.renewed(&policy, namespace));
        let has_composed_keys = self.shared.has_composed_keys;
        Self::guarded(
            Arc::clone(&self.shared.store),
            policy,
            Arc::clone(namespace),
            guard,
            has_composed_keys,
        )
    }

    /// Another limiter on the same store, with the same settings, that counts apart from this one.
    #[must_use]
    pub fn in_namespace(&self, name: &Name, policy: Policy) -> Self {
        let namespace = name.shared();
        let guard = self
            .shared
            .guard
            .as_ref()
            .map(|guard| guard.renewed(&policy, &namespace));
        Self::guarded(
            Arc::clone(&self.shared.store),
            policy,
            namespace,
            guard,
            self.shared.has_composed_keys,
        )
    }

    /// What it has answered so far, and how its store is. In memory nothing is counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared
            .guard
            .as_ref()
            .map_or_else(Counters::default, |guard| {
                guard.counters(&*self.shared.store)
            })
    }

    /// What it answers when its store cannot; `None` in memory, which always can.
    #[must_use]
    pub fn failure_policy(&self) -> Option<FailurePolicy> {
        self.shared.guard.as_ref().map(Guard::failure)
    }

    /// Settles a request where it was counted: in the store, or locally if `taken_locally`.
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

    /// Decides, where the store is in this process.
    #[inline]
    pub(crate) fn check_at_once(&self, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        blocking::ready(self.shared.store.check(&self.shared.plan, key, cost))
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.shared.namespace
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
        Check {
            limiter: self,
            key: key.as_ref(),
            cost: Ok(Cost::ONE),
        }
    }

    /// Decides on a batch of requests in order, at one time, each for itself. In memory this is several times faster
    /// than one by one: the keys are all hashed and brought near before the first is decided on.
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

    /// Gives back what a request took that did not happen after all, or cost less: never more than is counted now.
    /// Returns the decision of a request of cost 0 made right after.
    ///
    /// This is for right away: after a window has ended or a bucket has refilled, it frees capacity that others took in the
    /// meantime. [`Check::with_receipt`] gives back only what still counts.
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

    /// Forgets what the key has used.
    #[inline]
    pub fn reset<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Reset<'a, S> {
        Reset {
            limiter: self,
            key: key.as_ref(),
        }
    }
}

impl<S: Store> Shared<S> {
    /// Returns true if the key is stored as it is.
    #[inline]
    fn is_plain(&self, key: Key<'_>) -> bool {
        is_plain(key) || self.has_composed_keys
    }

    /// The key as it is stored.
    #[inline]
    fn key<'a>(&self, key: &'a [u8]) -> Result<Composed<'a>, EmptyKey> {
        let key = Key::new(key)?;
        Ok(if self.has_composed_keys {
            Composed::Plain(key.as_bytes())
        } else {
            composed(None, key)
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

/// What configures a [`Limiter`]. In memory only the namespace means anything.
#[must_use]
pub struct LimiterBuilder<S: Store> {
    store: S,
    policy: Policy,
    namespace: Option<Name>,
    settings: Settings,
}

impl<S: Store> LimiterBuilder<S> {
    /// Gives the policy a name. It counts apart from policies of other names on the same store, and keeps the counts of its
    /// windows and logs when their limits change.
    pub fn namespace(mut self, name: Name) -> Self {
        self.namespace = Some(name);
        self
    }

    /// What is answered when the store cannot; [`FailurePolicy::Local`] where not given.
    pub fn failure_policy(mut self, failure: FailurePolicy) -> Self {
        self.settings.failure = failure;
        self
    }

    /// How many denials are remembered, so that the store is not asked about them again for up to a second; 16,384 where
    /// not given, none with 0.
    pub fn deny_cache(mut self, keys: usize) -> Self {
        self.settings.deny_cache = keys;
        self
    }

    /// The clock that remembered denials and local decisions go by; the system's where not given.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.settings.clock = clock.into();
        self
    }

    /// The limiter.
    #[must_use]
    pub fn build(self) -> Limiter<S> {
        let namespace = self
            .namespace
            .map_or_else(|| Arc::from(""), |name| name.shared());
        let (store, settings) = (Arc::new(self.store), self.settings);
        let guard = store
            .is_remote()
            .then(|| Guard::new(settings, &self.policy, &namespace, Arc::default()));
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
