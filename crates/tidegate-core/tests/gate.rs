//! Gates: tiers, exceptions, tenants, shadows, candidates, live replacement, and several keys in
//! one request.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::{
    BucketLimit, CheckError, Cost, Exception, Gate, Key, Limiter, LimiterRequest, ManualClock,
    MemoryStore, Policy, PolicyOutcome, PolicySet, PolicySetError, Rate, Rules, Subject, Verdict,
};

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn policies(rules: Rules) -> PolicySet {
    PolicySet::new().with("api", rules).unwrap()
}

fn gate(rules: Rules) -> Gate {
    Gate::memory(policies(rules))
}

fn decide(gate: &Gate, subjects: &[Subject<'_>]) -> Verdict {
    gate.admit(subjects)
        .into_ready()
        .expect("memory")
        .unwrap()
        .0
}

fn cost(units: u64) -> Cost {
    units.try_into().unwrap()
}

#[test]
fn a1_tiers_count_separately_unless_shared() {
    for is_shared in [false, true] {
        let rules = Rules::new(policy("sliding_window_log 10/hour"));
        let rules = rules
            .tier("premium", policy("sliding_window_log 100/hour"))
            .unwrap();
        let gate = gate(if is_shared {
            rules.shared_tiers()
        } else {
            rules
        });
        assert_eq!(
            gate.check("api", "k").cost(10).now().unwrap().remaining(),
            Some(0)
        );
        let moved = gate
            .check("api", "k")
            .tier("premium")
            .cost(0)
            .now()
            .unwrap();
        assert_eq!(moved.remaining(), Some(if is_shared { 90 } else { 100 }));
        assert_eq!(
            moved.decisions()[0].label().tier().unwrap().as_str(),
            "premium"
        );
        // An unknown tier does not bypass the limit.
        assert_eq!(
            gate.check("api", "k")
                .tier("platinum")
                .cost(0)
                .now()
                .unwrap()
                .remaining(),
            Some(0)
        );
    }
}

/// Buckets with different numbers are different buckets.
#[test]
fn a1_buckets_of_different_tiers_are_never_shared() {
    for is_shared in [false, true] {
        let rules = Rules::new(policy("10/hour"))
            .tier("premium", policy("100/hour"))
            .unwrap();
        let gate = gate(if is_shared {
            rules.shared_tiers()
        } else {
            rules
        });
        assert!(gate.check("api", "k").cost(10).now().unwrap().is_allowed());
        for _ in 0..100 {
            assert_eq!(
                gate.check("api", "k")
                    .tier("premium")
                    .cost(0)
                    .now()
                    .unwrap()
                    .remaining(),
                Some(100)
            );
            assert!(gate.check("api", "k").now().unwrap().is_denied());
        }
    }
}

#[test]
fn an_exception_replaces_lifts_or_blocks() {
    let rules = Rules::new(policy("1/hour"))
        .exception("own", Exception::Policy(policy("3/hour")))
        .and_then(|rules| rules.exception("free", Exception::Unlimited))
        .and_then(|rules| rules.exception("bad", Exception::Blocked))
        .and_then(|rules| rules.tenant_exception("acme", "k", Exception::Unlimited))
        .unwrap();
    let gate = gate(rules);
    let admitted = |key: &str| {
        (0..10)
            .filter(|_| gate.check("api", key).now().unwrap().is_allowed())
            .count()
    };
    assert_eq!(["other", "own", "free", "bad"].map(admitted), [1, 3, 10, 0]);
    let blocked = gate.check("api", "bad").now().unwrap();
    assert_eq!((blocked.retry_after(), blocked.remaining()), (None, None));
    assert_eq!(blocked.denial().unwrap().outcome(), PolicyOutcome::Blocked);
    let of_tenant = |tenant| {
        gate.check("api", "k")
            .tenant(tenant)
            .cost(2)
            .now()
            .unwrap()
            .is_allowed()
    };
    assert_eq!(["acme", "", "other"].map(of_tenant), [true, false, false]);
    let counters = &gate.counters()[0];
    assert_eq!((counters.unlimited, counters.blocked), (11, 11));
}

#[test]
fn tenants_and_policies_count_separately() {
    let rules = || Rules::new(policy("1/hour"));
    let gate = Gate::memory(policies(rules()).with("other", rules()).unwrap());
    for (policy, tenant) in [
        ("api", ""),
        ("api", "a"),
        ("api", "b"),
        ("other", ""),
        ("other", "a"),
    ] {
        let check = || {
            gate.check(policy, "k")
                .tenant(tenant)
                .now()
                .unwrap()
                .is_allowed()
        };
        assert_eq!([check(), check()], [true, false], "{policy} {tenant}");
    }
    // A key that looks like a key with a tenant is a different key.
    assert!(gate.check("api", "@a/k").now().unwrap().is_allowed());
}

#[test]
fn a_shadow_policy_counts_but_never_denies() {
    let gate = gate(
        Rules::new(policy("2/hour"))
            .shadow()
            .exception("bad", Exception::Blocked)
            .unwrap(),
    );
    let verdicts: Vec<Verdict> = (0..5)
        .map(|_| gate.check("api", "k").now().unwrap())
        .collect();
    assert!(verdicts.iter().all(Verdict::is_allowed));
    let would_deny: Vec<bool> = verdicts
        .iter()
        .map(|verdict| verdict.decisions()[0].would_deny())
        .collect();
    assert_eq!(would_deny, [false, false, true, true, true]);
    assert!(gate.check("api", "bad").now().unwrap().is_allowed());
    let counters = &gate.counters()[0];
    assert_eq!(
        (counters.allowed, counters.shadow_denied, counters.denied),
        (2, 4, 0)
    );
}

#[test]
fn a_candidate_is_counted_beside_the_enforced_policy() {
    let gate = gate(Rules::new(policy("3/hour")).candidate(policy("5/hour")));
    let verdicts: Vec<Verdict> = (0..8)
        .map(|_| gate.check("api", "k").now().unwrap())
        .collect();
    let count_by = |predicate: fn(&Verdict) -> bool| {
        verdicts.iter().filter(|verdict| predicate(verdict)).count()
    };
    assert_eq!(count_by(Verdict::is_allowed), 3);
    // The candidate counts denied requests too.
    assert_eq!(
        count_by(|verdict| verdict.decisions()[0].candidate().unwrap().is_allowed()),
        5
    );
    let counters = &gate.counters()[0];
    assert_eq!(
        (counters.candidate_allowed, counters.candidate_denied),
        (5, 3)
    );
}

#[test]
fn a_request_charges_all_keys_or_none() {
    let all = PolicySet::new()
        .with("user", Rules::new(policy("5/hour")))
        .and_then(|policies| {
            policies.with(
                "address",
                Rules::new(policy("fixed_window 3/hour anchor=first_hit")),
            )
        })
        .unwrap();
    let gate = Gate::memory(all);
    let check = |user: &str, address: &str, units| {
        let subjects = [
            Subject {
                cost: cost(units),
                ..Subject::new("user", user)
            },
            Subject {
                cost: cost(units),
                ..Subject::new("address", address)
            },
        ];
        decide(&gate, &subjects)
    };
    assert_eq!(check("u", "a", 2).remaining(), Some(1));
    let denied = check("u", "a", 2);
    assert!(denied.is_denied());
    assert_eq!(denied.denial().unwrap().label().name().as_str(), "address");
    // Nothing was taken from the user, and the verdict shows it.
    assert_eq!(denied.decisions()[0].decision().unwrap().remaining(), 3);
    assert_eq!(check("u", "b", 3).remaining(), Some(0));
    // Both deny. The verdict reports the one that denies for longer.
    let both = check("u", "b", 1);
    assert_eq!(both.denial().unwrap().label().name().as_str(), "address");
    assert_eq!(both.denials().count(), 2);
    // The cost exceeds the capacity of one policy, so a retry can never succeed.
    assert_eq!(check("v", "c", 4).retry_after(), None);
    assert_eq!(check("v", "c", 0).remaining(), Some(3));
    // A key that is listed twice is limited by the summed cost.
    let one = Subject {
        cost: cost(2),
        ..Subject::new("address", "d")
    };
    let twice = [one.clone(), one];
    assert!(decide(&gate, &twice).is_denied());
    assert_eq!(
        gate.check("address", "d")
            .cost(0)
            .now()
            .unwrap()
            .remaining(),
        Some(3)
    );
}

#[test]
fn concurrent_requests_admit_exactly_the_limit() {
    let all = PolicySet::new()
        .with("user", Rules::new(policy("gcra 1000/365 days")))
        .and_then(|policies| {
            policies.with(
                "address",
                Rules::new(policy("sliding_window_log 700/365 days")),
            )
        })
        .unwrap();
    let gate = Gate::memory(all);
    let admitted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..500 {
                    // The order varies, and there is no deadlock.
                    let mut subjects = [Subject::new("user", "u"), Subject::new("address", "a")];
                    if fastrand::bool() {
                        subjects.reverse();
                    }
                    admitted.fetch_add(
                        usize::from(decide(&gate, &subjects).is_allowed()),
                        Ordering::Relaxed,
                    );
                }
            });
        }
    });
    assert_eq!(admitted.load(Ordering::Relaxed), 700);
    assert_eq!(
        gate.check("user", "u").cost(0).now().unwrap().remaining(),
        Some(300)
    );
}

