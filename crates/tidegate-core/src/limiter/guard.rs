//! The guard between a limiter and a remote store: deny cache, failure policy and counters.

use std::sync::Arc;

use super::counters::{AtomicCounters, Counters};
use super::deny_cache::{DenyCache, DenyCaches, PolicyTag};
use super::failure_policy::{FailurePolicy, Fallback, LocalStore};
use super::outage_log::OutageLog;
use crate::clock::{Clock, Timestamp};
use crate::cost::Cost;
use crate::decision::{Decision, Degraded};
use crate::key::Key;
use crate::policy::Policy;
use crate::record::Settlement;
use crate::store::{Admission, Charged, Store, StoreError};

/// The settings of a limiter on a remote store.
#[derive(Clone)]
pub(crate) struct RemoteSettings {
    pub(crate) failure: FailurePolicy,
    pub(crate) deny_cache: usize,
    pub(crate) clock: Clock,
    /// Set if the policy may use the store's quota leases.
    pub(crate) has_leases: bool,
    /// Shared by all limiters with these settings.
    local: Arc<LocalStore>,
    /// The deny caches, by namespace.
    caches: Arc<DenyCaches>,
    /// One deny cache for all limiters, if there may be many with few keys each.
    denied: Option<Arc<DenyCache>>,
    pub(crate) outages: Arc<OutageLog>,
}

impl RemoteSettings {
    /// Returns the settings for limiters that share one deny cache.
    pub(crate) fn sharing_denials(&self) -> Self {
        Self {
            denied: Some(Arc::new(DenyCache::new(
                self.deny_cache,
                self.clock.clone(),
            ))),
            ..self.clone()
        }
    }
}

/// The default number of cached denials: about 2 MB.
const DENY_CACHE: usize = 16_384;

impl Default for RemoteSettings {
    fn default() -> Self {
        Self {
            failure: FailurePolicy::default(),
            deny_cache: DENY_CACHE,
            clock: Clock::system(),
            has_leases: true,
            local: Arc::default(),
            caches: Arc::default(),
            denied: None,
            outages: Arc::default(),
        }
    }
}

pub(super) struct RemoteGuard {
    settings: RemoteSettings,
    denied: Arc<DenyCache>,
    /// Identifies this policy's entries in the deny cache.
    tag: PolicyTag,
    fall_back: Fallback,
    counters: Arc<AtomicCounters>,
}

impl RemoteGuard {
    pub(super) fn new(
        settings: RemoteSettings,
        policy: &Policy,
        namespace: &Arc<str>,
        counters: Arc<AtomicCounters>,
    ) -> Self {
        let own = || {
            settings
                .caches
                .of_namespace(namespace, settings.deny_cache, &settings.clock)
        };
        let denied = settings.denied.clone().unwrap_or_else(own);
        Self {
            tag: denied.tag(policy, namespace),
            denied,
            fall_back: Fallback::new(
                settings.failure,
                policy,
                namespace,
                &settings.local,
                settings.clock.clone(),
            ),
            settings,
            counters,
        }
    }

    /// Returns the guard for another policy, with the same settings and counters.
    pub(super) fn for_policy(&self, policy: &Policy, namespace: &Arc<str>) -> Self {
        Self::new(
            self.settings.clone(),
            policy,
            namespace,
            Arc::clone(&self.counters),
        )
    }

    /// Prepares a policy for the store.
    pub(super) fn plan<S: Store>(&self, store: &S, policy: &Policy, namespace: &str) -> S::Plan {
        if self.settings.has_leases {
            store.plan(policy, namespace)
        } else {
            store.plan_without_lease(policy, namespace)
        }
    }

    pub(super) fn has_leases(&self) -> bool {
        self.settings.has_leases
    }

    pub(super) fn failure(&self) -> FailurePolicy {
        self.fall_back.failure()
    }

    pub(super) fn counters(&self, store: &impl Store) -> Counters {
        self.counters.snapshot(store.health())
    }

    /// Returns the denial of a request that is in the deny cache.
    pub(super) fn cached(&self, key: Key<'_>, cost: Cost) -> Option<Decision> {
        let denied = self.denied.find(self.tag, key, cost)?;
        self.counters.deny_cache_hit();
        Some(denied)
    }

    /// Admits a request from quota that this process has leased.
    #[inline]
    pub(super) fn check_leased<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> Option<Decision> {
        let decision = store.check_leased(plan, key, cost)?;
        self.counters.check(&decision);
        Some(decision)
    }

    /// Asks the store about a request that is not [cached](Self::cached).
    pub(super) async fn check<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> Decision {
        let asked_at = self.denied.now();
        let answer = store.check(plan, key, cost).await;
        self.record_or_fall_back(key, cost, asked_at, answer)
    }

