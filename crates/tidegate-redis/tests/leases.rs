//! Quota leases: what processes admit from leased quota stays within the limits.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{TIMEOUT, admitted, left};
use tidegate_core::{
    CheckError, Decision, FailurePolicy, Gate, LeaseHealth, Limiter, ManualClock, Outcome,
    PolicySet, Rules, Subject, Timestamp,
};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::{
    Fault, Proxy, RedisCluster, RedisSentinels, RedisServer, now, wait_for,
};

/// A lifetime that no test waits for.
const LONG: &str = "lease=60s";

fn leased(url: &str, options: &str, policy: &str) -> Limiter<RedisStore> {
    let separator = if url.contains('?') { '&' } else { '?' };
    common::closed(&format!("{url}{separator}{options}"), policy)
}

fn health(limiter: &Limiter<RedisStore>) -> LeaseHealth {
    limiter.counters().store.unwrap().leases
}

fn check(limiter: &Limiter<RedisStore>) -> Decision {
    limiter.check("k").blocking().unwrap()
}

/// Sends requests until the process holds quota. Returns the number of admissions.
fn warm_up(limiter: &Limiter<RedisStore>) -> usize {
    let mut count = 0;
    let holds_quota = || {
        count += admitted(limiter, "k", 1);
        health(limiter).held > 0
    };
    assert!(wait_for(TIMEOUT, holds_quota), "{:?}", limiter.counters());
    count
}

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

/// Every request that several processes admit is counted in Redis, and what they do not use is
/// given back, so they use the limit up exactly.
#[test]
fn processes_use_up_a_limit_exactly() {
    const LIMIT: usize = 6_000;
    for policy in ["fixed_window 6_000/365 days", "gcra 6_000/365 days"] {
        let server = RedisServer::start();
        let url = server.url();
        let limiters: Vec<_> = (0..4).map(|_| leased(&url, "lease=20ms", policy)).collect();
        let plain = common::closed(&url, policy);
        let count = |limiter: &Limiter<RedisStore>, requests| admitted(limiter, "k", requests);
        let total = std::thread::scope(|scope| {
            let threads: Vec<_> = limiters
                .iter()
                .map(|limiter| scope.spawn(move || count(limiter, 1_200)))
                .collect();
            let leased: usize = threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum();
            leased + count(&plain, 500)
        });
        let are_idle = || limiters.iter().all(|limiter| health(limiter).held == 0);
        assert!(wait_for(TIMEOUT, are_idle));
        let is_exact = || left(&plain, "k") as usize == LIMIT - total;
        assert!(
            wait_for(TIMEOUT, is_exact),
            "{policy}: {} {total}",
            left(&plain, "k")
        );
        let rest: usize = limiters.iter().map(|limiter| count(limiter, LIMIT)).sum();
        let held = || {
            limiters
                .iter()
                .map(|limiter| health(limiter).held)
                .sum::<u64>()
        };
        assert!(wait_for(TIMEOUT, || held() == 0));
        assert_eq!(total + rest + count(&plain, LIMIT), LIMIT, "{policy}");
        for limiter in &limiters {
            let health = health(limiter);
            assert!(
                health.granted > 0 && health.lapsed == 0,
                "{policy}: {health:?}"
            );
        }
    }
}

/// Stores with a manual clock, as processes that share a Redis.
struct Fleet {
    server: RedisServer,
    clock: ManualClock,
    limiters: Vec<Limiter<RedisStore>>,
}

impl Fleet {
    fn start(policy: &str, share: u8) -> Self {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        clock.set(Timestamp::from_nanos(1_700_000_000_000_000_000));
        let limiter = |_| {
            let store = RedisStore::builder(&server.url())
                .manual_time(clock.clone(), Duration::from_secs(3_600))
                .timeout(Duration::from_secs(10))
                .lease(Duration::from_millis(100))
                .lease_share(share);
            let store = store.connect_blocking().unwrap();
            Limiter::builder(store, policy.parse().unwrap())
                .deny_cache(0)
                .failure_policy(FailurePolicy::Closed)
                .build()
        };
        let limiters = (0..6).map(limiter).collect();
        Self {
            server,
            clock,
            limiters,
        }
    }