#[test]
fn a_receipt_refunds_once_and_at_most_its_cost() {
    let gate = gate(Rules::new(policy("100/hour")).candidate(policy("200/hour")));
    let take = |units| {
        let subject = Subject {
            cost: cost(units),
            ..Subject::new("api", "k")
        };
        gate.admit(&[subject]).into_ready().unwrap().unwrap()
    };
    let left = || {
        let verdict = gate.check("api", "k").cost(0).now().unwrap();
        (
            verdict.remaining().unwrap(),
            verdict.decisions()[0].candidate().unwrap().remaining(),
        )
    };
    let (_, receipt) = take(40);
    assert_eq!(left(), (60, 160));
    receipt.settle(cost(15));
    assert_eq!(left(), (85, 185));
    take(85).1.give_back();
    assert_eq!(left(), (85, 185));
    // The request cost more than was taken.
    take(5).1.settle(cost(35));
    assert_eq!(left(), (50, 150));
    // The charge exceeds the remaining capacity. All of it is taken, and the shortfall is counted.
    take(5).1.settle(cost(100));
    assert_eq!(left(), (0, 50));
    assert_eq!(gate.counters()[0].unsettled, 1);
    // The denied request took nothing, but its candidate did.
    let (verdict, receipt) = take(1);
    assert!(verdict.is_denied());
    receipt.give_back();
    assert_eq!(left(), (0, 50));
}

