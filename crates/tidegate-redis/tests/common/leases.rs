//! Limiters that lease quota.

use tidegate_core::{Decision, LeaseHealth, Limiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::redis::wait_for;

use super::{TIMEOUT, admitted, closed};

/// A lifetime that no test waits for.
pub const LONG: &str = "lease=60s";

pub fn leased(url: &str, options: &str, policy: &str) -> Limiter<RedisStore> {
    let separator = if url.contains('?') { '&' } else { '?' };
    closed(&format!("{url}{separator}{options}"), policy)
}

pub fn health(limiter: &Limiter<RedisStore>) -> LeaseHealth {
    limiter.counters().store.unwrap().leases
}

pub fn check(limiter: &Limiter<RedisStore>) -> Decision {
    limiter.check("k").blocking().unwrap()
}

/// Sends requests until the process holds quota. Returns the number of admissions.
pub fn warm_up(limiter: &Limiter<RedisStore>) -> usize {
    let mut count = 0;
    let holds_quota = || {
        count += admitted(limiter, "k", 1);
        health(limiter).held > 0
    };
    assert!(wait_for(TIMEOUT, holds_quota), "{:?}", limiter.counters());
    count
}
