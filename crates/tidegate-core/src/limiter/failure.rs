//! What is answered when the store cannot.

use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::algorithm::Claims;
use crate::clock::Clock;
use crate::cost::Cost;
use crate::decision::{Decision, Degraded, Verdict};
use crate::key::Key;
use crate::memory::{MemoryStore, Plan};
use crate::policy::{Limit, Policy, Rate};
use crate::record::Settlement;
use crate::store::Admission;

/// What is answered when the store cannot. Every such answer says so: [`Decision::degraded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    /// Everything goes on: the limit is off while the store is gone. Whoever can bring the store down, or slow it, can
    /// switch the limit off.
    Open,
    /// Nothing goes on: what is protected is as unavailable as the store.
    Closed,
    /// This process decides alone, in memory, each limit divided by the number of instances that share the store.
    Local {
        /// How many instances share the store.
        instances: NonZeroU32,
    },
}

impl FailurePolicy {
    /// [`FailurePolicy::Local`] for so many instances; 0 counts as 1.
    #[must_use]
    pub fn local(instances: u32) -> Self {
        Self::Local {
            instances: NonZeroU32::new(instances).unwrap_or(NonZeroU32::MIN),
        }
    }
}

/// Local, as if this were the only instance: neither is the limit off, nor is everybody locked out, and no one has to
/// have thought about it before.
impl Default for FailurePolicy {
    fn default() -> Self {
        Self::local(1)
    }
}

/// What a closed door says: the store may well be back by then.
const CLOSED_RETRY: Duration = Duration::from_secs(1);

/// Answers in the store's place.
pub(super) struct StandIn {
    failure: FailurePolicy,
    policy: Policy,
    namespace: Arc<str>,
    local: Arc<Local>,
    clock: Clock,
    /// The policy's share, worked out for the local store when it is first needed.
    plan: OnceLock<Plan>,
}

/// Keys that are counted locally while the store is gone.
const LOCAL_KEYS: u64 = 100_000;

/// Where decisions are made while the store is gone: one for all policies that share the store, so that what was used is
/// kept when a policy changes. Made when it is first needed: most processes never do.
#[derive(Default)]
pub(super) struct Local(OnceLock<Option<MemoryStore>>);

impl Local {
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

impl StandIn {
    pub(super) fn new(
        failure: FailurePolicy,
        policy: &Policy,
        namespace: &Arc<str>,
        local: &Arc<Local>,
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

    /// What is stored and cannot be read is never taken for nothing: that would be an invitation to damage it.
    pub(super) fn check(&self, key: Key<'_>, cost: Cost, reason: Degraded) -> Decision {
        if reason == Degraded::Unreadable {
            return self.without_figures(Verdict::Denied, reason);
        }
        self.decide(reason, |store, plan| store.check(plan, key, cost))
    }

    /// The same, and where the request is counted locally.
    pub(super) fn admit(&self, key: Key<'_>, cost: Cost, reason: Degraded) -> Admission {
        let mut claims = Claims::new();
        if reason == Degraded::Unreadable {
            return (self.without_figures(Verdict::Denied, reason), claims);
        }
        let decision = self.decide(reason, |store, plan| {
            let (decision, taken) = store.admit_one(plan, key, cost);
            claims = taken;
            decision
        });
        (decision, claims)
    }

    /// Gives back what was taken locally.
    pub(super) fn refund(&self, key: Key<'_>, cost: Cost, reason: Degraded) -> Decision {
        self.decide(reason, |store, plan| store.refund(plan, key, cost))
    }

    /// Settles what was taken locally.
    pub(super) fn settle(
        &self,
        key: Key<'_>,
        settlement: &Settlement<'_>,
        reason: Degraded,
    ) -> Decision {
        self.decide(reason, |store, plan| store.settle(plan, key, settlement))
    }

    fn decide(
        &self,
        reason: Degraded,
        locally: impl FnOnce(&MemoryStore, &Plan) -> Decision,
    ) -> Decision {
        match self.failure {
            FailurePolicy::Open => self.without_figures(Verdict::Allowed, reason),
            FailurePolicy::Closed => self.without_figures(Verdict::Denied, reason),
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
                None => self.without_figures(Verdict::Denied, reason),
            },
        }
    }

    /// No figures are made up: nobody knows what remains.
    fn without_figures(&self, verdict: Verdict, reason: Degraded) -> Decision {
        let wait = if verdict == Verdict::Denied {
            CLOSED_RETRY.as_nanos() as u64
        } else {
            0
        };
        let limit = self.policy.limits().first().map_or(0, Limit::capacity);
        Decision {
            verdict,
            wait,
            reset_after: 0,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            remaining: 0,
            limit_index: 0,
            degraded: Some(reason),
        }
    }
}

/// One instance's share of a policy: each limit and burst divided, but at least 1.
fn share(policy: &Policy, instances: NonZeroU32) -> Policy {
    let divided = |units: u64| (units / u64::from(instances.get())).max(1);
    let limits = policy.limits().iter().map(|limit| {
        let rate = Rate::new(divided(limit.limit()), limit.period());
        let share = Limit { rate, ..*limit };
        if !limit.algorithm().is_bucket() {
            return share;
        }
        let bursting = Limit {
            burst: Some(divided(limit.capacity())),
            ..share
        };
        // A limit that is rounded down may take too long to refill the burst: then the burst is the limit.
        if Policy::new([bursting]).is_ok() {
            bursting
        } else {
            Limit {
                burst: None,
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