    /// Sends random requests at random times. Returns the times of the admissions and their costs.
    fn run(&self, requests: usize, seed: u64) -> Vec<(Timestamp, u64)> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut admissions = Vec::new();
        for _ in 0..requests {
            // Light traffic leaves slices unspent as windows end and buckets fill. A flood follows.
            let is_flood = random.u8(..6) == 0;
            for _ in 0..random.usize(1..30) {
                let pause = if is_flood { 500 } else { 30_000 };
                self.clock
                    .advance(Duration::from_micros(random.u64(0..=pause)));
                let limiter = &self.limiters[random.usize(..self.limiters.len())];
                let cost = [1, 1, 1, 2, 7][random.usize(..5)];
                for _ in 0..if is_flood { 30 } else { 3 } {
                    let decision = limiter.check("k").cost(cost).blocking().unwrap();
                    assert_eq!(decision.degraded(), None);
                    if decision.is_allowed() {
                        admissions.push((self.clock.now(), cost));
                    }
                }
            }
        }
        for limiter in &self.limiters {
            let health = health(limiter);
            assert!(health.granted > 0, "{health:?}");
        }
        assert!(!self.server.keys().is_empty());
        admissions
    }
}

#[test]
fn no_window_admits_more_than_its_limit() {
    for (seed, policy, limit) in [
        (1, "fixed_window 1000/second", 1_000),
        (
            2,
            "fixed_window 700/second; fixed_window 30_000/minute",
            700,
        ),
    ] {
        let fleet = Fleet::start(policy, 10);
        let mut window = (0, 0);
        for (at, cost) in fleet.run(300, seed) {
            let second = at.as_nanos() / 1_000_000_000;
            if second != window.0 {
                window = (second, 0);
            }
            window.1 += cost;
            assert!(window.1 <= limit, "{policy}: {window:?}");
        }
    }
}

/// The admissions of all processes fit a bucket whose burst is larger by the share that may be
/// leased, 4 %. So does every part of them.
#[test]
fn a_bucket_exceeds_its_burst_by_no_more_than_the_share() {
    for (seed, policy, bound) in [
        (1, "gcra 1000/second", "gcra 1000/second burst=1040"),
        (
            4,
            "token_bucket 10_000/second burst=1000",
            "gcra 10_000/second burst=1040",
        ),
        (
            2,
            "token_bucket 2000/second burst=600",
            "gcra 2000/second burst=624",
        ),
        (
            3,
            "leaky_bucket 300/second burst=400; fixed_window 100_000/minute",
            "gcra 300/second burst=416",
        ),
    ] {
        let fleet = Fleet::start(policy, 4);
        let clock = ManualClock::new();
        let store = tidegate_core::MemoryStore::builder().clock(clock.clone());
        let bucket = Limiter::new(store.build().unwrap(), bound.parse().unwrap());
        for (at, cost) in fleet.run(300, seed) {
            clock.set(at);
            let decision = bucket.check("k").cost(cost).now().unwrap();
            assert!(decision.is_allowed(), "{policy} at {at:?}");
        }
    }
}

/// All processes together hold no more than the share, so no more quota can be stranded.
#[test]
fn the_quota_held_is_a_share_of_the_limit() {
    for policy in ["fixed_window 10_000/365 days", "gcra 10_000/365 days"] {
        let server = RedisServer::start();
        let limiters: Vec<_> = (0..5)
            .map(|_| leased(&server.url(), "lease=60s&lease_share=5", policy))
            .collect();
        for round in 0..200 {
            for limiter in &limiters {
                admitted(limiter, "k", 7);
            }
            let held: u64 = limiters.iter().map(|limiter| health(limiter).held).sum();
            assert!(held <= 500_000, "{policy} in round {round}: {held}");
        }
        if policy.starts_with("gcra") {
            continue;
        }
        // The processes end without giving anything back. The rest of the limit is usable.
        let plain = common::closed(&server.url(), policy);
        let held = || {
            limiters
                .iter()
                .map(|limiter| health(limiter).held)
                .sum::<u64>()
                / 1_000
        };
        let all = || 5 * 200 * 7 + held() + left(&plain, "k");
        assert!(wait_for(TIMEOUT, || all() == 10_000), "{}", all());
        let usable = left(&plain, "k");
        drop(limiters);
        assert_eq!(admitted(&plain, "k", 10_000) as u64, usable, "{policy}");
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
        ("lease=yes", "lease"),
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
