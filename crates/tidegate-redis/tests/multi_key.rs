//! One request that several keys must all allow. A server decides it in one call and a cluster in
//! order. Both match the memory store.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::{
    Cost, Decision, FailurePolicy, Gate, ManualClock, MemoryStore, PolicySet, Rules, Store,
    Subject, Timestamp, Verdict,
};
use tidegate_redis::RedisStore;
use tidegate_testkit::Answer;
use tidegate_testkit::redis::{RedisCluster, RedisServer};

const POLICIES: [&str; 6] = [
    "gcra 7/second burst=9",
    "fixed_window 6/second; 20/minute",
    "fixed_window 5/900ms anchor=first_hit",
    "sliding_window_counter 8/second",
    "sliding_window_log 5/second; leaky_bucket 3/second burst=6",
    "sliding_window_log 6/700ms",
];

fn policies() -> PolicySet {
    let mut policies = PolicySet::new();
    for (number, policy) in POLICIES.iter().enumerate() {
        policies = policies
            .with(&format!("p{number}"), Rules::new(policy.parse().unwrap()))
            .unwrap();
    }
    policies
}

fn figures(verdict: &Verdict) -> Vec<Option<Answer>> {
    let answer = |decision: &Decision| {
        assert_eq!(decision.degraded(), None);
        Answer::of(decision, 1_000)
    };
    verdict
        .decisions()
        .iter()
        .map(|decision| decision.decision().map(answer))
        .collect()
}

/// Runs random requests of one to three keys while the clock advances. Asserts that every figure
/// matches the memory store.
fn walk(url: &str, steps: usize) {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_micros(1_700_000_000_123_456).unwrap());
    let builder = RedisStore::builder(&format!("{url}?timeout=5s"));
    let redis = builder
        .manual_time(clock.clone(), Duration::from_secs(3_600))
        .connect_blocking()
        .unwrap();
    let redis = Gate::builder(redis, policies())
        .deny_cache(0)
        .failure_policy(FailurePolicy::Closed)
        .build();
    let memory = MemoryStore::builder()
        .max_keys(10_000)
        .clock(clock.clone())
        .build()
        .unwrap();
    let memory = Gate::new(memory, policies());
    let mut random = fastrand::Rng::with_seed(4);
    let mut denied = 0;
    for step in 0..steps {
        clock.advance(Duration::from_micros(random.u64(..200_000)));
        let mut policies: Vec<usize> = (0..POLICIES.len()).collect();
        random.shuffle(&mut policies);
        let parts: Vec<(String, String, Cost)> = policies
            .into_iter()
            .take(random.usize(1..=3))
            .map(|policy| {
                let thousandths = [0, 1_000, 1_000, 2_500, 9_001][random.usize(..5)];
                let cost = Cost::from_thousandths(thousandths).unwrap();
                (
                    format!("p{policy}"),
                    format!("k{}", random.usize(..3)),
                    cost,
                )
            })
            .collect();
        let subjects: Vec<Subject<'_>> = parts
            .iter()
            .map(|(policy, key, cost)| Subject {
                cost: *cost,
                ..Subject::new(policy, key)
            })
            .collect();
        let expected = memory.decide(&subjects).into_ready().unwrap().unwrap();
        let actual = redis
            .store()
            .block_on(redis.decide(&subjects))
            .unwrap()
            .unwrap();
        assert_eq!(
            figures(&actual),
            figures(&expected),
            "step {step}: {parts:?}"
        );
        denied += usize::from(actual.is_denied());
    }
    assert!(
        denied > steps / 10 && denied < steps * 9 / 10,
        "{denied} of {steps} were denied"
    );
}

#[test]
fn one_server_matches_memory() {
    walk(&RedisServer::start().url(), 5_000);
}

#[test]
fn a_cluster_matches_memory() {
    walk(&RedisCluster::start().url(), 2_000);
}

fn two_limits(failure: FailurePolicy) -> PolicySet {
    let rules = |text: &str| Rules::new(text.parse().unwrap()).failure_policy(failure);
    let policies = PolicySet::new()
        .with("user", rules("gcra 1000/365 days"))
        .unwrap();
    policies
        .with("address", rules("sliding_window_log 300/365 days"))
        .unwrap()
}

