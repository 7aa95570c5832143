//! One request that several keys must all meet: in one call on a server, in order on a cluster, as in memory on both.
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

fn book() -> PolicySet {
    let mut book = PolicySet::new();
    for (number, policy) in POLICIES.iter().enumerate() {
        book = book
            .with(&format!("p{number}"), Rules::new(policy.parse().unwrap()))
            .unwrap();
    }
    book
}

fn figures(verdict: &Verdict) -> Vec<Option<Answer>> {
    let answer = |decision: &Decision| {
        assert_eq!(decision.degraded(), None);
        Answer::of(decision, 1_000)
    };
    verdict
        .decisions()
        .iter()
        .map(|ruling| ruling.decision().map(answer))
        .collect()
}

/// Random requests of one to three keys, at times that stand, go and step back a little: every figure as in memory.
fn walk(url: &str, steps: usize) {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_micros(1_700_000_000_123_456).unwrap());
    let builder = RedisStore::builder(&format!("{url}?timeout=5s"));
    let redis = builder
        .manual_time(clock.clone(), Duration::from_secs(3_600))
        .connect_blocking()
        .unwrap();
    let redis = Gate::builder(redis, book())
        .deny_cache(0)
        .failure_policy(FailurePolicy::Closed)
        .build();
    let memory = MemoryStore::builder()
        .max_keys(10_000)
        .clock(clock.clone())
        .build()
        .unwrap();
    let memory = Gate::new(memory, book());
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
        let found = redis
            .store()
            .block_on(redis.decide(&subjects))
            .unwrap()
            .unwrap();
        assert_eq!(
            figures(&found),
            figures(&expected),
            "step {step}: {parts:?}"
        );
        denied += usize::from(found.is_denied());
    }
    assert!(
        denied > steps / 10 && denied < steps * 9 / 10,
        "{denied} of {steps} were denied"
    );
}

#[test]
fn one_server_answers_as_memory_does() {
    walk(&RedisServer::start().url(), 5_000);
}

#[test]
fn a_cluster_answers_as_memory_does() {
    walk(&RedisCluster::start().url(), 2_000);
}

fn two_limits(failure: FailurePolicy) -> PolicySet {
    let rules = |text: &str| Rules::new(text.parse().unwrap()).failure_policy(failure);
    let book = PolicySet::new()
        .with("user", rules("gcra 1000/365 days"))
        .unwrap();
    book.with("address", rules("sliding_window_log 300/365 days"))
        .unwrap()
}

/// The one that is scarce is used up to the last, and the other by no more, whatever the order.
fn in_parallel(url: &str) {
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
        gate.check("user", "u").cost(0).wait().unwrap().remaining(),
        Some(700)
    );
}

#[test]
fn in_parallel_on_a_server() {
    in_parallel(&RedisServer::start().url());
}

#[test]
fn in_parallel_on_a_cluster() {
    in_parallel(&RedisCluster::start().url());
}

#[test]
fn the_same_key_twice_is_held_to_both() {
    let redis = RedisServer::start();
    let gate = Gate::new(
        RedisStore::connect_blocking(&redis.url()).unwrap(),
        two_limits(FailurePolicy::Closed),
    );
    let ask = |units: u64| {
        let twice = [Subject {
            cost: units.try_into().unwrap(),
            ..Subject::new("address", "a")
        }; 2];
        gate.store()
            .block_on(gate.decide(&twice))
            .unwrap()
            .unwrap()
            .is_allowed()
    };
    assert_eq!([ask(151), ask(150), ask(1)], [false, true, false]);
}

