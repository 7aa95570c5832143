//! The gate: named policies on a store. Middleware and servers use it.
//!
//! `compiled` prepares the policies, `decide` runs them, `verdict` is the result, `receipt` and
//! `corrections` correct it.

mod actual_costs;
mod compiled;
mod corrections;
mod counters;
mod decide;
mod lookup;
mod receipt;
mod request;
mod verdict;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

pub use actual_costs::ActualCosts;
use compiled::CompiledPolicies;
pub use counters::PolicyCounters;
pub use receipt::Receipt;
pub(crate) use receipt::{ReceiptEntry, Undelivered};
pub use request::{
    GateCharge, GateCheck, GatePeek, GateRefund, GateRequest, GateRequestKind, GateReset,
};
pub use verdict::{AllowedVerdict, PolicyDecision, PolicyLabel, PolicyOutcome, Verdict};

use crate::clock::Clock;
use crate::cost::{Cost, CostError};
use crate::health::StoreHealth;
use crate::key::IntoKey;
use crate::limiter::{CheckError, FailurePolicy, Limiter, RemoteSettings};
use crate::memory::MemoryStore;
use crate::name::Name;
use crate::policy::{Algorithm, Limit, Policy, PolicyError, Rate};
use crate::policy_set::{PolicySet, PolicySetError};
use crate::store::{ANY_RATE, Store};

/// Named policies on a store. Clones share their counters, and the policies can be replaced while
/// all clones are in use.
///
/// For a single policy without tiers or exceptions use a [`Limiter`].
///
/// # Examples
///
/// ```
/// use tidegate::{PolicySet, Gate, Rules};
///
/// let api = Rules::new("fixed_window 2/hour".parse()?).tier("premium", "fixed_window 4/hour".parse()?)?;
/// let gate = Gate::memory(PolicySet::new().with("api", api)?);
/// assert!(gate.check("api", "user:42").cost(2).now()?.is_allowed());
/// assert!(gate.check("api", "user:42").now()?.is_denied());
/// // Each tier counts separately.
/// assert_eq!(gate.check("api", "user:42").tier("premium").now()?.remaining(), Some(3));
/// // The same key of another tenant is another client.
/// assert!(gate.check("api", "user:42").tenant("acme").now()?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gate<S: Store = MemoryStore> {
    shared: Arc<Shared<S>>,
}

struct Shared<S: Store> {
    store: Arc<S>,
    settings: RemoteSettings,
    /// The settings for limits that come with a request, of which there may be many.
    inline: RemoteSettings,
    policies: ArcSwap<CompiledPolicies<S>>,
    /// Policies that must not be removed. Locked while the policies are replaced.
    in_use: Mutex<BTreeSet<Name>>,
}

impl Gate<MemoryStore> {
    /// Creates a gate on its own memory store, with [`MemoryStore::DEFAULT_MAX_KEYS`].
    ///
    /// # Panics
    ///
    /// Panics if 46 MB of address space cannot be reserved.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("100/minute".parse()?))?);
    /// assert!(gate.check("api", "user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[allow(clippy::expect_used)] // Fails only if memory is exhausted.
    pub fn memory(policies: PolicySet) -> Self {
        Self::new(
            MemoryStore::builder()
                .build()
                .expect("46 MB of address space"),
            policies,
        )
    }
}

