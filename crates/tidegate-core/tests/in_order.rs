//! The default multi-key implementation checks keys in order. A denial stands even if another key's
//! check fails.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{
    Admission, BlockingError, Charged, Cost, Decision, Degraded, FailurePolicy, Gate, Key,
    MemoryStore, Plan, Policy, PolicySet, Rules, Settlement, Store, StoreError, Subject,
};

/// A remote store that serves checks, fails on demand, and does not support refunds.
struct Remote {
    memory: MemoryStore,
    is_unavailable: AtomicBool,
}

fn unavailable<T>() -> Result<T, StoreError> {
    Err(StoreError::new(Degraded::Timeout, "gone"))
}

impl Store for Remote {
    type Plan = Plan;

    fn plan(&self, policy: &Policy, namespace: &str) -> Plan {
        self.memory.plan(policy, namespace)
    }

    async fn check(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        if self.is_unavailable.load(Ordering::Relaxed) || key.as_bytes() == b"gone" {
            return unavailable();
        }
        Ok(self.memory.check(plan, key, cost))
    }

    async fn check_many(
        &self,
        _: &Plan,
        _: &[(Key<'_>, Cost)],
    ) -> Vec<Result<Decision, StoreError>> {
        Vec::new()
    }

    async fn admit_one(
        &self,
        plan: &Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Admission, StoreError> {
        if self.is_unavailable.load(Ordering::Relaxed) || key.as_bytes() == b"gone" {
            return unavailable();
        }
        Ok(self.memory.admit_one(plan, key, cost))
    }

    async fn settle(
        &self,
        _: &Plan,
        _: Key<'_>,
        _: &Settlement<'_>,
    ) -> Result<Charged, StoreError> {
        unavailable()
    }

    async fn peek(&self, _: &Plan, _: Key<'_>, _: Cost) -> Result<Admission, StoreError> {
        unavailable()
    }

    async fn charge(&self, _: &Plan, _: Key<'_>, _: Cost) -> Result<Charged, StoreError> {
        unavailable()
    }

    async fn refund(&self, _: &Plan, _: Key<'_>, _: Cost) -> Result<Decision, StoreError> {
        unavailable()
    }

    async fn reset(&self, _: &Plan, _: Key<'_>) -> Result<bool, StoreError> {
        unavailable()
    }

    fn block_on<F: Future>(&self, future: F) -> Result<F::Output, BlockingError> {
        self.memory.block_on(future)
    }

    fn detach(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.memory.detach(future);
    }
}

fn gate(failure: FailurePolicy) -> Gate<Remote> {
    let rules = |text: &str| Rules::new(text.parse().unwrap()).failure_policy(failure);
    let policies = PolicySet::new()
        .with("a", rules("9/365 days"))
        .and_then(|policies| policies.with("b", rules("1/365 days")))
        .unwrap();
    let memory = MemoryStore::builder().max_keys(100).build().unwrap();
    Gate::builder(
        Remote {
            memory,
            is_unavailable: AtomicBool::new(false),
        },
        policies,
    )
    .deny_cache(0)
    .build()
}

#[test]
fn a_denial_stands_if_another_check_fails() {
    for failure in [
        FailurePolicy::Open,
        FailurePolicy::local(1),
        FailurePolicy::Closed,
    ] {
        let gate = gate(failure);
        let check = |a, b| {
            let subjects = [Subject::new("a", a), Subject::new("b", b)];
            gate.store()
                .block_on(gate.decide(&subjects))
                .unwrap()
                .unwrap()
        };
        assert!(check("k", "k").is_allowed());
        // The cost that `a` has taken cannot be refunded.
        let denied = check("k", "k");
        assert!(
            denied.is_denied() && denied.degraded().is_none(),
            "{failure:?} {denied:?}"
        );
        // The check of `a` fails too. No key denies, so the failure policy decides.
        assert_eq!(
            check("gone", "other").is_allowed(),
            failure != FailurePolicy::Closed
        );
    }
}

/// If the refunds were lost, the local limit would deny after the first request.
#[test]
fn costs_taken_by_the_local_fallback_are_refunded_there() {
    let gate = gate(FailurePolicy::local(1));
    gate.store().is_unavailable.store(true, Ordering::Relaxed);
    for _ in 0..20 {
        let (verdict, receipt) = gate
            .store()
            .block_on(gate.admit(&[Subject::new("b", "k")]))
            .unwrap()
            .unwrap();
        assert!(verdict.is_allowed() && verdict.degraded().is_some());
        receipt.give_back();
    }
}