    pub(super) async fn check_many<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        requests: &[(Key<'_>, Cost)],
    ) -> Vec<Decision> {
        let cached: Vec<Option<Decision>> = requests
            .iter()
            .map(|(key, cost)| self.cached(*key, *cost))
            .collect();
        let open = |(request, cached): (&(_, _), &Option<_>)| cached.is_none().then_some(*request);
        let asked: Vec<(Key<'_>, Cost)> = requests.iter().zip(&cached).filter_map(open).collect();
        let asked_at = self.denied.now();
        let answers = if asked.is_empty() {
            Vec::new()
        } else {
            store.check_many(plan, &asked).await
        };
        let mut answers = asked
            .iter()
            .zip(answers)
            .map(|((key, cost), answer)| self.record_or_fall_back(*key, *cost, asked_at, answer));
        cached
            .into_iter()
            .filter_map(|cached| cached.or_else(|| answers.next()))
            .collect()
    }

    /// Returns the decision that a check would get. The failure policy answers for the store, and
    /// nothing is counted: a peek is not a request.
    pub(super) async fn peek<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> Admission {
        match store.peek(plan, key, cost).await {
            Ok(admission) => {
                self.settings.outages.answered();
                admission
            }
            Err(error) => {
                self.settings.outages.failed(&error);
                self.fall_back.peek(key, cost, error.reason())
            }
        }
    }

    /// Charges in the store, or where the failure policy counts.
    pub(super) async fn charge<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> Charged {
        let charged = match store.charge(plan, key, cost).await {
            Ok(charged) => {
                self.settings.outages.answered();
                charged
            }
            Err(error) => {
                self.settings.outages.failed(&error);
                self.fall_back.charge(key, cost, error.reason())
            }
        };
        // Cached denials would show too short a wait.
        self.denied.invalidate(key);
        self.counters.charge(&charged);
        charged
    }

    /// Returns the failure policy's answer, and counts it.
    pub(super) fn fall_back(&self, key: Key<'_>, cost: Cost, error: &StoreError) -> Decision {
        self.settings.outages.failed(error);
        let decision = self.fall_back.check(key, cost, error.reason());
        self.counters.check(&decision);
        decision
    }

    /// Like [`fall_back`](Self::fall_back), and returns where the request is counted locally.
    pub(super) fn fall_back_admit(
        &self,
        key: Key<'_>,
        cost: Cost,
        error: &StoreError,
    ) -> Admission {
        self.settings.outages.failed(error);
        let admission = self.fall_back.admit(key, cost, error.reason());
        self.counters.check(&admission.decision);
        admission
    }

    /// Gives back a cost that [`fall_back`](Self::fall_back) took.
    pub(super) fn fall_back_refund(&self, key: Key<'_>, cost: Cost, reason: Degraded) -> Decision {
        self.fall_back.refund(key, cost, reason)
    }

    /// Settles a request where it was counted: in the store, or locally if `taken_locally` is set.
    /// If the store is unavailable this fails, and the cost stays taken.
    pub(super) async fn settle<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        key: Key<'_>,
        settlement: &Settlement<'_>,
        taken_locally: Option<Degraded>,
    ) -> Result<Charged, StoreError> {
        let answer = match taken_locally {
            Some(reason) => Ok(self.fall_back.settle(key, settlement, reason)),
            None => store.settle(plan, key, settlement).await,
        };
        self.denied.invalidate(key);
        if let Ok(settled) = &answer {
            self.counters.settle(settled, settlement);
        }
        answer
    }

    /// Returns the time, to be taken before a request is sent.
    pub(super) fn now(&self) -> Timestamp {
        self.denied.now()
    }

    /// Counts and caches the store's answer, or returns the failure policy's.
    fn record_or_fall_back(
        &self,
        key: Key<'_>,
        cost: Cost,
        asked_at: Timestamp,
        answer: Result<Decision, StoreError>,
    ) -> Decision {
        match answer {
            Ok(decision) => self.take(key, Some(cost), asked_at, decision),
            Err(error) => self.fall_back(key, cost, &error),
        }
    }

    /// Counts the store's answer, and caches it if the cost is known.
    pub(super) fn take(
        &self,
        key: Key<'_>,
        cost: Option<Cost>,
        asked_at: Timestamp,
        decision: Decision,
    ) -> Decision {
        match cost {
            Some(cost) => self.denied.record(self.tag, key, cost, asked_at, &decision),
            None => self.denied.invalidate(key),
        }
        self.settings.outages.answered();
        self.counters.check(&decision);
        decision
    }

    /// Gives back to the store. There is no fallback: a refund of a cost that the store counted
    /// must not free local capacity.
    pub(super) async fn refund<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, StoreError> {
        let answer = store.refund(plan, key, cost).await;
        // Invalidate afterwards, so that no earlier denial is cached in between.
        self.denied.invalidate(key);
        if let Ok(decision) = &answer {
            self.counters.refund(decision);
        }
        answer
    }

    pub(super) async fn reset<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        key: Key<'_>,
    ) -> Result<bool, StoreError> {
        let answer = store.reset(plan, key).await;
        self.denied.invalidate(key);
        answer
    }
}