impl<S: Store> Gate<S> {
    /// Creates a gate on a store.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, ManualClock, MemoryStore, PolicySet, Rules};
    ///
    /// let store = MemoryStore::builder().max_keys(10_000).clock(ManualClock::new()).build()?;
    /// let gate = Gate::new(store, PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// assert!(gate.check("api", "user:42").now()?.is_allowed());
    /// assert!(gate.check("api", "user:42").now()?.is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn new(store: S, policies: PolicySet) -> Self {
        Self::builder(store, policies).build()
    }

    /// Returns a builder: for a failure policy and a deny cache.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{FailurePolicy, Gate, MemoryStore, PolicySet, Rules};
    ///
    /// let store = MemoryStore::builder().build()?;
    /// let policies = PolicySet::new().with("api", Rules::new("100/minute".parse()?))?;
    /// let gate = Gate::builder(store, policies).failure_policy(FailurePolicy::Closed).build();
    /// assert!(gate.check("api", "user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(store: S, policies: PolicySet) -> GateBuilder<S> {
        GateBuilder {
            store,
            policies,
            settings: RemoteSettings::default(),
        }
    }

    /// Replaces all policies at once. Policies that keep their names keep the counts of their
    /// windows and logs. A bucket with another rate or burst is another bucket and starts full.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if a policy that is [required](Self::require) is
    /// missing.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{PolicySet, Gate, Rules};
    ///
    /// let rules = |text: &str| Ok::<_, tidegate::PolicyError>(Rules::new(text.parse()?));
    /// let gate = Gate::memory(PolicySet::new().with("api", rules("fixed_window 5/hour")?)?);
    /// gate.check("api", "user:42").cost(5).now()?;
    /// gate.replace_policies(PolicySet::new().with("api", rules("fixed_window 8/hour")?)?)?;
    /// assert_eq!(gate.check("api", "user:42").now()?.remaining(), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace_policies(&self, policies: PolicySet) -> Result<(), PolicySetError> {
        let in_use = self.shared.in_use.lock();
        if let Some(missing) = in_use
            .iter()
            .find(|name| policies.rules(name.as_str()).is_none())
        {
            return Err(PolicySetError::PolicyInUse(missing.clone()));
        }
        let old = self.shared.policies.load();
        let new = CompiledPolicies::new(
            &self.shared.store,
            &self.shared.settings,
            policies,
            Some(&old),
        );
        self.shared.policies.store(Arc::new(new));
        Ok(())
    }

    /// Returns another gate on the same store, with the same settings and its own policies.
    /// Policies of the same name share counters.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new());
    /// let other = gate.with_policies(PolicySet::new().with("api", Rules::new("1/s".parse()?))?);
    /// assert!(gate.check("api", "user:42").now().is_err());
    /// assert!(other.check("api", "user:42").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_policies(&self, policies: PolicySet) -> Self {
        self.derived(policies, None, BTreeSet::new())
    }

    /// Returns the gate that replaces this one with other policies, on the same store and with the
    /// same counters. A server swaps it together with the rest of its configuration.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let policies = |limits: &str| -> Result<PolicySet, Box<dyn std::error::Error>> {
    ///     Ok(PolicySet::new().with("api", Rules::new(limits.parse()?))?)
    /// };
    /// let gate = Gate::memory(policies("fixed_window 5/day")?);
    /// gate.check("api", "user:42").cost(5).now()?;
    /// // The window keeps its count.
    /// let updated = gate.updated(policies("fixed_window 7/day")?);
    /// assert_eq!(updated.check("api", "user:42").now()?.remaining(), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn updated(&self, policies: PolicySet) -> Self {
        let in_use = self.shared.in_use.lock().clone();
        self.derived(policies, Some(&self.shared.policies.load()), in_use)
    }

    fn derived(
        &self,
        policies: PolicySet,
        old: Option<&CompiledPolicies<S>>,
        in_use: BTreeSet<Name>,
    ) -> Self {
        let shared = &self.shared;
        let compiled = CompiledPolicies::new(&shared.store, &shared.settings, policies, old);
        Self {
            shared: Arc::new(Shared {
                store: Arc::clone(&shared.store),
                settings: shared.settings.clone(),
                inline: shared.inline.clone(),
                policies: ArcSwap::from_pointee(compiled),
                in_use: Mutex::new(in_use),
            }),
        }
    }

    /// Returns a limiter on the same store and with the same settings, for limits that come with a
    /// request. Its keys must be encoded by `encoded_key`.
    #[doc(hidden)] // For Tidegate's own servers.
    #[must_use]
    pub fn limiter(&self, policy: Policy) -> Limiter<S> {
        self.limiter_in("", policy)
    }

    /// Returns a limiter for a bucket whose rate comes with each request. A key has one bucket,
    /// whatever the rate. It is never clamped to a smaller capacity: a request under one is denied
    /// until it fits.
    #[doc(hidden)] // For Tidegate's own servers.
    #[must_use]
    pub fn bucket(&self, limit: BucketLimit) -> Limiter<S> {
        self.limiter_in(ANY_RATE, limit.0)
    }

    /// Returns a limiter in a namespace of its own, with the gate's failure policy and deny cache.
    /// A namespace with `~~` belongs to no named policy.
    #[doc(hidden)] // For Tidegate's own servers.
    #[must_use]
    pub fn service_limiter(&self, namespace: &str, policy: Policy) -> Limiter<S> {
        Limiter::on(
            Arc::clone(&self.shared.store),
            policy,
            namespace.into(),
            self.shared.settings.clone(),
        )
    }

    fn limiter_in(&self, namespace: &str, policy: Policy) -> Limiter<S> {
        Limiter::on(
            Arc::clone(&self.shared.store),
            policy,
            namespace.into(),
            self.shared.inline.clone(),
        )
    }

    /// Declares that a policy is in use, so that a missing policy is reported now and not at a
    /// request. From now on [`replace_policies`](Self::replace_policies) refuses a set without it.
    ///
    /// # Errors
    ///
    /// Returns an error if the policy does not exist.
    pub fn require(&self, policy: &str) -> Result<(), CheckError> {
        let mut in_use = self.shared.in_use.lock();
        let policies = self.shared.policies.load();
        in_use.insert(policies.policy(policy)?.name().clone());
        Ok(())
    }

    /// Checks that a policy exists.
    ///
    /// # Errors
    ///
    /// Returns an error that lists the existing names if it does not.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("100/minute".parse()?))?);
    /// assert!(gate.ensure_policy("api").is_ok());
    /// assert!(gate.ensure_policy("login").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ensure_policy(&self, policy: &str) -> Result<(), CheckError> {
        self.shared.policies.load().policy(policy).map(drop)
    }

    /// Turns off the log of outages, for a server that logs them itself.
    #[doc(hidden)] // For Tidegate's own servers.
    pub fn silence_outage_log(&self) {
        self.shared.settings.outages.silence();
    }

    /// Checks that a policy exists and accepts a tier.
    ///
    /// # Errors
    ///
    /// Returns an error if it does not.
    #[doc(hidden)] // For Tidegate's own servers.
    pub fn ensure_tier(&self, policy: &str, tier: Option<&str>) -> Result<(), CheckError> {
        let policies = self.shared.policies.load();
        policies.policy(policy)?.ensure_tier(tier)
    }

    /// Returns the current policies.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("100/minute".parse()?))?);
    /// let policies = gate.policies();
    /// let names: Vec<&str> = policies.names().map(|name| name.as_str()).collect();
    /// assert_eq!(names, ["api"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn policies(&self) -> PolicySet {
        self.shared.policies.load().set().clone()
    }

    /// Returns the store.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// gate.check("api", "user:42").now()?;
    /// assert_eq!(gate.store().stats().keys, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Checks a request of cost 1 under a policy. Use [`cost`](GateRequest::cost) for another cost.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("5/minute".parse()?).tier("gold", "50/minute".parse()?)?;
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// let verdict = gate.check("api", "user:42").tier("gold").cost(10).now()?;
    /// assert_eq!(verdict.remaining(), Some(40));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check<'a>(&'a self, policy: &'a str, key: impl IntoKey<'a>) -> GateCheck<'a, S> {
        GateRequest::new(self, policy, key.into_key(), Ok(Cost::ONE))
    }

    /// Returns the verdict that a request of cost 1 would get, and takes nothing. Use
    /// [`cost`](GateRequest::cost) for another cost.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("5/minute".parse()?))?);
    /// assert_eq!(gate.peek("api", "user:42").now()?.remaining(), Some(4));
    /// assert!(gate.peek("api", "user:42").cost(6).now()?.is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peek<'a>(&'a self, policy: &'a str, key: impl IntoKey<'a>) -> GatePeek<'a, S> {
        GateRequest::new(self, policy, key.into_key(), Ok(Cost::ONE))
    }

    /// Takes a cost whatever the limits say, see [`Limiter::charge`]. Returns `None` if an exception
    /// applies to the key that counts nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let rules = Rules::new("1_000/minute debt=5_000".parse()?);
    /// let gate = Gate::memory(PolicySet::new().with("tokens", rules)?);
    /// gate.charge("tokens", "user:42", 4_000).now()?;
    /// assert!(gate.check("tokens", "user:42").now()?.is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn charge<'a, C>(
        &'a self,
        policy: &'a str,
        key: impl IntoKey<'a>,
        cost: C,
    ) -> GateCharge<'a, S>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        let cost = cost.try_into().map_err(Into::into);
        GateRequest::new(self, policy, key.into_key(), cost)
    }

    /// Gives back the cost of a request that did not happen, see [`Limiter::refund`]. Returns `None`
    /// if an exception applies to the key that counts nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("5/minute".parse()?))?);
    /// gate.check("api", "user:42").cost(3).now()?.or_deny()?;
    /// let usage = gate.refund("api", "user:42", 2).now()?.expect("the key is limited");
    /// assert_eq!(usage.remaining(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refund<'a, C>(
        &'a self,
        policy: &'a str,
        key: impl IntoKey<'a>,
        cost: C,
    ) -> GateRefund<'a, S>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        let cost = cost.try_into().map_err(Into::into);
        GateRequest::new(self, policy, key.into_key(), cost)
    }

    /// Deletes the usage of a key under a policy, in all tiers. Returns `true` if there was any.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("login", Rules::new("1/hour".parse()?))?);
    /// gate.check("login", "ann").now()?.or_deny()?;
    /// assert!(gate.reset("login", "ann").now()?);
    /// assert!(gate.check("login", "ann").now()?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset<'a>(&'a self, policy: &'a str, key: impl IntoKey<'a>) -> GateReset<'a, S> {
        GateRequest::new(self, policy, key.into_key(), Ok(Cost::ZERO))
    }

    /// Returns the counters of each policy, sorted by name.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// gate.check("api", "user:42").now()?;
    /// gate.check("api", "user:42").now()?;
    /// let counters = gate.counters();
    /// assert_eq!((counters[0].allowed, counters[0].denied), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn counters(&self) -> Vec<PolicyCounters> {
        let policies = self.shared.policies.load();
        policies
            .policies()
            .map(compiled::NamedPolicy::snapshot)
            .collect()
    }

    /// Returns the health of the store as seen from this process, or `None` in memory.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet};
    ///
    /// // A memory store cannot fail.
    /// assert!(Gate::memory(PolicySet::new()).store_health().is_none());
    /// ```
    #[must_use]
    pub fn store_health(&self) -> Option<StoreHealth> {
        self.shared.store.health()
    }
}