#[test]
fn replacing_policies_keeps_the_counts() {
    let rules = |limit: u64| Rules::new(policy(&format!("sliding_window_log {limit}/hour")));
    let gate = gate(
        rules(10)
            .tier("gold", policy("sliding_window_log 20/hour"))
            .unwrap(),
    );
    gate.require("api").unwrap();
    assert!(matches!(
        gate.require("nope"),
        Err(CheckError::UnknownPolicy { .. })
    ));
    let _ = gate.check("api", "k").cost(4).now().unwrap();
    gate.replace_policies(policies(rules(100))).unwrap();
    assert_eq!(
        gate.check("api", "k")
            .tier("gold")
            .cost(0)
            .now()
            .unwrap()
            .remaining(),
        Some(96)
    );
    // The replacement fails and changes nothing, because a policy in use is missing.
    let other = PolicySet::new()
        .with("other", Rules::new(policy("1/hour")))
        .unwrap();
    let error = gate.replace_policies(other).unwrap_err();
    assert!(
        matches!(&error, PolicySetError::PolicyInUse(name) if name.as_str() == "api"),
        "{error}"
    );
    assert_eq!(
        gate.check("api", "k").cost(0).now().unwrap().remaining(),
        Some(96)
    );
    assert_eq!(gate.counters()[0].allowed, 1);
}

#[test]
fn policies_can_be_replaced_under_load() {
    let rules = |limit: u64| Rules::new(policy(&format!("sliding_window_log {limit}/365 days")));
    let gate = gate(rules(1_000));
    let (is_over, admitted) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let verdict = gate.check("api", "k").now().unwrap();
                    admitted.fetch_add(usize::from(verdict.is_allowed()), Ordering::Relaxed);
                }
            });
        }
        for round in 0..200 {
            gate.replace_policies(policies(rules(1_000 + round % 2)))
                .unwrap();
        }
        gate.replace_policies(policies(rules(1_001))).unwrap();
        while gate.check("api", "k").cost(0).now().unwrap().remaining() > Some(0) {
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(admitted.load(Ordering::Relaxed), 1_001);
}

