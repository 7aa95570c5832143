//! The laws of a decision, checked by trial and against a naive reference. The requests are random
//! and cover every algorithm.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use fastrand::Rng;
use tidegate_core::{
    Algorithm, Cost, Decision, Limit, Limiter, ManualClock, MemoryStore, Outcome, Policy, Record,
    Timestamp,
};
use tidegate_testkit::{
    Act, Answer,
    reference::Reference,
    walk::{self, Walk},
};

const STEPS: usize = 100_000;
const STEPS_PER_WALK: usize = 100;

/// Runs random walks of policies from `draw`. `on_step` sees the record after each step.
fn walks(
    seed: u64,
    steps_back: bool,
    mut draw: impl FnMut(&mut Rng) -> Policy,
    mut on_step: impl FnMut(&Policy, &Record, u64, Act, Decision),
) {
    let mut random = Rng::with_seed(seed);
    for _ in 0..STEPS / STEPS_PER_WALK {
        let policy = draw(&mut random);
        let mut walk = Walk::new(&mut random, &policy);
        walk.steps_back = steps_back;
        let (mut record, mut reference) = (Record::default(), Reference::new(&policy));
        let (limiter, clock) = memory(&policy);
        for _ in 0..STEPS_PER_WALK {
            let (at_ns, act) = walk.next_step();
            let peeked = peek(&policy, &record, &limiter, &clock, at_ns, act);
            let decision = step(&policy, &mut record, at_ns, act);
            assert!(
                peeked.is_none_or(|peeked| peeked == decision),
                "{policy}: {act:?} at {at_ns}: {peeked:?}, {decision:?}"
            );
            let expected = reference.act(at_ns, "k", act);
            assert_eq!(
                Answer::of(&decision, 1),
                expected,
                "{policy}: {act:?} at {at_ns}"
            );
            clock.set(Timestamp::from_nanos(at_ns));
            let in_memory = match act {
                Act::Check(cost) => limiter.check("k").cost(cost).now().unwrap(),
                Act::Refund(cost) => limiter.refund("k", cost).now().unwrap().into(),
                Act::Charge(cost) => limiter.charge("k", cost).now().unwrap().into(),
                Act::Admit(..) | Act::Settle(..) => panic!("walks have no receipts"),
            };
            assert_eq!(in_memory, decision, "{policy}: {act:?} at {at_ns}");
            on_step(&policy, &record, at_ns, act, decision);
            walk.learn(expected);
        }
    }
}

/// Returns the decision of a peek before a check, from both the pure step and the memory store.
fn peek(
    policy: &Policy,
    record: &Record,
    limiter: &Limiter,
    clock: &ManualClock,
    at_ns: u64,
    act: Act,
) -> Option<Decision> {
    let Act::Check(cost) = act else { return None };
    clock.set(Timestamp::from_nanos(at_ns));
    let in_memory = limiter.peek("k").cost(cost).now().unwrap();
    let peeked = policy.peek(&mut record.clone(), Timestamp::from_nanos(at_ns), cost);
    assert_eq!(in_memory, peeked, "{policy}: {act:?} at {at_ns}");
    Some(peeked)
}

fn memory(policy: &Policy) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(10)
        .clock(clock.clone())
        .build()
        .unwrap();
    (Limiter::new(store, policy.clone()), clock)
}

fn step(policy: &Policy, record: &mut Record, at_ns: u64, act: Act) -> Decision {
    match act {
        Act::Check(cost) => policy.decide(record, Timestamp::from_nanos(at_ns), cost),
        Act::Refund(cost) => policy.refund(record, Timestamp::from_nanos(at_ns), cost),
        Act::Charge(cost) => {
            policy
                .charge(record, Timestamp::from_nanos(at_ns), cost)
                .decision
        }
        Act::Admit(..) | Act::Settle(..) => panic!("walks have no receipts"),
    }
}

/// Returns whether a request passes after a wait in which nothing else happens.
fn would_pass(policy: &Policy, record: &Record, at_ns: u64, wait: Duration, cost: Cost) -> bool {
    let at = Timestamp::from_nanos(at_ns).saturating_add(wait);
    policy.decide(&mut record.clone(), at, cost).is_allowed()
}

const TICK: Duration = Duration::from_nanos(1);

