//! The floor: a fixed table of fingerprints and free-again times, without locks, growth, eviction or
//! exactness. No limiter with these can be faster.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use governor::clock::{Clock, QuantaClock, Reference};

use super::contenders::{Contender, check_each};
use super::stream::{Stream, key};

/// The time that a request takes from a key.
const UNIT: u64 = 1;
/// The most that may be taken.
const BURST: u64 = 1 << 62;

pub(super) struct Floor {
    entries: Box<[[AtomicU64; 2]]>,
    hasher: ahash::RandomState,
    clock: QuantaClock,
    start: governor::clock::QuantaInstant,
}

impl Floor {
    pub(super) fn new(keys: u64) -> Self {
        let entries = (keys * 2).next_power_of_two();
        let clock = QuantaClock::default();
        Self {
            entries: (0..entries).map(|_| Default::default()).collect(),
            hasher: ahash::RandomState::new(),
            start: clock.now(),
            clock,
        }
    }

    fn check(&self, key: &str) -> bool {
        let now: u64 = self.clock.now().duration_since(self.start).into();
        let fingerprint = self.hasher.hash_one(key) | 1;
        let mask = self.entries.len() - 1;
        let mut at = (fingerprint >> 8) as usize & mask;
        loop {
            let [owner, free_at] = &self.entries[at];
            match owner.load(Relaxed) {
                0 => owner.store(fingerprint, Relaxed),
                other if other == fingerprint => {
                    let before = free_at.load(Relaxed);
                    let after = before.max(now) + UNIT;
                    let fits = after - now <= BURST;
                    return fits
                        && free_at
                            .compare_exchange(before, after, Relaxed, Relaxed)
                            .is_ok();
                }
                _ => at = (at + 1) & mask,
            }
        }
    }
}

impl Contender for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn fill(&self, keys: u64) {
        for number in 0..keys {
            black_box(self.check(&key(number)));
        }
    }

    fn check_for(&self, stream: &Stream, from: usize, duration: Duration) -> (u64, Duration) {
        check_each(stream, from, duration, |key| {
            black_box(self.check(key));
        })
    }
}