#[test]
fn invalid_input_fails_and_takes_nothing() {
    let gate = gate(Rules::new(policy("5/hour")));
    let error = gate.check("nope\r\n", "k").now().unwrap_err().to_string();
    assert_eq!(error, "unknown policy `nope`: expected one of api");
    assert!(matches!(
        gate.check("api", "").now(),
        Err(CheckError::EmptyKey(_))
    ));
    assert!(matches!(
        gate.check("api", "").tenant("acme").now(),
        Err(CheckError::EmptyKey(_))
    ));
    assert!(matches!(
        gate.check("api", "k").cost(-1).now(),
        Err(CheckError::Cost(_))
    ));
    let half = gate
        .admit(&[Subject::new("api", "k"), Subject::new("nope", "k")])
        .into_ready()
        .unwrap();
    assert!(half.is_err());
    assert_eq!(
        gate.check("api", "k").cost(0).now().unwrap().remaining(),
        Some(5)
    );
}

#[test]
fn near_limit_is_counted_and_the_store_clock_is_used() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(100)
        .clock(clock.clone())
        .build()
        .unwrap();
    let gate = Gate::new(
        store,
        policies(Rules::new(policy("fixed_window 10/minute"))),
    );
    for _ in 0..12 {
        let _ = gate.check("api", "k").now().unwrap();
    }
    let counters = &gate.counters()[0];
    // Requests that leave one or none of ten are near the limit.
    assert_eq!(
        (counters.allowed, counters.near_limit, counters.denied),
        (10, 2, 2)
    );
    clock.advance(Duration::from_secs(60));
    assert!(gate.check("api", "k").now().unwrap().is_allowed());
}

/// A concurrent refund of one key does not bypass the limit of the other.
#[test]
fn a_concurrent_refund_does_not_undo_an_admission() {
    let all = PolicySet::new()
        .with(
            "a",
            Rules::new(policy("fixed_window 1/365 days anchor=first_hit")),
        )
        .and_then(|policies| {
            policies.with(
                "b",
                Rules::new(policy("sliding_window_log 1000000/365 days")),
            )
        })
        .unwrap();
    let gate = Gate::memory(all);
    let is_over = AtomicBool::new(false);
    let admitted = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                gate.admit(&[Subject::new("a", "k")])
                    .into_ready()
                    .unwrap()
                    .unwrap()
                    .1
                    .give_back();
            }
        });
        let admitted = (0..100_000)
            .filter(|_| {
                let together = [Subject::new("a", "k"), Subject::new("b", "k")];
                let (verdict, receipt) = gate.admit(&together).into_ready().unwrap().unwrap();
                drop(receipt);
                if verdict.is_allowed() {
                    gate.refund("a", "k", 1).now().unwrap().unwrap();
                }
                verdict.is_allowed()
            })
            .count();
        is_over.store(true, Ordering::Relaxed);
        admitted
    });
    let left = gate
        .check("b", "k")
        .cost(0)
        .now()
        .unwrap()
        .remaining()
        .unwrap();
    assert_eq!(1_000_000 - left, admitted as u64);
}

/// The short limit refunds nothing once its window is over. The long limit does not change that.
#[test]
fn a3_each_limit_refunds_only_costs_that_it_still_counts() {
    let clock = ManualClock::new();
    clock.set(tidegate_core::Timestamp::from_micros(1_700_000_040_000_000).unwrap());
    let store = MemoryStore::builder()
        .max_keys(100)
        .clock(clock.clone())
        .build()
        .unwrap();
    let gate = Gate::new(
        store,
        policies(Rules::new(policy(
            "fixed_window 10/second; fixed_window 1000/day",
        ))),
    );
    let take = || {
        gate.admit(&[Subject::new("api", "k")])
            .into_ready()
            .unwrap()
            .unwrap()
    };
    let mut held = Vec::new();
    for _ in 0..10 {
        held.extend((0..10).map(|_| take().1));
        clock.advance(Duration::from_secs(1));
    }
    let (mut kept, mut held) = (0, held.into_iter());
    for _ in 0..1_000 {
        kept += u32::from(take().0.is_allowed());
        if let Some(receipt) = held.next() {
            receipt.give_back();
        }
    }
    assert_eq!(kept, 10);
    clock.advance(Duration::from_secs(1));
    // The daily limit has everything back except the ten units that were kept.
    let figures = gate.check("api", "k").cost(0).now().unwrap();
    assert_eq!(figures.remaining(), Some(10));
    let day = gate.updated(policies(Rules::new(policy(
        "fixed_window 1000/second; fixed_window 1000/day",
    ))));
    assert_eq!(
        day.check("api", "k").cost(0).now().unwrap().remaining(),
        Some(990)
    );
}

