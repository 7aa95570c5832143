//! Tests of the memory store: size, expiry and identity of counters. Eviction and receipts have
//! their own files.
#![allow(clippy::unwrap_used, clippy::panic)]

mod eviction;
mod receipts;
mod several;

use std::time::Duration;

use super::*;
use crate::clock::ManualClock;
use crate::limiter::Limiter;

/// A fixed secret. Keys are always stored in the same places, so eviction tests do not depend on
/// chance.
const SECRET: Secret = Secret([0, 1]);

fn limiter(policy: &str, max_keys: u64) -> (Limiter, ManualClock) {
    limiter_with(SECRET, policy, max_keys)
}

fn limiter_with(secret: Secret, policy: &str, max_keys: u64) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let builder = MemoryStore::builder()
        .max_keys(max_keys)
        .clock(clock.clone());
    (
        Limiter::new(builder.build_with(secret).unwrap(), policy.parse().unwrap()),
        clock,
    )
}

fn used(limiter: &Limiter, key: &str) -> u64 {
    let decision = limiter.check(key).cost(0).now().unwrap();
    decision.limit() - decision.remaining()
}

const POLICIES: [&str; 9] = [
    "10/minute",
    "7/minute",
    "leaky_bucket 10/minute",
    "fixed_window 10/minute",
    "fixed_window 10/minute anchor=first_hit",
    "sliding_window_counter 10/minute",
    "sliding_window_counter 10_000_000/minute",
    "sliding_window_log 10/minute",
    "10/minute; fixed_window 100/hour",
];

/// Returns the number of entries of a key: one for each limit.
fn entries(policy: &str) -> u64 {
    policy.split(';').count() as u64
}

#[test]
fn max_keys_is_a_hard_bound() {
    for policy in POLICIES {
        for max_keys in [1, 2, 10, 44, 45, 46, 64, 100, 1_000, 5_000] {
            let entries = entries(policy);
            let (limiter, _) = limiter(policy, max_keys * entries);
            for key in 0..max_keys {
                let _ = limiter.check(format!("{key}")).cost(2).now().unwrap();
            }
            assert!(
                (0..max_keys).all(|key| used(&limiter, &key.to_string()) == 2),
                "{policy} {max_keys}"
            );
            let stats = limiter.store().stats();
            assert_eq!(
                (stats.keys, stats.evictions),
                (max_keys * entries, 0),
                "{policy} {max_keys}"
            );
            let _ = limiter.check("one more").now().unwrap();
            let stats = limiter.store().stats();
            assert_eq!(
                (stats.keys, stats.evictions),
                (max_keys * entries, entries),
                "{policy} {max_keys}"
            );
            assert_eq!(used(&limiter, "one more"), 1);
        }
    }
}

#[test]
fn checks_delete_expired_keys() {
    for policy in POLICIES {
        let entries = entries(policy);
        let (limiter, clock) = limiter(policy, 10_000 * entries);
        for key in 0..10_000 {
            let _ = limiter.check(format!("{key}")).now().unwrap();
        }
        clock.advance(Duration::from_secs(7_200));
        // One key in constant use is enough, because every 64th visit sweeps one line.
        let lines = limiter.store().stats().table_bytes as u64 / 128;
        let _ = limiter.check("busy").now().unwrap();
        for _ in 0..(lines + 1) * 64 {
            let _ = limiter.check("busy").cost(0).now().unwrap();
        }
        let stats = limiter.store().stats();
        let figures = (stats.keys, stats.evictions);
        assert_eq!(figures, (entries, 0), "{policy}: {stats:?}");
        assert_eq!(stats.expiries, 10_000 * entries, "{policy}");
    }
}

#[test]
fn a_reset_affects_one_key_only() {
    for policy in POLICIES {
        let entries = entries(policy);
        let (limiter, _) = limiter(policy, 1_000 * entries);
        for key in 0..1_000 {
            let _ = limiter.check(format!("{key}")).cost(3).now().unwrap();
        }
        for key in (0..1_000).step_by(2) {
            limiter.reset(format!("{key}")).now().unwrap();
        }
        limiter.reset("unknown").now().unwrap();
        for key in 0..1_000 {
            assert_eq!(
                used(&limiter, &key.to_string()),
                if key % 2 == 0 { 0 } else { 3 },
                "{policy}"
            );
        }
        assert_eq!(limiter.store().stats().keys, 500 * entries);
    }
}