/// A bucket: a policy of exactly one gcra limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLimit(Policy);

impl BucketLimit {
    /// Creates a bucket of `burst` that is refilled at `rate`.
    ///
    /// # Errors
    ///
    /// Returns an error if a number is out of bounds.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, PolicyError> {
        let policy = Policy::new([Limit::new(Algorithm::Gcra, rate).burst(burst)])?;
        Ok(Self(policy.with_any_rate().unwrap_or(policy)))
    }
}

impl<S: Store> Clone for Gate<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: Store> fmt::Debug for Gate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.policies().names().map(ToString::to_string).collect();
        f.debug_struct("Gate")
            .field("policies", &names)
            .finish_non_exhaustive()
    }
}

/// A builder for [`Gate`]. The settings only have an effect on a remote store.
#[must_use]
pub struct GateBuilder<S: Store> {
    store: S,
    policies: PolicySet,
    settings: RemoteSettings,
}

impl<S: Store> GateBuilder<S> {
    /// Sets the failure policy of policies without their own. The default is
    /// [`FailurePolicy::Local`].
    pub fn failure_policy(mut self, failure: FailurePolicy) -> Self {
        self.settings.failure = failure;
        self
    }

    /// Sets the number of denials cached for each policy. The default is 16,384; 0 disables the
    /// cache.
    pub fn deny_cache(mut self, keys: usize) -> Self {
        self.settings.deny_cache = keys;
        self
    }

    /// Sets the clock for the deny cache and for local decisions. The default is the system's.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.settings.clock = clock.into();
        self
    }

    /// Creates the gate.
    #[must_use]
    pub fn build(self) -> Gate<S> {
        let Self {
            store,
            policies,
            settings,
        } = self;
        let store = Arc::new(store);
        let policies =
            ArcSwap::from_pointee(CompiledPolicies::new(&store, &settings, policies, None));
        let inline = settings.sharing_denials();
        Gate {
            shared: Arc::new(Shared {
                store,
                settings,
                inline,
                policies,
                in_use: Mutex::default(),
            }),
        }
    }
}