#[test]
fn a5_a_repeated_subject_counts_as_one_request_of_the_summed_cost() {
    let gate = gate(Rules::new(policy("fixed_window 5/hour")));
    let twice = |one: u64, other: u64| {
        let [mut first, mut second] = [Subject::new("api", "k"), Subject::new("api", "k")];
        (first.cost, second.cost) = (cost(one), cost(other));
        decide(&gate, &[first, second])
    };
    let denied = twice(3, 3);
    assert_eq!((denied.is_denied(), denied.retry_after()), (true, None));
    assert_eq!(twice(2, 2).remaining(), Some(1));
    assert!(twice(1, 1).is_denied());
    assert_eq!(twice(1, 0).remaining(), Some(0));
}

#[test]
fn a5_too_many_policies_in_one_request_are_rejected() {
    let gate = gate(Rules::new(policy("fixed_window 5/hour")));
    let keys: Vec<String> = (0..33).map(|key| key.to_string()).collect();
    let subjects: Vec<Subject<'_>> = keys.iter().map(|key| Subject::new("api", key)).collect();
    assert!(decide(&gate, &subjects[..32]).is_allowed());
    let error = gate.admit(&subjects).into_ready().unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "33 policies in one request: expected at most 32"
    );
    assert_eq!(
        gate.check("api", "32").cost(0).now().unwrap().remaining(),
        Some(5)
    );
}

/// One request needs both keys, and two requests need one key each. In any order, either the first
/// gets both or the others get theirs.
#[test]
fn a5_concurrent_requests_are_serializable() {
    const ROUNDS: usize = 20_000;
    let rules = || Rules::new(policy("fixed_window 1/365 days"));
    let gate = Gate::memory(
        PolicySet::new()
            .with("a", rules())
            .and_then(|policies| policies.with("b", rules()))
            .unwrap(),
    );
    let (start, end) = (std::sync::Barrier::new(3), std::sync::Barrier::new(3));
    let requests: [&[&str]; 3] = [&["a", "b"], &["a"], &["b"]];
    let outcomes: Vec<[AtomicBool; 3]> = (0..ROUNDS).map(|_| Default::default()).collect();
    std::thread::scope(|scope| {
        for (number, policies) in requests.into_iter().enumerate() {
            let (gate, start, end, outcomes) = (&gate, &start, &end, &outcomes);
            scope.spawn(move || {
                for (round, outcome) in outcomes.iter().enumerate() {
                    let key = round.to_string();
                    let subjects: Vec<Subject<'_>> = policies
                        .iter()
                        .map(|policy| Subject::new(policy, &key))
                        .collect();
                    start.wait();
                    let verdict = gate.decide(&subjects).into_ready().unwrap().unwrap();
                    outcome[number].store(verdict.is_allowed(), Ordering::Relaxed);
                    end.wait();
                }
            });
        }
    });
    for outcome in outcomes {
        let outcome = outcome.map(AtomicBool::into_inner);
        assert!(
            [[true, false, false], [false, true, true]].contains(&outcome),
            "{outcome:?}"
        );
    }
}

