//! The failure policy: the answer when the store cannot answer.

use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::clock::Clock;
use crate::cost::Cost;
use crate::decision::{Decision, Degraded, OutcomeKind};
use crate::key::Key;
use crate::memory::{MemoryStore, Plan};
use crate::policy::{Limit, Policy, Rate};
use crate::record::Settlement;
use crate::store::{Admission, Charged};

/// The answer when the store cannot answer. [`Decision::degraded`] marks every such answer.
///
/// # Examples
///
/// ```
/// use tidegate::FailurePolicy;
///
/// // Four instances share one Redis. During an outage, each enforces a quarter of the limit.
/// let failure = FailurePolicy::local(4);
/// assert_eq!(FailurePolicy::default(), FailurePolicy::local(1));
/// # let _ = failure;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// Allows every request: the limit is off during an outage. A client that can slow the store
    /// down can switch the limit off.
    Open,
    /// Denies every request: the protected service is unavailable during an outage.
    Closed,
    /// Decides in the memory of this process. Each limit is divided by the number of instances that
    /// share the store.
    Local {
        /// The number of instances that share the store.
        instances: NonZeroU32,
    },
}

impl FailurePolicy {
    /// Creates [`FailurePolicy::Local`] for `instances` instances. 0 counts as 1.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::FailurePolicy;
    ///
    /// // Four processes share the limit: each admits a quarter while Redis is unavailable.
    /// let policy = FailurePolicy::local(4);
    /// assert_ne!(policy, FailurePolicy::Closed);
    /// ```
    #[must_use]
    pub fn local(instances: u32) -> Self {
        Self::Local {
            instances: NonZeroU32::new(instances).unwrap_or(NonZeroU32::MIN),
        }
    }
}

/// The default is [`FailurePolicy::Local`] with one instance: during an outage the limit is neither
/// off nor closed.
impl Default for FailurePolicy {
    fn default() -> Self {
        Self::local(1)
    }
}

/// The `retry_after` of a closed failure policy.
const CLOSED_RETRY: Duration = Duration::from_secs(1);

/// Admissions in place of the store.
pub(super) struct Fallback {
    failure: FailurePolicy,
    policy: Policy,
    namespace: Arc<str>,
    local: Arc<LocalStore>,
    clock: Clock,
    /// The policy's share of one instance, prepared on the first outage.
    plan: OnceLock<Plan>,
}

/// The maximum number of keys that are counted during an outage.
const LOCAL_KEYS: u64 = 100_000;

/// The memory store that decides during an outage. All policies on one remote store share it, so
/// that usage is kept when a policy changes. It is created on first use: most processes never need
/// it.
#[derive(Default)]
pub(super) struct LocalStore(OnceLock<Option<MemoryStore>>);

impl LocalStore {
    fn store(&self, clock: &Clock) -> Option<&MemoryStore> {
        let make = || {
            MemoryStore::builder()
                .max_keys(LOCAL_KEYS)
                .clock(clock.clone())
                .build()
                .ok()
        };
        self.0.get_or_init(make).as_ref()
    }
}

impl Fallback {
    pub(super) fn new(
        failure: FailurePolicy,
        policy: &Policy,
        namespace: &Arc<str>,
        local: &Arc<LocalStore>,
        clock: Clock,
    ) -> Self {
        let (namespace, local) = (Arc::clone(namespace), Arc::clone(local));
        Self {
            failure,
            policy: policy.clone(),
            namespace,
            local,
            clock,
            plan: OnceLock::new(),
        }
    }

    pub(super) fn failure(&self) -> FailurePolicy {
        self.failure
    }

    /// Decides a request.
    ///
    /// An unreadable stored value is always denied: otherwise corrupting a key would bypass the
    /// limit.
    pub(super) fn check(&self, key: Key<'_>, cost: Cost, reason: Degraded) -> Decision {
        if reason == Degraded::Unreadable {
            return self.without_figures(OutcomeKind::Denied, reason);
        }
        self.decide(reason, |store, plan| store.check(plan, key, cost))
    }

    /// Like [`check`](Self::check), and returns where the request is counted locally.
    pub(super) fn admit(&self, key: Key<'_>, cost: Cost, reason: Degraded) -> Admission {
        self.admission(reason, |store, plan| store.admit_one(plan, key, cost))
    }

    /// Returns the answer that a check would get.
    pub(super) fn peek(&self, key: Key<'_>, cost: Cost, reason: Degraded) -> Admission {
        self.admission(reason, |store, plan| store.peek(plan, key, cost))
    }

