//! Quota leases: what processes admit from leased quota stays within the limits.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::leases::{LONG, check, health, leased, warm_up};
use common::{TIMEOUT, admitted, left};
use tidegate_core::{CheckError, Gate, LeaseHealth, Outcome, PolicySet, Rules, Subject};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::{
    Fault, Proxy, RedisCluster, RedisSentinels, RedisServer, now, wait_for,
};

fn evalsha_calls(server: &RedisServer) -> u64 {
    let stats = server.info("commandstats");
    let line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[test]
fn a_hot_key_rarely_asks_redis_and_admits_exactly_its_limit() {
    for policy in [
        "fixed_window 10_000/365 days",
        "fixed_window 10_000/365 days anchor=first_hit",
        "fixed_window 10_000/365 days; fixed_window 20_000/366 days",
        "gcra 10_000/365 days",
        "token_bucket 10_000/365 days; fixed_window 20_000/366 days",
    ] {
        let server = RedisServer::start();
        let limiter = leased(&server.url(), LONG, policy);
        assert_eq!(admitted(&limiter, "k", 8_000), 8_000, "{policy}");
        let health = health(&limiter);
        let calls = evalsha_calls(&server);
        assert!(calls < 1_500, "{policy}: {calls} calls, {health:?}");
        assert!(
            health.granted > 0 && health.keys == 1,
            "{policy}: {health:?}"
        );
        assert_eq!(admitted(&limiter, "k", 4_000), 2_000, "{policy}");
        assert!(limiter.check("k").blocking().unwrap().is_leased());
    }
}

#[test]
fn idle_quota_and_that_of_an_ending_process_is_given_back() {
    for policy in ["fixed_window 1000/365 days", "leaky_bucket 1000/365 days"] {
        let server = RedisServer::start();
        let plain = common::closed(&server.url(), policy);
        let idle = leased(&server.url(), "lease=50ms", policy);
        let taken = warm_up(&idle);
        assert!(wait_for(TIMEOUT, || left(&plain, "k") as usize == 1_000 - taken));
        let health_after = health(&idle);
        assert_eq!((health_after.held, health_after.lapsed), (0, 0));

        let ending = leased(&server.url(), LONG, policy);
        let taken = taken + warm_up(&ending);
        assert!((left(&plain, "k") as usize) < 1_000 - taken);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(ending.store().give_back_leases());
        assert_eq!(left(&plain, "k") as usize, 1_000 - taken, "{policy}");
        assert_eq!(health(&ending).held, 0);
    }
}

#[test]
fn a_lost_connection_ends_all_slices() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = leased(&proxy.url(), LONG, "fixed_window 1000/365 days");
    warm_up(&limiter);
    assert!(check(&limiter).is_allowed());
    proxy.set(Fault::Cut);
    let is_degraded = || check(&limiter).degraded().is_some();
    assert!(wait_for(TIMEOUT, is_degraded), "the slice is still spent");
    proxy.set(Fault::None);
    common::wait_until_available(&limiter);
    // The slice may be unknown to a new primary, so it is not given back.
    let lapsed = || check(&limiter).is_allowed() && health(&limiter).lapsed > 0;
    assert!(wait_for(TIMEOUT, lapsed), "{:?}", limiter.counters());
    assert_eq!(health(&limiter).returned, 0);
}

#[test]
fn slices_are_spent_while_redis_does_not_answer() {
    let server = RedisServer::start();
    let url = format!("{}?timeout=100ms", server.url());
    let limiter = leased(&url, LONG, "fixed_window 10_000/365 days");
    warm_up(&limiter);
    server.stop();
    let first = check(&limiter);
    assert!(first.is_allowed() && first.degraded().is_none());
    let is_degraded = || check(&limiter).degraded().is_some();
    assert!(wait_for(TIMEOUT, is_degraded));
    server.go_on();
    common::wait_until_available(&limiter);
}

/// The primary dies while a process holds quota. The new primary has counted all of it, and the
/// process drops it.
#[test]
fn a_failover_exceeds_no_window() {
    let mut sentinels = RedisSentinels::start();
    let limiter = leased(&sentinels.url(), LONG, "fixed_window 2000/365 days");
    let mut total = warm_up(&limiter) + admitted(&limiter, "k", 200);
    let offset = |info: String, name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::to_owned)
    };
    let replicated = || {
        let replica = offset(
            sentinels.replica().info("replication"),
            "slave_repl_offset:",
        );
        let primary = offset(
            sentinels.primary().info("replication"),
            "master_repl_offset:",
        );
        replica.is_some() && replica == primary
    };
    assert!(wait_for(TIMEOUT, replicated));
    assert!(health(&limiter).held > 0);
    sentinels.primary().kill();
    let is_lost = || check(&limiter).degraded().is_some();
    while !is_lost() {
        total += 1;
    }
    common::wait_until_available(&limiter);
    total += admitted(&limiter, "k", 3_000);
    assert!(total <= 2_000, "{total}");
    assert!(total >= 1_700, "{total}: more than the share is stranded");
}