/// A refund after the window is over belongs to that window, not to the current one.
#[test]
fn a_receipt_refunds_only_costs_that_still_count() {
    for text in [
        "fixed_window 5/minute",
        "sliding_window_log 5/minute",
        "5/minute",
        "fixed_window 5/minute anchor=first_hit",
    ] {
        let clock = ManualClock::new();
        clock.set(tidegate_core::Timestamp::from_micros(1_700_000_040_000_000).unwrap());
        let store = MemoryStore::builder()
            .max_keys(100)
            .clock(clock.clone())
            .build()
            .unwrap();
        let gate = Gate::new(store, policies(Rules::new(policy(text))));
        let take = || {
            gate.admit(&[Subject::new("api", "k")])
                .into_ready()
                .unwrap()
                .unwrap()
        };
        let held: Vec<_> = (0..5).map(|_| take().1).collect();
        clock.advance(Duration::from_secs(60));
        assert!((0..5).all(|_| take().0.is_allowed()), "{text}");
        held.into_iter().for_each(tidegate_core::Receipt::give_back);
        assert!(take().0.is_denied(), "{text}");
    }
}

#[test]
fn a_higher_actual_cost_is_charged_up_to_the_limit() {
    let gate = gate(Rules::new(policy("fixed_window 100/365 days")));
    let (_, receipt) = gate
        .admit(&[Subject::new("api", "k")])
        .into_ready()
        .unwrap()
        .unwrap();
    receipt.settle(cost(1_000));
    assert_eq!(
        gate.check("api", "k").cost(0).now().unwrap().remaining(),
        Some(0)
    );
    assert_eq!(gate.counters()[0].unsettled, 1);
}

#[test]
fn a_tier_named_candidate_counts_separately() {
    let rules = Rules::new(policy("9/hour"))
        .tier("candidate", policy("4/hour"))
        .unwrap();
    let gate = gate(rules.candidate(policy("9/hour")));
    let admitted = (0..9)
        .filter(|_| {
            gate.check("api", "k")
                .tier("candidate")
                .now()
                .unwrap()
                .is_allowed()
        })
        .count();
    assert_eq!(admitted, 4);
}

#[test]
fn candidate_refunds_are_not_counted() {
    let gate = gate(Rules::new(policy("9/hour")).candidate(policy("9/hour")));
    gate.admit(&[Subject::new("api", "k")])
        .into_ready()
        .unwrap()
        .unwrap()
        .1
        .give_back();
    assert_eq!(gate.counters()[0].refunds, 1);
}

/// Two requests need the same two keys, in either order. One request gets both. They never take one
/// key each.
#[test]
fn one_of_two_conflicting_requests_is_admitted() {
    const ROUNDS: usize = 20_000;
    let rules = || Rules::new(policy("fixed_window 1/365 days"));
    let gate = Gate::memory(
        PolicySet::new()
            .with("a", rules())
            .and_then(|policies| policies.with("b", rules()))
            .unwrap(),
    );
    let (start, end) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    let admitted = [AtomicUsize::new(0), AtomicUsize::new(0)];
    std::thread::scope(|scope| {
        for (number, order) in [["a", "b"], ["b", "a"]].into_iter().enumerate() {
            let (gate, start, end, admitted) = (&gate, &start, &end, &admitted);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let key = format!("{round}");
                    let subjects = order.map(|policy| Subject::new(policy, &key));
                    start.wait();
                    let is_allowed = decide(gate, &subjects).is_allowed();
                    admitted[number].fetch_add(usize::from(is_allowed), Ordering::Relaxed);
                    end.wait();
                }
            });
        }
    });
    let [one, other] = admitted.map(AtomicUsize::into_inner);
    assert_eq!(one + other, ROUNDS, "{one} and {other}");
}

#[test]
fn an_updated_gate_keeps_the_counts() {
    let gate = Gate::memory(policies(policy("fixed_window 3/day").into()));
    assert!(gate.check("api", "k").cost(2).now().unwrap().is_allowed());
    let next = gate.updated(policies(policy("fixed_window 5/day").into()));
    assert_eq!(next.check("api", "k").now().unwrap().remaining(), Some(2));
    // The old gate is unchanged. Both gates use the same store and share counters.
    assert!(gate.check("api", "k").now().unwrap().is_denied());
    let counted: Vec<(u64, u64)> = [&gate, &next]
        .map(|gate| gate.counters()[0].clone())
        .map(|one| (one.allowed, one.denied))
        .into();
    assert_eq!(counted, [(2, 1), (2, 1)]);
    assert!(gate.ensure_policy("api").is_ok() && gate.ensure_policy("missing").is_err());
}

