//! The limiters under measurement. Each checks the same keys.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use governor::clock::DefaultClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use tidegate::{Cost, Limiter, MemoryStore};

use super::stream::{Stream, key};

/// A burst that a run does not exhaust, so every request is allowed. The refill is so slow that
/// every filled key keeps a live limit.
pub(super) const POLICY: &str = "token_bucket 2/minute burst=100_000_000";

/// The burst of governor's limiters.
const BURST: NonZeroU32 = NonZeroU32::new(100_000_000).expect("not zero");

fn quota() -> Quota {
    Quota::with_period(Duration::from_secs(30))
        .expect("not zero")
        .allow_burst(BURST)
}

/// The outcome of the measured requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Admitted,
    Denied,
    /// Every second key is denied.
    Mixed,
}

impl Outcome {
    /// Returns `true` if the key of this number has used its limit up.
    fn is_denied(self, number: u64) -> bool {
        match self {
            Self::Admitted => false,
            Self::Denied => true,
            Self::Mixed => number % 2 == 1,
        }
    }

    /// Returns the number of requests that governor's key is filled with.
    fn filled_with(self, number: u64) -> NonZeroU32 {
        if self.is_denied(number) {
            BURST
        } else {
            NonZeroU32::MIN
        }
    }
}

/// The number of checks between two readings of the clock.
const CHUNK: usize = 64;
pub(super) const BATCH: usize = 32;

/// A limiter under measurement.
pub(super) trait Contender: Sync {
    fn name(&self) -> &'static str;

    /// Checks the keys from 0 to `keys` once, so that the limiter stores them.
    fn fill(&self, keys: u64);

    /// Checks keys of the stream, starting at `from`, for `duration`. Returns the number of checks
    /// and the time they took.
    fn check_for(&self, stream: &Stream, from: usize, duration: Duration) -> (u64, Duration);
}

/// Calls `check` on the stream's keys until `duration` has passed.
pub(super) fn check_each(
    stream: &Stream,
    from: usize,
    duration: Duration,
    mut check: impl FnMut(&str),
) -> (u64, Duration) {
    let mut keys = stream.walk(from);
    let (started, mut checks) = (Instant::now(), 0);
    loop {
        for key in keys.by_ref().take(CHUNK) {
            check(key);
        }
        checks += CHUNK as u64;
        let elapsed = started.elapsed();
        if elapsed >= duration {
            return (checks, elapsed);
        }
    }
}

/// Only iterates over the stream, to measure the overhead of the harness.
pub(super) struct Harness;

impl Contender for Harness {
    fn name(&self) -> &'static str {
        "harness alone"
    }

    fn fill(&self, _keys: u64) {}

    fn check_for(&self, stream: &Stream, from: usize, duration: Duration) -> (u64, Duration) {
        check_each(stream, from, duration, |key| {
            black_box(key);
        })
    }
}

/// Tidegate, one check at a time.
pub(super) struct Tidegate {
    pub(super) limiter: Limiter,
    cost: Cost,
    outcome: Outcome,
}

impl Tidegate {
    pub(super) fn new(max_keys: u64) -> Self {
        Self::with(max_keys, POLICY, Cost::ONE, Outcome::Admitted)
    }

    pub(super) fn with(max_keys: u64, policy: &str, cost: Cost, outcome: Outcome) -> Self {
        let store = MemoryStore::builder()
            .max_keys(max_keys)
            .max_record_bytes(1 << 32)
            .build()
            .expect("the table fits in memory");
        Self {
            limiter: Limiter::new(store, policy.parse().expect("the policy is valid")),
            cost,
            outcome,
        }
    }
}

impl Contender for Tidegate {
    fn name(&self) -> &'static str {
        "tidegate"
    }

    fn fill(&self, keys: u64) {
        let limits = self.limiter.policy().limits().iter();
        let capacity = limits.map(tidegate::Limit::capacity).min().unwrap_or(1);
        for number in 0..keys {
            let cost = if self.outcome.is_denied(number) {
                Cost::try_from(capacity).expect("a capacity is a cost")
            } else {
                self.cost
            };
            let filled = self.limiter.check(key(number)).cost(cost).now();
            assert!(filled.expect("the key is valid").is_allowed());
        }
    }

    fn check_for(&self, stream: &Stream, from: usize, duration: Duration) -> (u64, Duration) {
        let cost = self.cost;
        check_each(stream, from, duration, |key| {
            // The black box ensures that all fields of the decision are computed.
            let _ = black_box(&self.limiter.check(key).cost(cost).now());
        })
    }
}

