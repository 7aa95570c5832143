//! Sentinel and Cluster: the store follows failovers and slot migrations under load.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{TIMEOUT, admitted, closed, left, wait_until_available};
use tidegate_core::{CheckError, Limiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::{RedisCluster, RedisSentinels, wait_for};

#[test]
fn the_store_follows_sentinels_to_the_new_primary() {
    let mut sentinels = RedisSentinels::start();
    let limiter = closed(&sentinels.url(), "gcra 1000/365 days");
    assert_eq!(admitted(&limiter, "k", 100), 100);
    let replicated = || matches!(remaining_units(&limiter), Some(900));
    assert!(wait_for(TIMEOUT, replicated));
    let before = limiter.counters();
    assert_eq!(before.degraded_total(), 0);
    // The failover happens under load. Replication is healthy, so the replica has all acknowledged
    // admissions.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = limiter.check("load").blocking().unwrap();
            }
        });
        sentinels.primary().kill();
        assert!(wait_for(TIMEOUT, || limiter
            .check("k")
            .cost(0)
            .blocking()
            .unwrap()
            .degraded()
            .is_some()));
        wait_until_available(&limiter);
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(left(&limiter, "k"), 900);
    assert_eq!(admitted(&limiter, "k", 1_000), 900);
}

fn remaining_units(limiter: &Limiter<RedisStore>) -> Option<u64> {
    let decision = limiter.check("k").cost(0).blocking().unwrap();
    decision.degraded().is_none().then(|| decision.remaining())
}

#[test]
fn a_stale_sentinel_is_skipped() {
    let mut sentinels = RedisSentinels::start();
    let limiter = closed(&sentinels.url_by_way_of_a_stale_one(), "gcra 5/365 days");
    assert_eq!(admitted(&limiter, "k", 7), 5);
}

#[test]
fn a_planned_failover_is_followed() {
    let sentinels = RedisSentinels::start();
    let limiter = closed(&sentinels.url(), "gcra 5/365 days");
    assert_eq!(admitted(&limiter, "k", 3), 3);
    let is_primary = || {
        // The sentinels close every connection of a server that changes its role.
        let role = sentinels.replica().try_command(&["ROLE"]);
        role.is_some_and(|role| format!("{role:?}").contains("master"))
    };
    sentinels.fail_over();
    assert!(
        wait_for(TIMEOUT, is_primary),
        "the replica was not promoted"
    );
    // The test waits for an admission, which writes. A replica can also return denials.
    let admits = || limiter.check("another").blocking().unwrap().is_allowed();
    assert!(wait_for(TIMEOUT, admits), "{:?}", limiter.counters());
    assert_eq!(admitted(&limiter, "k", 10), 2);
}

const KEYS: usize = 40;
const LIMIT: usize = 50;

fn key(number: usize) -> String {
    format!("user:{number}")
}

fn slot(key: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(key.as_bytes()) % 16_384
}

#[test]
fn slots_migrate_under_load_without_errors() {
    let cluster = RedisCluster::start();
    // The timeout is long enough for a check to follow every redirect.
    let limiter = closed(
        &format!("{}?timeout=5s", cluster.url()),
        "gcra 50/365 days; sliding_window_log 60/365 days",
    );
    let (is_over, requests) = (AtomicBool::new(false), AtomicUsize::new(0));
    let admitted: Vec<AtomicUsize> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (limiter, is_over, requests, admitted) = (&limiter, &is_over, &requests, &admitted);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                while !is_over.load(Ordering::Relaxed) {
                    let number = random.usize(..KEYS);
                    let decision = limiter.check(key(number)).blocking().unwrap();
                    assert_eq!(decision.degraded(), None, "{:?}", limiter.counters());
                    admitted[number]
                        .fetch_add(usize::from(decision.is_allowed()), Ordering::Relaxed);
                    requests.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Each key's slot moves around the cluster once while clients use the key.
        for round in 0..3 {
            for number in 0..KEYS {
                let slot = slot(&key(number));
                let from = cluster.owner(slot);
                cluster.move_slot(slot, from, (from + 1 + round % 2) % 3);
            }
        }
        let enough = requests.load(Ordering::Relaxed) + KEYS * LIMIT * 4;
        assert!(wait_for(TIMEOUT, || requests.load(Ordering::Relaxed) > enough));
        is_over.store(true, Ordering::Relaxed);
    });
    for (number, admitted) in admitted.iter().enumerate() {
        assert_eq!(admitted.load(Ordering::Relaxed), LIMIT, "{}", key(number));
    }
    // A batch finds every owner, too.
    let requests: Vec<(String, u64)> = (0..KEYS).map(|number| (key(number), 0)).collect();
    let decisions = limiter.check_many(&requests).blocking().unwrap();
    assert!(
        decisions
            .iter()
            .all(|decision| decision.remaining() == 0 && decision.degraded().is_none())
    );
}

