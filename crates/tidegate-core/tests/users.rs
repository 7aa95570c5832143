//! Charges, debt, peeks, reasons, keys and counters through the public API, as users call it.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::net::IpAddr;
use std::time::Duration;

use tidegate_core::{
    ActualCosts, CheckError, Cost, DenialReason, Denied, Exception, Gate, IntoKey, Limiter,
    ManualClock, MemoryStore, PolicySet, Rules, Store, Subject,
};

fn limiter(policy: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    (Limiter::new(store, policy.parse().unwrap()), clock)
}

fn gate(policies: &[(&str, Rules)]) -> (Gate, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let set = policies
        .iter()
        .fold(PolicySet::new(), |set, (name, rules)| {
            set.with(name, rules.clone()).unwrap()
        });
    (Gate::new(store, set), clock)
}

fn rules(text: &str) -> Rules {
    Rules::new(text.parse().unwrap())
}

#[test]
fn a_charge_beyond_the_limit_is_owed() {
    let (limiter, clock) = limiter("1000/minute debt=5000");
    // An estimate of 100, and 5,000 in the end: the difference is not forgotten.
    let (_, receipt) = limiter
        .check("user")
        .cost(100)
        .with_receipt()
        .now()
        .unwrap();
    let after = receipt.settle_now(5_000).unwrap()[0];
    assert_eq!(after.reason(), Some(DenialReason::Limited));
    assert_eq!(after.retry_after(), Some(Duration::from_secs(240)));
    // A look is denied while the limit is in debt.
    assert!(limiter.check("user").cost(0).now().unwrap().is_denied());
    clock.advance(Duration::from_secs(240));
    assert!(limiter.check("user").cost(0).now().unwrap().is_allowed());
    assert!(limiter.check("user").now().unwrap().is_denied());
    // Beyond the debt, a charge is dropped and counted.
    limiter.charge("other", 10_000).now().unwrap();
    let counters = limiter.counters();
    assert_eq!((counters.charges, counters.dropped), (2, 4_000_000));
}

#[test]
fn a_peek_tells_when_and_takes_nothing() {
    let (limiter, _) = limiter("fixed_window 5/minute");
    limiter.check("k").cost(5).now().unwrap().or_deny().unwrap();
    for _ in 0..3 {
        let peeked = limiter.peek("k").now().unwrap();
        assert_eq!(peeked.retry_after(), Some(Duration::from_secs(60)));
    }
    assert_eq!(limiter.peek("new").cost(2).now().unwrap().remaining(), 3);
    assert_eq!(limiter.store().stats().keys, 1);
    let (gate, _) = gate(&[("api", rules("fixed_window 5/minute"))]);
    assert_eq!(
        gate.peek("api", "k").cost(5).now().unwrap().remaining(),
        Some(0)
    );
    assert_eq!(gate.peek("api", "k").now().unwrap().remaining(), Some(4));
    assert_eq!(gate.counters()[0].allowed, 0, "a peek is not a request");
}

#[test]
fn a_denial_names_the_limit_and_the_reason() {
    let (gate, _) = gate(&[(
        "api",
        rules("5/second; fixed_window 7/day")
            .exception("mallory", Exception::Blocked)
            .unwrap(),
    )]);
    let denied = |cost: u32| {
        let verdict = gate
            .check("api", "k")
            .cost(cost)
            .with_limits()
            .now()
            .unwrap();
        let denial = verdict.denial().expect("denied").clone();
        (
            denial.reason().unwrap(),
            denial.limit().unwrap().to_string(),
            denial.limits().to_vec(),
        )
    };
    let (reason, limit, _) = denied(6);
    assert_eq!(
        (reason, &*limit),
        (DenialReason::CostAboveCapacity, "token_bucket 5/second")
    );
    let _ = gate
        .check("api", "k")
        .cost(5)
        .now()
        .unwrap()
        .or_deny()
        .unwrap();
    let (reason, limit, limits) = denied(3);
    assert_eq!(
        (reason, &*limit),
        (DenialReason::Limited, "fixed_window 7/day")
    );
    assert_eq!(limits.len(), 2);
    assert_eq!(limits[0].retry_after(), Some(Duration::from_millis(600)));
    assert_eq!((limits[0].remaining(), limits[1].remaining()), (0, 2));
    let blocked = gate.check("api", "mallory").now().unwrap();
    assert_eq!(blocked.reason(), Some(DenialReason::Blocked));
    let error: Denied = blocked.or_deny().unwrap_err();
    assert_eq!(
        (error.reason(), error.retry_after()),
        (DenialReason::Blocked, None)
    );
    // The reset belongs to the limit that the remaining belongs to.
    let decision = *gate.peek("api", "new").now().unwrap().decisions()[0]
        .decision()
        .unwrap();
    assert_eq!(
        (decision.remaining(), decision.limit_reset_after()),
        (4, Duration::from_millis(200))
    );
    assert!(decision.reset_after() > Duration::from_secs(60));
}