#[test]
fn a_peek_is_not_counted() {
    let gate = Gate::memory(policies(policy("fixed_window 1/day").into()));
    for _ in 0..3 {
        let _ = gate.check("api", "k").cost(0).now().unwrap();
    }
    assert_eq!(gate.counters()[0].allowed, 0);
}

#[test]
fn a_bucket_keeps_its_state_at_any_rate() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let gate = Gate::new(store, PolicySet::new());
    let bucket = |rate, burst| gate.bucket(BucketLimit::new(rate, burst).unwrap());
    let (slow, fast) = (
        bucket(Rate::per_minute(1), 10),
        bucket(Rate::per_second(1), 600),
    );
    assert!(slow.check("k").cost(10).now().unwrap().is_allowed());
    // The bucket is full again in ten minutes at either rate.
    assert_eq!(fast.check("k").cost(0).now().unwrap().remaining(), 0);
    // A smaller bucket denies the request and frees nothing.
    let small = bucket(Rate::per_minute(1), 1);
    assert_eq!(
        small.check("k").now().unwrap().retry_after(),
        Some(Duration::from_secs(600))
    );
    assert!(slow.check("k").now().unwrap().is_denied());
    clock.advance(Duration::from_secs(60));
    let key = Key::new(b"k").unwrap();
    let requests = [&fast, &slow, &fast].map(|limiter| LimiterRequest {
        limiter,
        key,
        cost: Cost::ONE,
    });
    let decisions = Limiter::check_each(&requests).into_ready();
    let allowed: Vec<bool> = decisions
        .unwrap()
        .unwrap()
        .iter()
        .map(|decision| decision.is_allowed())
        .collect();
    assert_eq!(allowed, [true, false, true]);
    // Limits of other types and names are separate.
    assert!(
        gate.limiter("gcra 1/minute burst=10".parse().unwrap())
            .check("k")
            .cost(10)
            .now()
            .unwrap()
            .is_allowed()
    );
}

/// Both tiers would use one counter, so only the larger limit would apply to the sum.
#[test]
fn a5_one_key_in_two_shared_tiers_is_rejected() {
    let rules = || {
        let rules = Rules::new(policy("fixed_window 5/hour"));
        rules.tier("gold", policy("fixed_window 100/hour")).unwrap()
    };
    let subjects = [
        Subject {
            tier: Some("gold"),
            ..Subject::new("api", "k")
        },
        Subject::new("api", "k"),
    ];
    let shared = gate(rules().shared_tiers());
    let error = shared.decide(&subjects).into_ready().unwrap().unwrap_err();
    assert!(
        matches!(&error, CheckError::TwoTiers { policy } if policy == "api"),
        "{error}"
    );
    assert_eq!(
        shared.check("api", "k").cost(0).now().unwrap().remaining(),
        Some(5)
    );
    // Tiers that count separately use two counters.
    let passed = |gate: &Gate| {
        (0..9)
            .filter(|_| decide(gate, &subjects).is_allowed())
            .count()
    };
    assert_eq!(passed(&gate(rules())), 5);
}

/// A request in memory is looked up once, whichever way it is decided.
#[test]
fn an_unknown_tier_is_counted_once() {
    let rules = |limits: &str| Rules::new(limits.parse().unwrap());
    let policies = PolicySet::new()
        .with("one", rules("5/minute; fixed_window 9/hour"))
        .unwrap()
        .with("other", rules("5/minute"))
        .unwrap();
    let gate = Gate::memory(policies);
    let subject = |policy| Subject {
        tier: Some("iron"),
        ..Subject::new(policy, "k")
    };
    let unknown = || {
        gate.counters()
            .iter()
            .map(|one| one.unknown_tiers)
            .sum::<u64>()
    };
    for number in 1..=8 {
        // Allowed at first, on new keys and on stored ones, and denied in the end.
        let subjects = [subject("one"), subject("other")];
        let _ = gate.decide(&subjects).into_ready().unwrap().unwrap();
        assert_eq!(unknown(), 2 * number);
    }
    let before = unknown();
    let check = gate.check("one", "other key").tier("iron").with_limits();
    assert_eq!(check.now().unwrap().decisions()[0].limits().len(), 2);
    assert_eq!(unknown(), before + 1);
}