fn assert_laws_hold(policy: &Policy, record: &Record, at_ns: u64, act: Act, decision: Decision) {
    let context = || format!("{policy}: {act:?} at {at_ns}: {decision:?}");
    let cost = match act {
        Act::Check(cost) => cost,
        Act::Refund(_) | Act::Charge(_) | Act::Admit(..) | Act::Settle(..) => Cost::ZERO,
    };
    if let Outcome::Denied { retry_after } = decision.outcome() {
        assert!(
            would_pass(policy, record, at_ns, retry_after, cost),
            "{}",
            context()
        );
        assert!(
            !would_pass(policy, record, at_ns, retry_after - TICK, cost),
            "{}",
            context()
        );
    }
    if let [limit] = policy.limits() {
        assert_exactly_remaining_pass(policy, record, at_ns, decision.remaining(), &context);
        let whole = Cost::try_from(limit.capacity()).unwrap();
        assert!(
            would_pass(policy, record, at_ns, decision.reset_after(), whole),
            "{}",
            context()
        );
        if decision.reset_after() > Duration::ZERO {
            assert!(
                !would_pass(policy, record, at_ns, decision.reset_after() - TICK, whole),
                "{}",
                context()
            );
        }
    } else if decision.is_allowed() {
        assert_exactly_remaining_pass(policy, record, at_ns, decision.remaining(), &context);
    }
}

/// Asserts that exactly `remaining` units pass. Few units are spent one by one, more in one request
/// of the same total cost.
fn assert_exactly_remaining_pass(
    policy: &Policy,
    record: &Record,
    at_ns: u64,
    remaining: u64,
    context: &dyn Fn() -> String,
) {
    let (mut record, now) = (record.clone(), Timestamp::from_nanos(at_ns));
    let (singles, at_once) = if remaining <= 30 {
        (remaining, 0)
    } else {
        (1, remaining - 1)
    };
    assert!(
        policy
            .decide(&mut record, now, Cost::try_from(at_once).unwrap())
            .is_allowed()
            || at_once == 0,
        "{}",
        context()
    );
    for _ in 0..singles {
        assert!(
            policy.decide(&mut record, now, Cost::ONE).is_allowed(),
            "{}",
            context()
        );
    }
    assert!(
        policy.decide(&mut record, now, Cost::ONE).is_denied(),
        "{}",
        context()
    );
}

fn one_limit(algorithm: Algorithm) -> impl FnMut(&mut Rng) -> Policy {
    move |random| Policy::new([walk::limit(random, algorithm)]).unwrap()
}

#[test]
fn fixed_window_obeys_the_laws() {
    walks(
        1,
        false,
        one_limit(Algorithm::FixedWindow),
        assert_laws_hold,
    );
}

#[test]
fn sliding_window_log_obeys_the_laws() {
    walks(
        2,
        false,
        one_limit(Algorithm::SlidingWindowLog),
        assert_laws_hold,
    );
}

#[test]
fn sliding_window_counter_obeys_the_laws() {
    walks(
        3,
        false,
        one_limit(Algorithm::SlidingWindowCounter),
        assert_laws_hold,
    );
}

#[test]
fn token_bucket_obeys_the_laws() {
    walks(
        4,
        false,
        one_limit(Algorithm::TokenBucket),
        assert_laws_hold,
    );
}

#[test]
fn leaky_bucket_obeys_the_laws() {
    walks(
        5,
        false,
        one_limit(Algorithm::LeakyBucket),
        assert_laws_hold,
    );
}

#[test]
fn gcra_obeys_the_laws() {
    walks(6, false, one_limit(Algorithm::Gcra), assert_laws_hold);
}

fn several(random: &mut Rng) -> Policy {
    let limits: Vec<Limit> = (0..random.usize(2..5))
        .map(|_| walk::limit(random, Algorithm::ALL[random.clone().usize(0..6)]))
        .collect();
    Policy::new(limits).unwrap()
}

#[test]
fn several_limits_obey_the_laws() {
    walks(7, false, several, assert_laws_hold);
}

#[test]
fn the_laws_hold_if_the_clock_steps_back() {
    for (seed, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        walks(
            10 + seed as u64,
            true,
            one_limit(algorithm),
            assert_laws_hold,
        );
    }
    walks(20, true, several, assert_laws_hold);
}