#[test]
fn one_request_has_a_cost_for_each_policy() {
    let (gate, _) = gate(&[
        ("requests", rules("10/minute")),
        ("tokens", rules("2000/minute debt=3000")),
    ]);
    let subjects = |tokens: u32| {
        let tokens = Subject {
            cost: tokens.try_into().unwrap(),
            ..Subject::new("tokens", "user")
        };
        [Subject::new("requests", "user"), tokens]
    };
    let left = |policy: &str| {
        gate.check(policy, "user")
            .cost(0)
            .now()
            .unwrap()
            .remaining()
    };
    let asked = subjects(1_500);
    let (verdict, receipt) = gate.admit(&asked).into_ready().unwrap().unwrap();
    assert!(verdict.is_allowed());
    receipt.settle(ActualCosts::new().policy("tokens", 300).unwrap());
    assert_eq!((left("requests"), left("tokens")), (Some(9), Some(1_700)));
    // All or nothing: what one policy denies, the other does not count.
    let asked = subjects(1_800);
    let (verdict, _) = gate.admit(&asked).into_ready().unwrap().unwrap();
    assert!(verdict.is_denied());
    assert_eq!((left("requests"), left("tokens")), (Some(9), Some(1_700)));
    // A higher cost is charged, into debt.
    let asked = subjects(1_700);
    let (_, receipt) = gate.admit(&asked).into_ready().unwrap().unwrap();
    receipt.settle(ActualCosts::new().policy("tokens", 4_000).unwrap());
    let verdict = gate.peek("tokens", "user").cost(0).now().unwrap();
    assert_eq!(verdict.reason(), Some(DenialReason::Limited));
    assert_eq!(left("requests"), Some(8));
    assert_eq!(
        (gate.counters()[1].charges, gate.counters()[1].dropped),
        (1, 0)
    );
}

#[test]
fn keys_of_any_type_address_their_own_counters() {
    let (limiter, _) = limiter("fixed_window 1/day");
    let address: IpAddr = "2001:db8::7".parse().unwrap();
    let parts = ["acme", "42"];
    assert!(limiter.check("acme:42").now().unwrap().is_allowed());
    assert!(limiter.check(("acme", 42)).now().unwrap().is_allowed());
    assert!(limiter.check(("acme:42",)).now().unwrap().is_allowed());
    assert!(limiter.check(42_u64).now().unwrap().is_allowed());
    assert!(limiter.check(address).now().unwrap().is_allowed());
    assert!(limiter.check((address, "GET")).now().unwrap().is_allowed());
    // The same keys in other forms.
    assert!(limiter.check("42").now().unwrap().is_denied());
    assert!(limiter.check(&parts[..]).now().unwrap().is_denied());
    assert!(
        limiter
            .check(&("acme".to_owned(), 42_i32))
            .now()
            .unwrap()
            .is_denied()
    );
    assert!(limiter.check("2001:db8::7").now().unwrap().is_denied());
    let many = limiter
        .check_many(&[(("acme", 42), 1), (("acme", 43), 1)])
        .now()
        .unwrap();
    assert!(many[0].is_denied() && many[1].is_allowed());
    assert!(limiter.reset(("acme", 42)).now().unwrap());
    assert!(!limiter.reset(("acme", 42)).now().unwrap());
    assert!(matches!(
        limiter.check(&[] as &[&str]).now(),
        Err(CheckError::EmptyKey(_))
    ));
    // In a gate, with tenants and exceptions.
    let blocked = rules("5/minute")
        .exception(("acme", 7), Exception::Blocked)
        .unwrap();
    let (gate, _) = gate(&[("api", blocked)]);
    assert!(gate.check("api", ("acme", 7)).now().unwrap().is_denied());
    assert!(gate.check("api", "acme:7").now().unwrap().is_allowed());
    assert!(
        gate.check("api", ("acme", 7))
            .tenant("t")
            .now()
            .unwrap()
            .is_allowed()
    );
    let key = ("acme", 8).into_key();
    assert!(gate.check("api", &key).now().unwrap().is_allowed());
    assert!(gate.reset("api", key).now().unwrap());
}