#[test]
fn scripts_that_are_flushed_are_brought_again() {
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

/// A denial that is remembered says nothing of how long the others deny.
#[test]
fn c2_a_remembered_denial_does_not_hide_a_longer_one() {
    let redis = RedisServer::start();
    let gate = Gate::new(
        RedisStore::connect_blocking(&redis.url()).unwrap(),
        two_limits(FailurePolicy::Closed),
    );
    let ask = |address: &str| {
        let subjects = [Subject::new("user", "u"), Subject::new("address", address)];
        gate.store()
            .block_on(gate.decide(&subjects))
            .unwrap()
            .unwrap()
    };
    assert!(
        gate.check("address", "a")
            .cost(300)
            .wait()
            .unwrap()
            .is_allowed()
    );
    assert_eq!(ask("a").denials().count(), 1);
    // The user's denial is not known yet, and the address' is.
    assert!(
        gate.check("user", "u")
            .cost(1_000)
            .wait()
            .unwrap()
            .is_allowed()
    );
    assert_eq!(ask("a").denials().count(), 2);
    // Where every denial is remembered, Redis is not asked.
    let trips = gate.store_health().unwrap().trips;
    assert_eq!(ask("a").denials().count(), 2);
    assert_eq!(gate.store_health().unwrap().trips, trips);
}

#[test]
fn something_of_another_kind_under_one_of_the_names_denies_and_takes_nothing() {
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
            .wait()
            .unwrap()
            .remaining(),
        Some(300)
    );
}

#[test]
fn when_redis_is_gone_each_policy_says_what_is_done() {
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
        let ask = || {
            let subjects = [Subject::new("user", "u"), Subject::new("address", "a")];
            let verdict = gate
                .store()
                .block_on(gate.decide(&subjects))
                .unwrap()
                .unwrap();
            assert!(verdict.degraded().is_some());
            verdict.is_allowed()
        };
        assert_eq!([ask(), ask(), ask()], expected, "{failure:?}");
    }
}

/// A denial of the summed cost says nothing of one of them alone.
#[test]
fn c2_a_repeated_key_teaches_the_deny_cache_nothing() {
    let redis = RedisServer::start();
    let book = PolicySet::new()
        .with("p", Rules::new("fixed_window 5/365 days".parse().unwrap()))
        .unwrap();
    let gate = Gate::new(RedisStore::connect_blocking(&redis.url()).unwrap(), book);
    let two = Subject {
        cost: 2.try_into().unwrap(),
        ..Subject::new("p", "k")
    };
    let ask = |subjects: &[Subject<'_>]| {
        gate.store()
            .block_on(gate.decide(subjects))
            .unwrap()
            .unwrap()
            .is_allowed()
    };
    assert_eq!(
        [ask(&[two]), ask(&[two, two]), ask(&[two]), ask(&[two])],
        [true, false, true, false]
    );
}

/// Tiers that share counts: what one of them gives back or admits ends what another one remembers.
#[test]
fn c2_tiers_that_share_counts_share_what_is_remembered() {
    let redis = RedisServer::start();
    let rules = Rules::new("fixed_window 5/365 days".parse().unwrap());
    let rules = rules
        .tier("gold", "fixed_window 7/365 days".parse().unwrap())
        .unwrap()
        .shared_tiers();
    let book = PolicySet::new().with("p", rules).unwrap();
    let gate = Gate::new(RedisStore::connect_blocking(&redis.url()).unwrap(), book);
    assert!(gate.check("p", "k").cost(5).wait().unwrap().is_allowed());
    assert!(gate.check("p", "k").wait().unwrap().is_denied());
    let gold = Subject {
        tier: Some("gold"),
        cost: 2.try_into().unwrap(),
        ..Subject::new("p", "k")
    };
    gate.store().block_on(gate.refund(gold)).unwrap().unwrap();
    assert!(gate.check("p", "k").wait().unwrap().is_allowed());
}

#[test]
fn a5_a_sum_above_the_largest_cost_is_never_allowed() {
    let redis = RedisServer::start();
    let book = || {
        PolicySet::new()
            .with(
                "p",
                Rules::new("fixed_window 1_000_000_000/day".parse().unwrap()),
            )
            .unwrap()
    };
    let gate = Gate::new(RedisStore::connect_blocking(&redis.url()).unwrap(), book());
    let twice = [Subject {
        cost: Cost::MAX,
        ..Subject::new("p", "k")
    }; 2];
    for verdict in [
        gate.store().block_on(gate.decide(&twice)).unwrap().unwrap(),
        Gate::memory(book())
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
