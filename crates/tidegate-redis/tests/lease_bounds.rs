//! Quota leases: processes that share a limit stay within it, use it up, and hold no more than the
//! share.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::leases::{health, leased};
use common::{TIMEOUT, admitted, left};
use tidegate_core::{FailurePolicy, Limiter, ManualClock, Timestamp};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::{RedisServer, wait_for};

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