#[test]
fn a_peek_a_denial_and_an_empty_refund_store_nothing() {
    for policy in POLICIES {
        let (limiter, _) = limiter(policy, 100);
        let _ = limiter.check("a").cost(0).now().unwrap();
        let _ = limiter.check("b").cost(1_000_000_000).now().unwrap();
        limiter.refund("c", 5).now().unwrap();
        assert_eq!(limiter.store().stats().keys, 0, "{policy}");
    }
}

#[test]
fn a1_a_named_policy_keeps_the_counts_of_windows_and_logs_when_its_numbers_change() {
    let changes = [
        ("fixed_window 10/minute", "fixed_window 90/minute", true),
        (
            "sliding_window_counter 100/minute",
            "sliding_window_counter 10_000_000/minute",
            true,
        ),
        (
            "sliding_window_counter 10_000_000/minute",
            "sliding_window_counter 100/minute",
            true,
        ),
        (
            "sliding_window_log 10/minute",
            "sliding_window_log 20/minute",
            true,
        ),
        (
            "fixed_window 10/minute; 100/hour",
            "20/hour; fixed_window 9/minute",
            true,
        ),
        ("10/minute", "20/minute burst=30", false),
        ("10/minute", "10/minute burst=9", false),
        ("10/minute; 100/hour", "20/minute; 90/hour", false),
        ("10/minute", "10/hour", false),
        ("10/minute", "gcra 10/minute", false),
        (
            "fixed_window 10/minute",
            "fixed_window 10/minute anchor=first_hit",
            false,
        ),
    ];
    for (before, after, is_kept) in changes {
        let (unnamed, _) = limiter(before, 100);
        let named =
            unnamed.in_namespace(&crate::Name::new("api").unwrap(), unnamed.policy().clone());
        for (limiter, keeps) in [(&named, is_kept), (&unnamed, false)] {
            let _ = limiter.check("k").cost(6).now().unwrap();
            let changed = limiter.with_policy(after.parse().unwrap());
            let decision = changed.check("k").cost(0).now().unwrap();
            assert_eq!(
                decision.remaining() < decision.limit(),
                keeps,
                "{before} -> {after}: {decision:?}"
            );
            // Switching back keeps the earlier counts, even if the changed policy took more in
            // between.
            let _ = changed.check("k").now().unwrap();
            let decision = limiter.check("k").cost(0).now().unwrap();
            assert!(
                decision.remaining() <= decision.limit() - 6,
                "{after} -> {before}: {decision:?}"
            );
        }
    }
}

#[test]
fn a1_unnamed_limits_count_separately_unless_equal() {
    let (limiter, _) = limiter("5/hour", 100);
    let under = |policy: &str| limiter.with_policy(policy.parse().unwrap());
    assert!(limiter.check("k").cost(5).now().unwrap().is_allowed());
    // Peeks and denials under a smaller bucket free nothing.
    let small = under("5/hour burst=1");
    let mut passed = 0;
    for _ in 0..1_000 {
        passed += u32::from(small.check("k").now().unwrap().is_allowed());
        passed += u32::from(limiter.check("k").now().unwrap().is_allowed());
        let _ = small.check("k").cost(0).now().unwrap();
    }
    assert_eq!(passed, 1);
    let [login, api] = ["fixed_window 5/minute", "fixed_window 100/minute"].map(under);
    assert!(api.check("address").cost(100).now().unwrap().is_allowed());
    assert!(login.check("address").now().unwrap().is_allowed());
    // The order of limits does not matter. Each policy reports the limit that it listed first.
    let [one, other] = ["fixed_window 6/hour; 6/day", "6/day; fixed_window 6/hour"].map(under);
    assert_eq!(one.check("both").cost(2).now().unwrap().limit_index(), 0);
    let decision = other.check("both").cost(3).now().unwrap();
    assert_eq!((decision.remaining(), decision.limit_index()), (1, 0));
}

#[test]
fn keys_may_have_any_length_and_any_bytes() {
    let (limiter, _) = limiter("1/minute", 1_000);
    let mut keys: Vec<Vec<u8>> = (1..=100).map(|length| vec![0; length]).collect();
    keys.extend([
        vec![b'k'; 8 << 10],
        vec![b'k'; 1 << 20],
        vec![0xff, 0xfe],
        b"a:b".to_vec(),
        b"a_b".to_vec(),
        b"a b".to_vec(),
    ]);
    keys.extend(
        ["{", "}", "{}", "{a}", "\r\n", "e\u{301}", "é"].map(|text| text.as_bytes().to_vec()),
    );
    for key in &keys {
        assert!(
            limiter.check(key).now().unwrap().is_allowed(),
            "{} bytes",
            key.len()
        );
        assert!(
            limiter.check(key).now().unwrap().is_denied(),
            "{} bytes",
            key.len()
        );
    }
}

