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

fn quota() -> Quota {
    Quota::with_period(Duration::from_secs(30))
        .expect("not zero")
        .allow_burst(NonZeroU32::new(100_000_000).expect("not zero"))
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
fn check_each(
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
pub(super) struct Tidegate(pub(super) Limiter);

impl Tidegate {
    pub(super) fn new(max_keys: u64) -> Self {
        let store = MemoryStore::builder()
            .max_keys(max_keys)
            .build()
            .expect("the table fits in memory");
        Self(Limiter::new(
            store,
            POLICY.parse().expect("the policy is valid"),
        ))
    }
}

impl Contender for Tidegate {
    fn name(&self) -> &'static str {
        "tidegate"
    }

    fn fill(&self, keys: u64) {
        for number in 0..keys {
            let _ = black_box(self.0.check(key(number)).now().expect("the key is valid"));
        }
    }

    fn check_for(&self, stream: &Stream, from: usize, duration: Duration) -> (u64, Duration) {
        check_each(stream, from, duration, |key| {
            // The black box ensures that all fields of the decision are computed.
            let _ = black_box(&self.0.check(key).now());
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
                    .0
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
/// a reused buffer.
pub(super) struct GovernorDashMap(pub(super) Governor<String, std::hash::RandomState>);

impl GovernorDashMap {
    pub(super) fn new() -> Self {
        Self(RateLimiter::dashmap_with_hasher(
            quota(),
            std::hash::RandomState::new(),
        ))
    }
}

impl Contender for GovernorDashMap {
    fn name(&self) -> &'static str {
        "governor dashmap"
    }

    fn fill(&self, keys: u64) {
        for number in 0..keys {
            let _ = black_box(self.0.check_key(&key(number)));
        }
    }

    fn check_for(&self, stream: &Stream, from: usize, duration: Duration) -> (u64, Duration) {
        let mut buffer = String::new();
        check_each(stream, from, duration, |key| {
            buffer.clear();
            buffer.push_str(key);
            let _ = black_box(self.0.check_key(&buffer));
        })
    }
}

/// governor with the fastest keys that its API allows for short keys: 16-byte arrays and ahash.
pub(super) struct GovernorTuned(Governor<[u8; 16], ahash::RandomState>);

impl GovernorTuned {
    pub(super) fn new() -> Self {
        Self(RateLimiter::dashmap_with_hasher(
            quota(),
            ahash::RandomState::new(),
        ))
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
            let _ = black_box(self.0.check_key(&array(&key(number))));
        }
    }

    fn check_for(&self, stream: &Stream, from: usize, duration: Duration) -> (u64, Duration) {
        check_each(stream, from, duration, |key| {
            let _ = black_box(self.0.check_key(&array(key)));
        })
    }
}