#[test]
fn a_gate_has_the_operations_of_a_limiter() {
    let (gate, _) = gate(&[("api", rules("fixed_window 10/day debt=5"))]);
    let _ = gate
        .check("api", "k")
        .cost(3)
        .now()
        .unwrap()
        .or_deny()
        .unwrap();
    assert_eq!(
        gate.charge("api", "k", 2)
            .now()
            .unwrap()
            .unwrap()
            .remaining(),
        5
    );
    assert_eq!(
        gate.charge("api", "k", 1)
            .cost(2.5)
            .blocking()
            .unwrap()
            .unwrap()
            .remaining(),
        2
    );
    assert_eq!(
        gate.refund("api", "k", 1)
            .now()
            .unwrap()
            .unwrap()
            .remaining(),
        3
    );
    assert!(gate.reset("api", "k").now().unwrap());
    assert!(!gate.reset("api", "k").now().unwrap());
    assert!(matches!(
        gate.peek("other", "k").now(),
        Err(CheckError::UnknownPolicy { .. })
    ));
    let rejecting = rules("1/s")
        .tier("gold", "9/s".parse().unwrap())
        .unwrap()
        .reject_unknown_tiers();
    gate.replace_policies(PolicySet::new().with("api", rejecting).unwrap())
        .unwrap();
    let unknown = gate.check("api", "k").tier("iron").now();
    assert!(
        matches!(unknown, Err(CheckError::UnknownTier { .. })),
        "{unknown:?}"
    );
    assert!(gate.check("api", "k").tier("").now().unwrap().is_allowed());
    assert_eq!(gate.counters()[0].unknown_tiers, 1);
}

#[test]
fn counters_count_in_memory() {
    let (limiter, _) = limiter("fixed_window 2/day");
    for _ in 0..3 {
        let _ = limiter.check("k").now().unwrap();
    }
    let _ = limiter.check("k").cost(3).now().unwrap();
    let _ = limiter.check("k").cost(0).now().unwrap();
    let _ = limiter
        .check_many(&[("a", 1), ("b", 1), ("k", 1)])
        .now()
        .unwrap();
    let _ = limiter.check("c").with_limits().now().unwrap();
    limiter.refund("k", 1).now().unwrap();
    let counters = limiter.counters();
    assert_eq!((counters.allowed, counters.denied), (5, 2));
    assert_eq!((counters.never_allowed, counters.refunds), (1, 1));
    assert_eq!(counters.store, None);
    assert!(!Store::is_remote(limiter.store()));
}

/// Costs are settled after streams that end early, late, twice and never: usage is never more than
/// the limit and the recorded debt.
#[test]
fn settled_estimates_never_exceed_the_limit_and_the_debt() {
    let mut random = fastrand::Rng::with_seed(13);
    for policy in [
        "1000/minute debt=2000",
        "fixed_window 1000/minute debt=2000",
        "sliding_window_log 1000/minute debt=2000",
        "sliding_window_counter 1000/minute debt=2000",
    ] {
        let (limiter, clock) = limiter(policy);
        let mut open = Vec::new();
        for _ in 0..5_000 {
            clock.advance(Duration::from_millis(random.u64(0..500)));
            let estimate = Cost::try_from(random.u64(1..400)).unwrap();
            let check = limiter.check("k").cost(estimate).with_receipt();
            let (decision, receipt) = check.now().unwrap();
            if decision.is_allowed() {
                open.push(receipt);
            }
            // Some streams are never settled, the others early or late, lower or higher.
            if !open.is_empty() && random.bool() {
                let receipt = open.swap_remove(random.usize(0..open.len()));
                let actual = random.u64(0..1_500);
                if random.u8(0..8) > 0 {
                    let _ = receipt.settle_now(actual).unwrap();
                }
            }
            let look = limiter.check("k").cost(0).now().unwrap();
            let longest = match policy.starts_with('1') {
                // A bucket refills 1,000 in 60 s: usage of 3,000 is gone after 180 s.
                true => Duration::from_secs(180),
                false => Duration::from_secs(120),
            };
            assert!(look.reset_after() <= longest, "{policy}: {look:?}");
        }
    }
}