#[test]
fn a_cluster_leases_too() {
    let cluster = RedisCluster::start();
    let limiter = leased(&cluster.url(), "lease=on", "fixed_window 5000/365 days");
    assert_eq!(admitted(&limiter, "k", 6_000), 5_000);
    assert!(health(&limiter).granted > 0);
}

#[test]
fn a_reset_forgets_the_slices_of_a_key() {
    let server = RedisServer::start();
    let limiter = leased(&server.url(), LONG, "fixed_window 1000/365 days");
    warm_up(&limiter);
    assert!(limiter.reset("k").blocking().unwrap());
    assert_eq!(health(&limiter).held, 0);
    assert_eq!(admitted(&limiter, "k", 1_500), 1_000);
}

/// Each request has a place of its own in the queue, a tenth of a second from the others.
#[test]
fn requests_of_a_leaky_bucket_have_places_of_their_own() {
    let server = RedisServer::start();
    let limiter = leased(&server.url(), LONG, "leaky_bucket 10/second burst=1000");
    let start = now();
    let mut delays: Vec<Duration> = (0..200)
        .map(|_| match check(&limiter).outcome() {
            Outcome::Allowed { delay } => delay,
            other => panic!("{other:?}"),
        })
        .collect();
    delays.sort_unstable();
    for (place, delay) in (0..).zip(delays) {
        let expected = Duration::from_millis(100) * place;
        assert!(delay + start.elapsed() >= expected, "{place}: {delay:?}");
    }
    assert!(health(&limiter).granted > 0);
}

#[test]
fn looks_charges_and_batches_agree_with_slices() {
    let server = RedisServer::start();
    let limiter = leased(&server.url(), LONG, "fixed_window 1000/365 days");
    let mut total = warm_up(&limiter);
    assert!(limiter.check("k").cost(0).blocking().unwrap().is_leased());
    assert!(limiter.peek("k").blocking().unwrap().is_leased());
    let _ = limiter.charge("k", 100).blocking().unwrap();
    let batch: Vec<(&str, u64)> = vec![("k", 1); 50];
    for _ in 0..25 {
        let decisions = limiter.check_many(&batch).blocking().unwrap();
        total += decisions.iter().filter(|one| one.is_allowed()).count();
    }
    total += admitted(&limiter, "k", 1_000);
    assert_eq!(total, 900);
}

/// A gate admits from slices without a future. Both ways of deciding count every request once.
#[test]
fn a_gate_admits_from_slices_at_once() {
    let server = RedisServer::start();
    let url = format!("{}?{LONG}", server.url());
    let store = RedisStore::connect_blocking(&url).unwrap();
    let rules = |text: &str| Rules::new(text.parse().unwrap());
    let leased = rules("fixed_window 1000/365 days")
        .tier("gold", "fixed_window 2000/365 days".parse().unwrap())
        .unwrap();
    let exempt = rules("fixed_window 1000/365 days").without_leases();
    let policies = PolicySet::new()
        .with("leased", leased)
        .unwrap()
        .with("exempt", exempt)
        .unwrap();
    let gate = Gate::builder(store, policies).build();
    for (policy, tier, limit) in [
        ("leased", None, 1_000),
        ("leased", Some("gold"), 2_000),
        ("exempt", None, 1_000),
    ] {
        let (mut at_once, mut allowed) = (0, 0);
        for _ in 0..3_000 {
            let mut subject = Subject::new(policy, "k");
            subject.tier = tier;
            let subjects = [subject];
            let verdict = match gate.decide_now(&subjects, false) {
                Some(verdict) => {
                    at_once += 1;
                    verdict.unwrap()
                }
                None => {
                    let request = gate.check(policy, "k");
                    let request = match tier {
                        Some(tier) => request.tier(tier),
                        None => request,
                    };
                    request.blocking().unwrap()
                }
            };
            allowed += u64::from(verdict.is_allowed());
        }
        assert_eq!(allowed, limit, "{policy} {tier:?}");
        assert_eq!(at_once > 500, policy == "leased", "{policy}: {at_once}");
    }
    let counters = gate.counters();
    let counted: u64 = counters.iter().map(|one| one.allowed + one.denied).sum();
    assert_eq!(counted, 9_000);
}

#[test]
fn invalid_settings_are_rejected() {
    for (options, expected) in [
        ("lease=9ms", "from 10ms to 60s"),
        ("lease=61s", "from 10ms to 60s"),
        ("lease=yes", "expected on, off or a lifetime"),
        ("lease=on&lease_share=0", "from 1 to 100"),
        ("lease=on&lease_share=101", "from 1 to 100"),
    ] {
        let url = format!("redis://127.0.0.1:1/?{options}");
        let error = RedisStore::connect_blocking(&url).unwrap_err().to_string();
        assert!(error.contains(expected), "{options}: {error}");
    }
    let server = RedisServer::start();
    let limiter = leased(&server.url(), "lease=on", "1000/minute");
    let error = limiter.check("").blocking().unwrap_err();
    assert!(matches!(error, CheckError::EmptyKey(_)), "{error:?}");
    let off = leased(&server.url(), "lease=off", "1000/minute");
    assert_eq!(admitted(&off, "k", 100), 100);
    assert_eq!(health(&off), LeaseHealth::default());
}
