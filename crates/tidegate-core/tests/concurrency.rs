//! Many threads on few keys admit exactly the limit.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Cost, Limiter, ManualClock, MemoryStore};

const THREADS: usize = 8;
const POLICIES: [&str; 8] = [
    "token_bucket 50/hour",
    "token_bucket 7/hour burst=50",
    "gcra 50/hour",
    "leaky_bucket 50/hour",
    "fixed_window 50/hour",
    "fixed_window 50/hour anchor=first_hit",
    "sliding_window_counter 50/hour",
    "sliding_window_log 50/hour",
];

/// Asserts that exactly `limit` requests pass per key. Each thread checks every key more often than
/// allowed, starts at a different key, and alternates single checks and batches.
fn assert_exactly_the_limit_passes(policy: &str, keys: usize, limit: u64) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(keys as u64)
        .clock(clock)
        .build()
        .unwrap();
    let limiter = Limiter::new(store, policy.parse().unwrap());
    let names: Vec<String> = (0..keys).map(|key| format!("key {key}")).collect();
    let admitted: Vec<AtomicU64> = names.iter().map(|_| AtomicU64::new(0)).collect();
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, names, admitted, barrier) =
                (limiter.clone(), &names, &admitted, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for round in 0..(limit as usize / THREADS + 3) * keys {
                    let key = (round * 7 + thread * 13) % keys;
                    let passed = if round % 2 == 0 {
                        u64::from(limiter.check(&names[key]).now().unwrap().is_allowed())
                    } else {
                        let requests = [(&names[key], Cost::ONE), (&names[key], Cost::ONE)];
                        let decisions = limiter.check_many(&requests).now().unwrap();
                        decisions
                            .iter()
                            .filter(|decision| decision.is_allowed())
                            .count() as u64
                    };
                    admitted[key].fetch_add(passed, Ordering::Relaxed);
                }
            });
        }
    });
    for (name, admitted) in names.iter().zip(&admitted) {
        assert_eq!(
            admitted.load(Ordering::Relaxed),
            limit,
            "{policy}: {name} of {keys}"
        );
    }
    let stats = limiter.store().stats();
    assert_eq!((stats.keys, stats.evictions), (keys as u64, 0));
}

#[test]
fn one_key_admits_exactly_the_limit() {
    POLICIES
        .iter()
        .for_each(|policy| assert_exactly_the_limit_passes(policy, 1, 50));
}

#[test]
fn sixty_four_keys_admit_exactly_the_limit() {
    POLICIES
        .iter()
        .for_each(|policy| assert_exactly_the_limit_passes(policy, 64, 50));
}

#[test]
fn ten_thousand_keys_admit_exactly_the_limit() {
    POLICIES
        .iter()
        .for_each(|policy| assert_exactly_the_limit_passes(policy, 10_001, 50));
}

#[test]
fn several_limits_admit_exactly_the_smallest() {
    assert_exactly_the_limit_passes(
        "token_bucket 1_000/hour; fixed_window 50/hour; sliding_window_log 60/hour",
        64,
        50,
    );
}

/// Threads add, reset and refund on a store that is always full. The store never exceeds its bound
/// and keeps working.
#[test]
fn a_full_store_stays_bounded_under_many_threads() {
    let store = MemoryStore::builder()
        .max_keys(500)
        .clock(ManualClock::new())
        .build()
        .unwrap();
    let limiter = Limiter::new(store, "10/hour; sliding_window_log 5/hour".parse().unwrap());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let limiter = limiter.clone();
            scope.spawn(move || {
                for round in 0..20_000 {
                    let key = format!("{}", (round * 31 + thread * 17) % 3_000);
                    match round % 8 {
                        0 => drop(limiter.refund(&key, 1).now().unwrap()),
                        1 => drop(limiter.reset(&key).now().unwrap()),
                        _ => drop(limiter.check(&key).now().unwrap()),
                    }
                    assert!(limiter.store().stats().keys <= 500);
                }
            });
        }
    });
}
