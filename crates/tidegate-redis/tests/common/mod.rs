//! What the tests on real servers share.
#![allow(dead_code, unreachable_pub)] // Each test file takes what it needs.

use std::time::Duration;

use tidegate_core::{FailurePolicy, Limiter, LimiterBuilder};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::wait_for;

/// A limit that refills so slowly that a test sees none of it.
pub const FIVE: &str = "gcra 5/365 days";

/// Long enough for any machine; what is waited for comes much sooner.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn builder(url: &str, policy: &str) -> LimiterBuilder<RedisStore> {
    Limiter::builder(
        RedisStore::connect_blocking(url).unwrap(),
        policy.parse().unwrap(),
    )
    .deny_cache(0)
}

/// What Redis cannot answer is denied, so that every admission is one of Redis'.
pub fn closed(url: &str, policy: &str) -> Limiter<RedisStore> {
    builder(url, policy)
        .failure_policy(FailurePolicy::Closed)
        .build()
}

/// Waits until Redis answers again.
pub fn wait_until_answered(limiter: &Limiter<RedisStore>) {
    let answers = || {
        limiter
            .check("is it back?")
            .cost(0)
            .wait()
            .unwrap()
            .degraded()
            .is_none()
    };
    assert!(wait_for(PATIENCE, answers), "{:?}", limiter.counters());
}

/// How many of so many requests are admitted.
pub fn admitted(limiter: &Limiter<RedisStore>, key: &str, requests: usize) -> usize {
    (0..requests)
        .filter(|_| limiter.check(key).wait().unwrap().is_allowed())
        .count()
}

/// How much is left of a key, as Redis has it.
pub fn left(limiter: &Limiter<RedisStore>, key: &str) -> u64 {
    let decision = limiter.check(key).cost(0).wait().unwrap();
    assert_eq!(decision.degraded(), None, "{:?}", limiter.counters());
    decision.remaining()
}