/// The slot is between its old and its new owner. Requests for migrated keys are redirected, and
/// new keys are created on the new owner.
#[test]
fn a_migrating_slot_is_followed() {
    let cluster = RedisCluster::start();
    let url = format!("{}?timeout=5s", cluster.url());
    let (limiter, log) = (
        closed(&url, "gcra 5/365 days"),
        closed(&url, "sliding_window_log 5/365 days"),
    );
    for limiter in [&limiter, &log] {
        assert_eq!(admitted(limiter, "k", 3), 3);
    }
    let (slot, from) = (slot("k"), cluster.owner(slot("k")));
    cluster.move_keys(slot, from, (from + 1) % 3);
    for limiter in [&limiter, &log] {
        assert_eq!(admitted(limiter, "k", 7), 2, "{:?}", limiter.counters());
        assert_eq!(limiter.counters().degraded_total(), 0);
    }
    let new = closed(&url, "fixed_window 5/365 days");
    assert_eq!(admitted(&new, "k", 7), 5, "{:?}", new.counters());
    cluster.hand_over(slot, (from + 1) % 3);
    for limiter in [&limiter, &log, &new] {
        assert_eq!(admitted(limiter, "k", 7), 0);
        assert_eq!(limiter.counters().degraded_total(), 0);
        assert_eq!(
            limiter.counters().store.unwrap().reconnects,
            0,
            "no connection was lost"
        );
    }
}

#[test]
fn a_replica_replaces_a_killed_cluster_primary() {
    let mut cluster = RedisCluster::start_with_failover();
    let limiter = closed(&cluster.url(), "gcra 50/365 days");
    for number in 0..KEYS {
        assert_eq!(admitted(&limiter, &key(number), 10), 10);
    }
    let victim = cluster.owner(slot(&key(0)));
    cluster.nodes()[victim].kill();
    assert!(
        limiter
            .check(key(0))
            .blocking()
            .unwrap()
            .degraded()
            .is_some()
    );
    let all_available = || {
        (0..KEYS).all(|number| {
            limiter
                .check(key(number))
                .cost(0)
                .blocking()
                .unwrap()
                .degraded()
                .is_none()
        })
    };
    assert!(wait_for(TIMEOUT, all_available), "{:?}", limiter.counters());
    // The cluster was idle, so the replica has every acknowledged admission.
    for number in 0..KEYS {
        assert_eq!(admitted(&limiter, &key(number), 50), 40, "{}", key(number));
    }
}

#[test]
fn a_cluster_node_used_as_a_single_server_is_an_error() {
    let mut cluster = RedisCluster::start();
    let limiter = closed(&cluster.nodes()[0].url(), "gcra 50/365 days");
    let refused = || (0..20).find_map(|number| limiter.reset(key(number)).blocking().err());
    let Some(CheckError::Store(error)) = refused() else {
        panic!("a single node owns all slots")
    };
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("redis+cluster://"), "{cause}");
}