/// Asserts that the scarcer limit is used up exactly, and that the other limit is charged the same,
/// in any order.
fn assert_concurrent_requests_admit_the_limit(url: &str) {
    let store = RedisStore::connect_blocking(&format!("{url}?timeout=5s")).unwrap();
    let gate = Gate::new(store, two_limits(FailurePolicy::Closed));
    let admitted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let mut subjects = [Subject::new("user", "u"), Subject::new("address", "a")];
                    if fastrand::bool() {
                        subjects.reverse();
                    }
                    let verdict = gate
                        .store()
                        .block_on(gate.decide(&subjects))
                        .unwrap()
                        .unwrap();
                    assert_eq!(verdict.degraded(), None, "{:?}", gate.store_health());
                    admitted.fetch_add(usize::from(verdict.is_allowed()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.load(Ordering::Relaxed), 300);
    assert_eq!(
        gate.check("user", "u")
            .cost(0)
            .blocking()
            .unwrap()
            .remaining(),
        Some(700)
    );
}

#[test]
fn concurrent_requests_on_a_server_admit_the_limit() {
    assert_concurrent_requests_admit_the_limit(&RedisServer::start().url());
}

#[test]
fn concurrent_requests_on_a_cluster_admit_the_limit() {
    assert_concurrent_requests_admit_the_limit(&RedisCluster::start().url());
}

#[test]
fn a_repeated_key_is_limited_by_the_summed_cost() {
    let redis = RedisServer::start();
    let gate = Gate::new(
        RedisStore::connect_blocking(&redis.url()).unwrap(),
        two_limits(FailurePolicy::Closed),
    );
    let check = |units: u64| {
        let twice = std::array::from_fn::<_, 2, _>(|_| Subject {
            cost: units.try_into().unwrap(),
            ..Subject::new("address", "a")
        });
        gate.store()
            .block_on(gate.decide(&twice))
            .unwrap()
            .unwrap()
            .is_allowed()
    };
    assert_eq!([check(151), check(150), check(1)], [false, true, false]);
}

#[test]
fn flushed_scripts_are_reloaded() {
    let redis = RedisServer::start();
    let gate = Gate::new(
        RedisStore::connect_blocking(&redis.url()).unwrap(),
        two_limits(FailurePolicy::Closed),
    );
    for left in (0..5).rev() {
        redis.command(&["SCRIPT", "FLUSH"]);
        let subjects = [Subject::new("user", "u"), Subject::new("address", "a")];
        let verdict = gate
            .store()
            .block_on(gate.decide(&subjects))
            .unwrap()
            .unwrap();
        assert_eq!(
            (verdict.degraded(), verdict.remaining()),
            (None, Some(295 + left))
        );
    }
}

/// A cached denial does not tell how long the other limits deny.
#[test]
fn c2_a_cached_denial_does_not_hide_a_longer_one() {
    let redis = RedisServer::start();
    let gate = Gate::new(
        RedisStore::connect_blocking(&redis.url()).unwrap(),
        two_limits(FailurePolicy::Closed),
    );
    let check = |address: &str| {
        let subjects = [Subject::new("user", "u"), Subject::new("address", address)];
        gate.store()
            .block_on(gate.decide(&subjects))
            .unwrap()
            .unwrap()
    };
    assert!(
        gate.check("address", "a")
            .cost(300)
            .blocking()
            .unwrap()
            .is_allowed()
    );
    assert_eq!(check("a").denials().count(), 1);
    // The address's denial is cached, but the user's is not yet.
    assert!(
        gate.check("user", "u")
            .cost(1_000)
            .blocking()
            .unwrap()
            .is_allowed()
    );
    assert_eq!(check("a").denials().count(), 2);
    // If every denial is cached, Redis is not called.
    let trips = gate.store_health().unwrap().round_trips;
    assert_eq!(check("a").denials().count(), 2);
    assert_eq!(gate.store_health().unwrap().round_trips, trips);
}

#[test]
fn an_unreadable_key_denies_and_takes_nothing() {
    let redis = RedisServer::start();
    let gate = Gate::new(
        RedisStore::connect_blocking(&redis.url()).unwrap(),
        two_limits(FailurePolicy::Open),
    );
    redis.command(&["HSET", "tg:user:gc/1000/365d:{bad}", "field", "value"]);
    let subjects = [Subject::new("address", "a"), Subject::new("user", "bad")];
    let verdict = gate
        .store()
        .block_on(gate.decide(&subjects))
        .unwrap()
        .unwrap();
    assert!(verdict.is_denied() && verdict.degraded().is_some());
    assert_eq!(
        gate.check("address", "a")
            .cost(0)
            .blocking()
            .unwrap()
            .remaining(),
        Some(300)
    );
}

#[test]
fn the_failure_policy_decides_while_redis_is_down() {
    for (failure, expected) in [
        (FailurePolicy::Open, [true; 3]),
        (FailurePolicy::Closed, [false; 3]),
        (FailurePolicy::local(300), [true, false, false]),
    ] {
        let mut redis = RedisServer::start();
        let gate = Gate::new(
            RedisStore::connect_blocking(&redis.url()).unwrap(),
            two_limits(failure),
        );
        redis.kill();
        let check = || {
            let subjects = [Subject::new("user", "u"), Subject::new("address", "a")];
            let verdict = gate
                .store()
                .block_on(gate.decide(&subjects))
                .unwrap()
                .unwrap();
            assert!(verdict.degraded().is_some());
            verdict.is_allowed()
        };
        assert_eq!([check(), check(), check()], expected, "{failure:?}");
    }
}

/// A denial of the summed cost says nothing about a single cost.
#[test]
fn c2_a_denied_repeated_key_is_not_cached() {
    let redis = RedisServer::start();
    let policies = PolicySet::new()
        .with("p", Rules::new("fixed_window 5/365 days".parse().unwrap()))
        .unwrap();
    let gate = Gate::new(
        RedisStore::connect_blocking(&redis.url()).unwrap(),
        policies,
    );
    let two = Subject {
        cost: 2.try_into().unwrap(),
        ..Subject::new("p", "k")
    };
    let check = |subjects: &[Subject<'_>]| {
        gate.store()
            .block_on(gate.decide(subjects))
            .unwrap()
            .unwrap()
            .is_allowed()
    };
    assert_eq!(
        [
            check(std::slice::from_ref(&two)),
            check(&[two.clone(), two.clone()]),
            check(std::slice::from_ref(&two)),
            check(std::slice::from_ref(&two))
        ],
        [true, false, true, false]
    );
}

/// Tiers share counts. A refund or an admission in one tier invalidates the cached denials of the
/// others.
#[test]
fn c2_shared_tiers_share_the_deny_cache() {
    let redis = RedisServer::start();
    let rules = Rules::new("fixed_window 5/365 days".parse().unwrap());
    let rules = rules
        .tier("gold", "fixed_window 7/365 days".parse().unwrap())
        .unwrap()
        .shared_tiers();
    let policies = PolicySet::new().with("p", rules).unwrap();
    let gate = Gate::new(
        RedisStore::connect_blocking(&redis.url()).unwrap(),
        policies,
    );
    assert!(
        gate.check("p", "k")
            .cost(5)
            .blocking()
            .unwrap()
            .is_allowed()
    );
    assert!(gate.check("p", "k").blocking().unwrap().is_denied());
    let refund = gate.refund("p", "k", 2).tier("gold").blocking();
    assert_eq!(refund.unwrap().unwrap().remaining(), 4);
    assert!(gate.check("p", "k").blocking().unwrap().is_allowed());
}

#[test]
fn a5_a_sum_above_the_largest_cost_is_never_allowed() {
    let redis = RedisServer::start();
    let policies = || {
        PolicySet::new()
            .with(
                "p",
                Rules::new("fixed_window 1_000_000_000/day".parse().unwrap()),
            )
            .unwrap()
    };
    let gate = Gate::new(
        RedisStore::connect_blocking(&redis.url()).unwrap(),
        policies(),
    );
    let twice = std::array::from_fn::<_, 2, _>(|_| Subject {
        cost: Cost::MAX,
        ..Subject::new("p", "k")
    });
    for verdict in [
        gate.store().block_on(gate.decide(&twice)).unwrap().unwrap(),
        Gate::memory(policies())
            .decide(&twice)
            .into_ready()
            .unwrap()
            .unwrap(),
    ] {
        assert!(verdict.is_denied());
        assert_eq!(
            verdict.decisions()[0].decision().unwrap().retry_after(),
            None
        );
    }
}
