//! Helpers for tests on real servers.
#![allow(dead_code, unreachable_pub)] // Each test file uses only some of these.

pub mod clients;
pub mod leases;

use std::time::Duration;

use tidegate_core::{FailurePolicy, Limiter, LimiterBuilder};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::wait_for;

/// A limit that refills too slowly for a test to notice.
pub const FIVE: &str = "gcra 5/365 days";

/// A timeout that is long enough for any machine. The awaited condition usually holds much sooner.
pub const TIMEOUT: Duration = Duration::from_secs(30);

pub fn builder(url: &str, policy: &str) -> LimiterBuilder<RedisStore> {
    Limiter::builder(
        RedisStore::connect_blocking(url).unwrap(),
        policy.parse().unwrap(),
    )
    .deny_cache(0)
}

/// Returns a limiter that denies requests when Redis fails, so that Redis counts every admission.
pub fn closed(url: &str, policy: &str) -> Limiter<RedisStore> {
    builder(url, policy)
        .failure_policy(FailurePolicy::Closed)
        .build()
}

/// Waits until Redis replies again.
pub fn wait_until_available(limiter: &Limiter<RedisStore>) {
    let is_available = || {
        limiter
            .check("probe")
            .cost(0)
            .blocking()
            .unwrap()
            .degraded()
            .is_none()
    };
    assert!(wait_for(TIMEOUT, is_available), "{:?}", limiter.counters());
}

/// Returns the number of admitted requests out of `requests`.
pub fn admitted(limiter: &Limiter<RedisStore>, key: &str, requests: usize) -> usize {
    (0..requests)
        .filter(|_| limiter.check(key).blocking().unwrap().is_allowed())
        .count()
}

/// Returns the remaining units of a key according to Redis.
pub fn left(limiter: &Limiter<RedisStore>, key: &str) -> u64 {
    let decision = limiter.check(key).cost(0).blocking().unwrap();
    assert_eq!(decision.degraded(), None, "{:?}", limiter.counters());
    decision.remaining()
}