#[test]
fn invalid_sizes_are_rejected() {
    assert_eq!(
        MemoryStore::builder().max_keys(0).build().unwrap_err(),
        MemoryStoreError::NoKeys
    );
    for max_keys in [u64::MAX, u64::MAX / 100, 1 << 56] {
        let error = MemoryStore::builder()
            .max_keys(max_keys)
            .build()
            .unwrap_err();
        assert_eq!(error, MemoryStoreError::OutOfMemory { max_keys });
    }
}

/// The count exceeded the 33 bits of a slot before the limit was lowered. The count is kept.
#[test]
fn a_counter_too_large_for_a_slot_keeps_its_counts() {
    let (unnamed, clock) = limiter("sliding_window_counter 10_000_000/minute", 10);
    let large = unnamed.in_namespace(&crate::Name::new("api").unwrap(), unnamed.policy().clone());
    let _ = large.check("k").cost(8_589_935).now().unwrap();
    let small = large.with_policy("sliding_window_counter 100/minute".parse().unwrap());
    assert!(small.check("k").now().unwrap().is_denied());
    clock.advance(Duration::from_secs(61));
    assert!(small.check("k").now().unwrap().is_denied());
    clock.advance(Duration::from_secs(120));
    assert!(small.check("k").now().unwrap().is_allowed());
    assert_eq!((used(&small, "k"), large.store().stats().keys), (1, 1));
}

/// A thread was interrupted between reading the clock and acquiring the lock. It keeps states that
/// other threads wrote in between, although they look like states from the future.
#[test]
fn a_late_thread_does_not_clamp_newer_states() {
    for (policy, reset) in [
        ("fixed_window 10/hour anchor=first_hit", 3_600),
        ("sliding_window_log 10/hour", 3_600),
        ("10/hour", 3_600),
        ("fixed_window 10/hour anchor=first_hit; 100/hour", 3_600),
    ] {
        let store = MemoryStore::builder().max_keys(10).build().unwrap();
        let plan = store.plan(&policy.parse().unwrap(), "");
        let place = store.place(&plan, Key::new(b"k").unwrap());
        let now = store.table.clock().now().as_nanos();
        let all = Cost::try_from(10).unwrap();
        assert!(
            store
                .run::<Checking>(&plan, place, now, all.thousandths())
                .is_allowed()
        );
        let late = now - 500_000_000_000;
        assert!(
            store
                .run::<Checking>(&plan, place, late, Cost::ONE.thousandths())
                .is_denied(),
            "{policy}"
        );
        let seen = store.run::<Checking>(&plan, place, now, 0);
        assert_eq!(seen.reset_after(), Duration::from_secs(reset), "{policy}");
    }
}

#[test]
fn a_plan_does_not_print_its_secret() {
    let store = MemoryStore::builder().max_keys(10).build().unwrap();
    let shown = format!("{:?}", store.plan(&"1/s".parse().unwrap(), ""));
    assert!(
        shown.contains("layout") && !shown.contains("SipHasher") && !shown.contains("m128i"),
        "{shown}"
    );
}

/// Random keys arrive, reset, expire and are evicted, on stores from nearly empty to always full.
/// Every entry stays reachable and counted.
#[test]
fn the_table_stays_consistent_under_random_operations() {
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..60 {
        let max_keys = [3, 40, 100, 400][round % 4];
        let (limiter, clock) = limiter(POLICIES[round % POLICIES.len()], max_keys);
        for step in 0..2_000 {
            let key = random.u64(0..max_keys * [1, 2, 20][round % 3]).to_string();
            match random.u8(0..20) {
                0 => drop(limiter.reset(&key).now().unwrap()),
                1 => drop(limiter.refund(&key, 1).now().unwrap()),
                2 => clock.advance(Duration::from_millis(random.u64(0..2_000))),
                _ => drop(limiter.check(&key).now().unwrap()),
            }
            if step % 20 == 0 {
                limiter.store().table.assert_sound();
            }
        }
        assert!(limiter.store().stats().keys <= max_keys);
    }
}