    fn admission(
        &self,
        reason: Degraded,
        locally: impl FnOnce(&MemoryStore, &Plan) -> Admission,
    ) -> Admission {
        if reason == Degraded::Unreadable {
            return Admission::look(self.without_figures(OutcomeKind::Denied, reason));
        }
        let mut local = None;
        let decision = self.decide(reason, |store, plan| {
            let admission = locally(store, plan);
            let decision = admission.decision;
            local = Some(admission);
            decision
        });
        match local {
            Some(admission) => Admission {
                decision,
                ..admission
            },
            None => Admission::look(decision),
        }
    }

    /// Charges locally, if the failure policy counts at all.
    pub(super) fn charge(&self, key: Key<'_>, cost: Cost, reason: Degraded) -> Charged {
        let mut dropped = Cost::ZERO;
        let decision = self.decide(reason, |store, plan| {
            let charged = store.charge(plan, key, cost);
            dropped = charged.dropped;
            charged.decision
        });
        Charged { decision, dropped }
    }

    /// Gives back a cost that was taken locally.
    pub(super) fn refund(&self, key: Key<'_>, cost: Cost, reason: Degraded) -> Decision {
        self.decide(reason, |store, plan| store.refund(plan, key, cost))
    }

    /// Settles a request that was counted locally.
    pub(super) fn settle(
        &self,
        key: Key<'_>,
        settlement: &Settlement<'_>,
        reason: Degraded,
    ) -> Charged {
        let mut dropped = Cost::ZERO;
        let decision = self.decide(reason, |store, plan| {
            let settled = store.settle(plan, key, settlement);
            dropped = settled.dropped;
            settled.decision
        });
        Charged { decision, dropped }
    }

    fn decide(
        &self,
        reason: Degraded,
        locally: impl FnOnce(&MemoryStore, &Plan) -> Decision,
    ) -> Decision {
        match self.failure {
            FailurePolicy::Open => self.without_figures(OutcomeKind::Allowed, reason),
            FailurePolicy::Closed => self.without_figures(OutcomeKind::Denied, reason),
            FailurePolicy::Local { instances } => match self.local.store(&self.clock) {
                Some(store) => {
                    let plan = self.plan.get_or_init(|| {
                        store.plan(&share(&self.policy, instances), &self.namespace)
                    });
                    Decision {
                        degraded: Some(reason),
                        ..locally(store, plan)
                    }
                }
                None => self.without_figures(OutcomeKind::Denied, reason),
            },
        }
    }

    /// Returns a decision without figures. The remaining amount is unknown.
    fn without_figures(&self, kind: OutcomeKind, reason: Degraded) -> Decision {
        let wait = if kind == OutcomeKind::Denied {
            CLOSED_RETRY.as_nanos() as u64
        } else {
            0
        };
        let limit = self.policy.limits().first().map_or(0, Limit::capacity);
        Decision {
            kind,
            wait,
            reset_after: 0,
            limit_reset_after: 0,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            remaining: 0,
            limit_index: 0,
            degraded: Some(reason),
            is_leased: false,
        }
    }
}

/// Returns one instance's share of a policy: each limit and burst divided, but at least 1, and the
/// debt divided.
fn share(policy: &Policy, instances: NonZeroU32) -> Policy {
    let divided = |units: u64| (units / u64::from(instances.get())).max(1);
    let limits = policy.limits().iter().map(|limit| {
        let rate = Rate::new(divided(limit.limit()), limit.period());
        let debt = limit.max_debt() / u64::from(instances.get());
        let share = Limit {
            rate,
            debt,
            ..*limit
        };
        if !limit.algorithm().is_bucket() {
            return share;
        }
        let bursting = Limit {
            burst: Some(divided(limit.capacity())),
            ..share
        };
        // A limit that was rounded down may refill the burst too slowly. The burst is then the
        // limit, without debt.
        if Policy::new([bursting]).is_ok() {
            bursting
        } else {
            Limit {
                burst: None,
                debt: 0,
                ..share
            }
        }
    });
    let share = Policy::new(limits).unwrap_or_else(|_| policy.clone());
    if policy.has_any_rate() {
        share.with_any_rate().unwrap_or(share)
    } else {
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(policy: &str, instances: u32) -> String {
        share(
            &policy.parse().unwrap(),
            NonZeroU32::new(instances).unwrap(),
        )
        .to_string()
    }

    #[test]
    fn a_share_is_a_policy_that_holds() {
        assert_eq!(
            shared("100/minute burst=50", 1),
            "token_bucket 100/minute burst=50"
        );
        assert_eq!(
            shared("100/minute burst=50; fixed_window 9/day", 4),
            "token_bucket 25/minute burst=12; fixed_window 2/day"
        );
        assert_eq!(shared("3/minute", 100), "token_bucket 1/minute");
        assert_eq!(
            shared("gcra 199/365 days burst=19000", 100),
            "gcra 1/365 days"
        );
    }
}
