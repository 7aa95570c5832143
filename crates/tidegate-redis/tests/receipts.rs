//! Receipts on real servers. A refund goes to the store that took the cost, once, even if the
//! caller is gone.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use common::TIMEOUT;
use tidegate_core::{
    Cost, FailurePolicy, Gate, PolicySet, Receipt, Rules, Store, Subject, Verdict,
};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::{RedisCluster, RedisServer, wait_for};

fn gate(redis: &RedisServer, policy: &str, failure: FailurePolicy) -> Gate<RedisStore> {
    let policies = PolicySet::new()
        .with(
            "api",
            Rules::new(policy.parse().unwrap()).failure_policy(failure),
        )
        .unwrap();
    Gate::builder(
        RedisStore::connect_blocking(&redis.url()).unwrap(),
        policies,
    )
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
        .blocking()
        .unwrap()
        .remaining()
        .unwrap()
}

#[test]
fn receipts_are_refunded_and_settled() {
    let redis = RedisServer::start();
    let gate = gate(&redis, "10/365 days", FailurePolicy::Closed);
    let (verdict, receipt) = admit(&gate);
    assert_eq!((verdict.is_allowed(), left(&gate)), (true, 9));
    receipt.give_back();
    assert!(wait_for(TIMEOUT, || left(&gate) == 10));
    admit(&gate).1.settle(Cost::try_from(4).unwrap());
    assert!(wait_for(TIMEOUT, || left(&gate) == 6));
}

/// A caller that drops the future during the Redis call takes nothing.
#[test]
fn a_cancelled_request_takes_nothing() {
    let redis = RedisServer::start();
    let gate = gate(&redis, "5/365 days", FailurePolicy::Closed);
    for _ in 0..20 {
        let subjects = [Subject::new("api", "k")];
        let request = pin!(gate.admit(&subjects));
        let polled = request.poll(&mut Context::from_waker(Waker::noop()));
        // If this thread was delayed, the reply has already arrived, and the receipt belongs to the
        // caller.
        if let Poll::Ready(Ok((_, receipt))) = polled {
            receipt.give_back();
        }
    }
    // Redis counts each request sooner or later, and each is refunded.
    assert!(wait_for(TIMEOUT, || gate.counters()[0].refunds == 20
        || gate.counters()[0].allowed == gate.counters()[0].refunds));
    assert!(
        wait_for(TIMEOUT, || left(&gate) == 5),
        "{:?}",
        gate.counters()
    );
}

/// Costs that the local fallback took are refunded locally. Costs that Redis took are not.
#[test]
fn a_refund_goes_to_the_store_that_took_the_cost() {
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
    assert!(wait_for(TIMEOUT, || gate.counters()[0].refunds == 1));
    assert!(
        admit(&gate).0.is_denied(),
        "a cost that Redis took was refunded locally"
    );
    local
        .into_iter()
        .take(1)
        .for_each(|(_, receipt)| receipt.give_back());
    assert!(wait_for(TIMEOUT, || admit(&gate).0.is_allowed()));
}

/// While Redis is down, a changed limit keeps the local usage.
#[test]
fn policies_replaced_while_redis_is_down_keep_local_counts() {
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

/// A receipt is stored in the slot of its key, so no call is redirected.
#[test]
fn a3_cluster_receipts_are_read_from_the_owning_node() {
    let mut cluster = RedisCluster::start();
    let policies = PolicySet::new()
        .with("p", Rules::new("fixed_window 5/365 days".parse().unwrap()))
        .unwrap();
    let store = RedisStore::connect_blocking(&format!("{}?timeout=5s", cluster.url())).unwrap();
    let gate = Gate::builder(store, policies).deny_cache(0).build();
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
            .block_on(gate.decide_with_receipt(&subject, &id))
            .unwrap()
            .unwrap();
        assert!(is_kept);
        let subject = Subject {
            cost: Cost::ZERO,
            ..subject
        };
        assert!(
            gate.store()
                .block_on(gate.settle(&subject, &id))
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
