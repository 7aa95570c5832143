//! What is given back, on real servers: to whom it was taken from, once, also when they are gone meanwhile.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use common::PATIENCE;
use tidegate_core::{FailurePolicy, Gate, PolicySet, Receipt, Rules, Store, Subject, Verdict};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::{RedisCluster, RedisServer, wait_for};

fn gate(redis: &RedisServer, policy: &str, failure: FailurePolicy) -> Gate<RedisStore> {
    let book = PolicySet::new()
        .with(
            "api",
            Rules::new(policy.parse().unwrap()).failure_policy(failure),
        )
        .unwrap();
    Gate::builder(RedisStore::connect_blocking(&redis.url()).unwrap(), book)
        .deny_cache(0)
        .build()
}

fn admit(gate: &Gate<RedisStore>) -> (Verdict, Receipt<RedisStore>) {
    gate.store()
        .block_on(gate.admit(&[Subject::new("api", "k")]))
        .unwrap()
        .unwrap()
}

fn left(gate: &Gate<RedisStore>) -> u64 {
    gate.check("api", "k")
        .cost(0)
        .wait()
        .unwrap()
        .remaining()
        .unwrap()
}

#[test]
fn given_back_and_settled() {
    let redis = RedisServer::start();
    let gate = gate(&redis, "10/365 days", FailurePolicy::Closed);
    let (verdict, receipt) = admit(&gate);
    assert_eq!((verdict.is_allowed(), left(&gate)), (true, 9));
    receipt.give_back();
    assert!(wait_for(PATIENCE, || left(&gate) == 10));
    admit(&gate).1.settle(4.try_into().unwrap());
    assert!(wait_for(PATIENCE, || left(&gate) == 6));
}

/// Who goes away while Redis is being asked has taken nothing.
#[test]
fn who_does_not_wait_for_the_answer_takes_nothing() {
    let redis = RedisServer::start();
    let gate = gate(&redis, "5/365 days", FailurePolicy::Closed);
    for _ in 0..20 {
        let subjects = [Subject::new("api", "k")];
        let asked = pin!(gate.admit(&subjects));
        let answered = asked.poll(&mut Context::from_waker(Waker::noop()));
        // Where this thread was held up meanwhile, the answer is there already, and is theirs who asked.
        if let Poll::Ready(Ok((_, receipt))) = answered {
            receipt.give_back();
        }
    }
    // Each was counted by Redis, or will be, and given back.
    assert!(wait_for(PATIENCE, || gate.counters()[0].refunds == 20
        || gate.counters()[0].allowed == gate.counters()[0].refunds));
    assert!(
        wait_for(PATIENCE, || left(&gate) == 5),
        "{:?}",
        gate.counters()
    );
}

/// What this process took in Redis' place is given back here, and what Redis took is not.
#[test]
fn to_whom_it_was_taken_from() {
    let mut redis = RedisServer::start();
    let gate = gate(&redis, "2/365 days", FailurePolicy::local(1));
    let (verdict, of_redis) = admit(&gate);
    assert_eq!(verdict.degraded(), None);
    redis.kill();
    let local: Vec<_> = (0..3).map(|_| admit(&gate)).collect();
    assert_eq!(
        local
            .iter()
            .filter(|(verdict, _)| verdict.is_allowed())
            .count(),
        2
    );
    of_redis.give_back();
    assert!(wait_for(PATIENCE, || gate.counters()[0].refunds == 1));
    assert!(
        admit(&gate).0.is_denied(),
        "what Redis took is not free here"
    );
    local
        .into_iter()
        .take(1)
        .for_each(|(_, receipt)| receipt.give_back());
    assert!(wait_for(PATIENCE, || admit(&gate).0.is_allowed()));
}

/// While Redis is gone a changed limit keeps what was used here.
#[test]
fn a_book_that_is_exchanged_while_redis_is_gone_keeps_what_was_used() {
    let mut redis = RedisServer::start();
    let gate = gate(
        &redis,
        "sliding_window_log 3/365 days",
        FailurePolicy::local(1),
    );
    redis.kill();
    assert!((0..3).all(|_| admit(&gate).0.is_allowed()));
    let rules = Rules::new("sliding_window_log 4/365 days".parse().unwrap())
        .failure_policy(FailurePolicy::local(1));
    gate.replace_policies(PolicySet::new().with("api", rules).unwrap())
        .unwrap();
    assert_eq!(
        [(); 3].map(|()| admit(&gate).0.is_allowed()),
        [true, false, false]
    );
}

/// Receipts are in the slot of their key: none is sent to another node first.
#[test]
fn a3_receipts_on_a_cluster_are_asked_for_where_they_are() {
    let mut cluster = RedisCluster::start();
    let book = PolicySet::new()
        .with("p", Rules::new("fixed_window 5/365 days".parse().unwrap()))
        .unwrap();
    let store = RedisStore::connect_blocking(&format!("{}?timeout=5s", cluster.url())).unwrap();
    let gate = Gate::builder(store, book).deny_cache(0).build();
    let redirections = |cluster: &mut RedisCluster| -> u64 {
        let infos: Vec<String> = cluster
            .nodes()
            .iter()
            .map(|node| node.info("errorstats"))
            .collect();
        let counts = infos.iter().flat_map(|info| info.lines());
        counts
            .filter_map(|line| {
                line.strip_prefix("errorstat_MOVED:count=")?
                    .trim()
                    .parse::<u64>()
                    .ok()
            })
            .sum()
    };
    let take_and_settle = |number: u32| {
        let (key, id) = (format!("k{number}"), format!("id{number}"));
        let subject = Subject::new("p", &key);
        let (_, is_kept) = gate
            .store()
            .block_on(gate.decide_with_receipt(subject, &id))
            .unwrap()
            .unwrap();
        assert!(is_kept);
        let subject = Subject {
            cost: tidegate_core::Cost::ZERO,
            ..subject
        };
        assert!(
            gate.store()
                .block_on(gate.settle(subject, &id))
                .unwrap()
                .unwrap()
                .is_some()
        );
    };
    take_and_settle(0);
    let before = redirections(&mut cluster);
    (1..100).for_each(take_and_settle);
    assert_eq!(redirections(&mut cluster), before);
}
