//! What stands between a caller and a store across a network: what need not be asked again, what is answered when the
//! store cannot, and the counts of both.

use std::sync::Arc;

use super::counters::{Counters, Tally};
use super::deny_cache::{Caches, DenyCache, Mark};
use super::failure::{FailurePolicy, Local, StandIn};
use crate::clock::{Clock, Timestamp};
use crate::cost::Cost;
use crate::decision::{Decision, Degraded};
use crate::key::Key;
use crate::policy::Policy;
use crate::record::Settlement;
use crate::store::{Admission, Store, StoreError};

/// How a limiter on a remote store is guarded.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) failure: FailurePolicy,
    pub(crate) deny_cache: usize,
    pub(crate) clock: Clock,
    /// Shared by all limiters that these settings are of.
    local: Arc<Local>,
    /// Remembered denials, by namespace.
    caches: Arc<Caches>,
    /// The same for all limiters, where there may be many and few keys of each.
    denied: Option<Arc<DenyCache>>,
}

impl Settings {
    /// The same for limiters that remember denials together: as many as one of the others.
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

/// What is kept of denials where nothing is said: about 2 MB.
const DENY_CACHE: usize = 16_384;

impl Default for Settings {
    fn default() -> Self {
        Self {
            failure: FailurePolicy::default(),
            deny_cache: DENY_CACHE,
            clock: Clock::system(),
            local: Arc::default(),
            caches: Arc::default(),
            denied: None,
        }
    }
}

pub(super) struct Guard {
    settings: Settings,
    denied: Arc<DenyCache>,
    /// What this policy's denials are known by.
    mark: Mark,
    stand_in: StandIn,
    tally: Arc<Tally>,
}

impl Guard {
    pub(super) fn new(
        settings: Settings,
        policy: &Policy,
        namespace: &Arc<str>,
        tally: Arc<Tally>,
    ) -> Self {
        let own = || {
            settings
                .caches
                .of_namespace(namespace, settings.deny_cache, &settings.clock)
        };
        let denied = settings.denied.clone().unwrap_or_else(own);
        Self {
            mark: denied.mark(policy, namespace),
            denied,
            stand_in: StandIn::new(
                settings.failure,
                policy,
                namespace,
                &settings.local,
                settings.clock.clone(),
            ),
            settings,
            tally,
        }
    }

    /// The same for another policy: what was denied under the old one is asked again.
    pub(super) fn renewed(&self, policy: &Policy, namespace: &Arc<str>) -> Self {
        Self::new(
            self.settings.clone(),
            policy,
            namespace,
            Arc::clone(&self.tally),
        )
    }

    pub(super) fn failure(&self) -> FailurePolicy {
        self.stand_in.failure()
    }

    pub(super) fn counters(&self, store: &impl Store) -> Counters {
        self.tally.snapshot(store.health())
    }

    /// The answer to a request that the store need not be asked about.
    pub(super) fn known(&self, key: Key<'_>, cost: Cost) -> Option<Decision> {
        let denied = self.denied.find(self.mark, key, cost)?;
        self.tally.deny_cache_hit();
        Some(denied)
    }

    /// The store's answer to a request that is not [known](Self::known).
    pub(super) async fn check<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> Decision {
        let asked_at = self.denied.now();
        let answer = store.check(plan, key, cost).await;
        self.take_or_stand_in(key, cost, asked_at, answer)
    }

    pub(super) async fn check_many<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        requests: &[(Key<'_>, Cost)],
    ) -> Vec<Decision> {
        let known: Vec<Option<Decision>> = requests
            .iter()
            .map(|(key, cost)| self.known(*key, *cost))
            .collect();
        let open = |(request, known): (&(_, _), &Option<_>)| known.is_none().then_some(*request);
        let asked: Vec<(Key<'_>, Cost)> = requests.iter().zip(&known).filter_map(open).collect();
        let asked_at = self.denied.now();
        let answers = if asked.is_empty() {
            Vec::new()
        } else {
            store.check_many(plan, &asked).await
        };
        let mut answers = asked
            .iter()
            .zip(answers)
            .map(|((key, cost), answer)| self.take_or_stand_in(*key, *cost, asked_at, answer));
        known
            .into_iter()
            .filter_map(|known| known.or_else(|| answers.next()))
            .collect()
    }

    /// The answer in the place of a store that could not give one, counted.
    pub(super) fn stand_in(&self, key: Key<'_>, cost: Cost, error: &StoreError) -> Decision {
        let decision = self.stand_in.check(key, cost, error.reason());
        self.tally.check(&decision);
        decision
    }

    /// The same, and where the request is counted locally.
    pub(super) fn stand_in_admit(&self, key: Key<'_>, cost: Cost, error: &StoreError) -> Admission {
        let admission = self.stand_in.admit(key, cost, error.reason());
        self.tally.check(&admission.0);
        admission
    }

    /// Gives back what a [`stand_in`](Self::stand_in) took.
    pub(super) fn stand_in_refund(&self, key: Key<'_>, cost: Cost, reason: Degraded) -> Decision {
        self.stand_in.refund(key, cost, reason)
    }

    /// Settles a request where it was counted: in the store, or locally if `taken_locally`. Nothing stands in for a store
    /// that cannot be reached: what it counted stays counted.
    pub(super) async fn settle<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        key: Key<'_>,
        settlement: &Settlement<'_>,
        taken_locally: Option<Degraded>,
    ) -> Result<Decision, StoreError> {
        let answer = match taken_locally {
            Some(reason) => Ok(self.stand_in.settle(key, settlement, reason)),
            None => store.settle(plan, key, settlement).await,
        };
        self.denied.forget(key);
        if let Ok(decision) = &answer {
            self.tally.refund(decision);
        }
        answer
    }

    /// When something is asked, for what is learned from the answer.
    pub(super) fn now(&self) -> Timestamp {
        self.denied.now()
    }

    /// Counts what the store answered, and remembers it; answers in its place if it could not.
    fn take_or_stand_in(
        &self,
        key: Key<'_>,
        cost: Cost,
        asked_at: Timestamp,
        answer: Result<Decision, StoreError>,
    ) -> Decision {
        match answer {
            Ok(decision) => self.take(key, Some(cost), asked_at, decision),
            Err(error) => self.stand_in(key, cost, &error),
        }
    }

    /// Counts what the store answered, and remembers it if the cost that it is about is known.
    pub(super) fn take(
        &self,
        key: Key<'_>,
        cost: Option<Cost>,
        asked_at: Timestamp,
        decision: Decision,
    ) -> Decision {
        match cost {
            Some(cost) => self.denied.learn(self.mark, key, cost, asked_at, &decision),
            None => self.denied.forget(key),
        }
        self.tally.check(&decision);
        decision
    }

    /// Gives back to the store. Nothing stands in for it: a refund of what the store counted must not free what was admitted
    /// locally.
    pub(super) async fn refund<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Decision, StoreError> {
        let answer = store.refund(plan, key, cost).await;
        // After it, so that no denial from before comes in between and stays.
        self.denied.forget(key);
        if let Ok(decision) = &answer {
            self.tally.refund(decision);
        }
        answer
    }

    pub(super) async fn reset<S: Store>(
        &self,
        store: &S,
        plan: &S::Plan,
        key: Key<'_>,
    ) -> Result<(), StoreError> {
        let answer = store.reset(plan, key).await;
        self.denied.forget(key);
        answer
    }
}