/// Tidegate in batches, with the same limiter.
pub(super) struct TidegateBatch<'a>(pub(super) &'a Tidegate);

impl Contender for TidegateBatch<'_> {
    fn name(&self) -> &'static str {
        "tidegate check_many(32)"
    }

    fn fill(&self, _keys: u64) {}

    fn check_for(&self, stream: &Stream, from: usize, duration: Duration) -> (u64, Duration) {
        let mut keys = stream.walk(from);
        let mut decisions = Vec::with_capacity(BATCH);
        let mut requests = Vec::with_capacity(BATCH);
        let (started, mut checks) = (Instant::now(), 0);
        loop {
            for _ in 0..CHUNK / BATCH {
                requests.clear();
                requests.extend(keys.by_ref().take(BATCH).map(|key| (key, Cost::ONE)));
                decisions.clear();
                self.0
                    .limiter
                    .check_many(&requests)
                    .now_into(&mut decisions)
                    .expect("the keys are valid");
                black_box(&decisions);
            }
            checks += CHUNK as u64;
            let elapsed = started.elapsed();
            if elapsed >= duration {
                return (checks, elapsed);
            }
        }
    }
}

type Governor<K, H> = RateLimiter<
    K,
    DashMapStateStore<K, H>,
    DefaultClock,
    NoOpMiddleware<governor::clock::QuantaInstant>,
>;

/// governor in its most common form: String keys, its own DashMap and clock. The key is copied into
/// a reused buffer. With several limiters, all are asked until one denies.
pub(super) struct GovernorDashMap {
    limiters: Vec<Governor<String, std::hash::RandomState>>,
    outcome: Outcome,
}

impl GovernorDashMap {
    pub(super) fn new() -> Self {
        Self::with(1, Outcome::Admitted)
    }

    pub(super) fn with(limits: usize, outcome: Outcome) -> Self {
        let limiter = |_| RateLimiter::dashmap_with_hasher(quota(), std::hash::RandomState::new());
        Self {
            limiters: (0..limits).map(limiter).collect(),
            outcome,
        }
    }
}

impl Contender for GovernorDashMap {
    fn name(&self) -> &'static str {
        "governor dashmap"
    }

    fn fill(&self, keys: u64) {
        for (number, limiter) in (0..keys).flat_map(|number| {
            let limiters = self.limiters.iter();
            limiters.map(move |limiter| (number, limiter))
        }) {
            let count = self.outcome.filled_with(number);
            let _ = black_box(limiter.check_key_n(&key(number), count));
        }
    }

    fn check_for(&self, stream: &Stream, from: usize, duration: Duration) -> (u64, Duration) {
        let mut buffer = String::new();
        check_each(stream, from, duration, |key| {
            buffer.clear();
            buffer.push_str(key);
            let mut limiters = self.limiters.iter();
            black_box(limiters.all(|limiter| limiter.check_key(&buffer).is_ok()));
        })
    }
}

/// governor with the fastest keys that its API allows for short keys: 16-byte arrays and ahash.
pub(super) struct GovernorTuned {
    limiter: Governor<[u8; 16], ahash::RandomState>,
    outcome: Outcome,
}

impl GovernorTuned {
    pub(super) fn new() -> Self {
        Self::with(Outcome::Admitted)
    }

    pub(super) fn with(outcome: Outcome) -> Self {
        Self {
            limiter: RateLimiter::dashmap_with_hasher(quota(), ahash::RandomState::new()),
            outcome,
        }
    }
}

fn array(key: &str) -> [u8; 16] {
    let mut array = [0; 16];
    array[..key.len()].copy_from_slice(key.as_bytes());
    array
}

impl Contender for GovernorTuned {
    fn name(&self) -> &'static str {
        "governor dashmap tuned"
    }

    fn fill(&self, keys: u64) {
        for number in 0..keys {
            let count = self.outcome.filled_with(number);
            let _ = black_box(self.limiter.check_key_n(&array(&key(number)), count));
        }
    }

    fn check_for(&self, stream: &Stream, from: usize, duration: Duration) -> (u64, Duration) {
        check_each(stream, from, duration, |key| {
            let _ = black_box(self.limiter.check_key(&array(key)));
        })
    }
}
