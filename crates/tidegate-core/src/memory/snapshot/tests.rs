//! Valid snapshots are restored exactly, and all other input is rejected.
#![allow(clippy::unwrap_used)] // Clippy recognizes tests only by `cfg(test)`.

use siphasher::sip128::Hasher128;

use super::*;
use crate::{Cost, Key, ManualClock, Policy, Timestamp};

const POLICIES: [&str; 9] = [
    "token_bucket 7/second burst=40",
    "gcra 100/minute",
    "leaky_bucket 30/minute",
    "fixed_window 50/hour",
    "fixed_window 50/hour anchor=first_hit",
    "sliding_window_counter 60/minute",
    "sliding_window_log 20/minute",
    "sliding_window_counter 9000000/minute",
    "10/second burst=30; sliding_window_log 25/minute; fixed_window 100/day",
];

fn builder(clock: &ManualClock) -> MemoryStoreBuilder {
    MemoryStore::builder().max_keys(10_000).clock(clock.clone())
}

fn start() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(1_700_000_000_123_457).unwrap())
}

fn snapshot(store: &MemoryStore) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.write_snapshot(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_restored_store_decides_like_the_original() {
    let clock = start();
    let store = builder(&clock).build().unwrap();
    let policies: Vec<Policy> = POLICIES.iter().map(|text| text.parse().unwrap()).collect();
    let mut random = fastrand::Rng::with_seed(7);
    let keys: Vec<String> = (0..40)
        .map(|number| format!("a key of some length:{number}"))
        .collect();
    let mut steps = |stores: &[&MemoryStore], count: usize| {
        for _ in 0..count {
            clock.advance(std::time::Duration::from_micros(random.u64(0..400_000)));
            let (policy, key) = (
                random.choice(&policies).unwrap(),
                random.choice(&keys).unwrap(),
            );
            let cost = Cost::from_thousandths(random.u64(0..3_000)).unwrap();
            let key = Key::new(key.as_bytes()).unwrap();
            let decisions: Vec<_> = stores
                .iter()
                .map(|store| store.check(&store.plan(policy, "api"), key, cost))
                .collect();
            assert!(
                decisions.windows(2).all(|two| two[0] == two[1]),
                "{policy} {decisions:?}"
            );
        }
    };
    steps(&[&store], 3_000);
    let restored = builder(&clock).restore(&snapshot(&store)).unwrap();
    restored.table.assert_sound();
    assert!(restored.stats().keys > 100 && restored.stats().keys <= store.stats().keys);
    steps(&[&store, &restored], 3_000);
}

/// The wall clock was set, or the machine was suspended, while the first process ran. The second
/// process starts with the wall clock.
#[test]
fn a_set_wall_clock_frees_no_limited_client() {
    for ahead_s in [-7_200_i64, -1, 0, 1, 3_600] {
        let clock = start();
        let store = builder(&clock).build().unwrap();
        // Clock-aligned windows are skipped: they start at different times after the shift.
        let policies = POLICIES
            .iter()
            .filter(|text| !matches!(**text, "fixed_window 50/hour"));
        let policies: Vec<Policy> = policies
            .filter(|text| !text.contains("/day"))
            .map(|text| text.parse().unwrap())
            .collect();
        let key = Key::new(b"key").unwrap();
        let cost = Cost::try_from(7).unwrap();
        for policy in &policies {
            let _ = store.check(&store.plan(policy, ""), key, cost);
        }
        let mut bytes = Vec::new();
        store
            .write_snapshot_at(&mut bytes, ahead_s * 1_000_000_000)
            .unwrap();
        let wall = ManualClock::at(Timestamp::from_nanos(
            clock
                .now()
                .as_nanos()
                .saturating_add_signed(ahead_s * 1_000_000_000),
        ));
        let restored = builder(&wall).restore(&bytes).unwrap();
        for policy in &policies {
            let peek = |store: &MemoryStore| store.check(&store.plan(policy, ""), key, Cost::ZERO);
            assert_eq!(
                peek(&restored).remaining(),
                peek(&store).remaining(),
                "{policy} {ahead_s}"
            );
        }
    }
}

#[test]
fn expired_entries_are_skipped() {
    let clock = start();
    let store = builder(&clock).build().unwrap();
    let plan = store.plan(&"1/second".parse().unwrap(), "");
    let _ = store.check(&plan, Key::new(b"k").unwrap(), Cost::ONE);
    let bytes = snapshot(&store);
    clock.advance(std::time::Duration::from_secs(5));
    assert_eq!(builder(&clock).restore(&bytes).unwrap().stats().keys, 0);
}

#[test]
fn a_smaller_store_restores_as_many_keys_as_fit() {
    let clock = start();
    let store = builder(&clock).build().unwrap();
    let plan = store.plan(&"sliding_window_log 5/hour".parse().unwrap(), "");
    for number in 0..1_000 {
        let _ = store.check(
            &plan,
            Key::new(format!("{number}").as_bytes()).unwrap(),
            Cost::ONE,
        );
    }
    let small = builder(&clock)
        .max_keys(100)
        .restore(&snapshot(&store))
        .unwrap();
    small.table.assert_sound();
    assert_eq!(small.stats().keys, 100);
}

#[test]
fn damaged_snapshots_are_rejected() {
    let clock = start();
    let store = builder(&clock).build().unwrap();
    for (number, policy) in POLICIES.iter().enumerate() {
        let plan = store.plan(&policy.parse().unwrap(), "");
        let _ = store.check(
            &plan,
            Key::new(format!("{number}").as_bytes()).unwrap(),
            Cost::ONE,
        );
    }
    let good = snapshot(&store);
    assert!(builder(&clock).restore(&good).is_ok());
    for end in 0..good.len() {
        assert!(
            builder(&clock).restore(&good[..end]).is_err(),
            "truncated at {end}"
        );
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(
            builder(&clock).restore(&bad).is_err(),
            "a bit of byte {at} was flipped"
        );
    }
    assert!(
        builder(&clock)
            .restore(&[&good[..], b"x"].concat())
            .is_err()
    );
}

/// Returns a snapshot with a valid checksum for any content.
fn forged(content: &[u8]) -> Vec<u8> {
    use std::hash::Hasher;
    let mut sum = siphasher::sip128::SipHasher13::new();
    sum.write(content);
    [content, &sum.finish128().as_bytes()[..]].concat()
}

/// An entry with the fingerprint of an empty slot was once not counted. The number of keys wrapped,
/// and the writer panicked.
#[test]
fn b7_an_entry_with_the_fingerprint_of_an_empty_slot_is_rejected() {
    let clock = start();
    let good = snapshot(&builder(&clock).build().unwrap());
    // The header ends before the end byte, the count and the checksum.
    let header = &good[..good.len() - CHECKSUM_BYTES - 9];
    let mut entry = vec![1, 0];
    entry.extend([0; 16]);
    entry.extend(u64::MAX.to_le_bytes());
    entry.extend([0; 8]);
    let content = [header, &entry, &[END], &1_u64.to_le_bytes()].concat();
    assert!(matches!(
        builder(&clock).restore(&forged(&content)),
        Err(RestoreError::Damaged(_))
    ));
}

/// A forged snapshot is either rejected, or the restored store still decides, evicts and writes.
#[test]
fn b7_forged_snapshots_are_rejected_or_harmless() {
    let clock = start();
    let store = builder(&clock).build().unwrap();
    let policies: Vec<Policy> = POLICIES.iter().map(|text| text.parse().unwrap()).collect();
    let key = |number: usize| format!("{}", number % 50);
    for number in 0..450 {
        let plan = store.plan(&policies[number % policies.len()], "api");
        let _ = store.check(&plan, Key::new(key(number).as_bytes()).unwrap(), Cost::ONE);
    }
    let good = snapshot(&store);
    let content = &good[..good.len() - CHECKSUM_BYTES];
    let mut random = fastrand::Rng::with_seed(9);
    let mut restored = 0;
    for _ in 0..20_000 {
        let mut bad = content.to_vec();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(37..bad.len());
            let hostile = [0, 1, 0x7f, 0x80, 0xff, random.u8(..)];
            bad[at] = *random.choice(&hostile).unwrap();
            if random.bool() && at + 8 <= bad.len() {
                bad[at..at + 8]
                    .copy_from_slice(&[u64::MAX, 0, 1 << 63, 1][random.usize(0..4)].to_le_bytes());
            }
        }
        let Ok(store) = builder(&clock).max_keys(100).restore(&forged(&bad)) else {
            continue;
        };
        restored += 1;
        for number in 0..20 {
            let plan = store.plan(random.choice(&policies).unwrap(), "api");
            let key = key(random.usize(0..100) + number);
            let _ = store.check(
                &plan,
                Key::new(key.as_bytes()).unwrap(),
                Cost::from_thousandths(random.u64(0..3_000)).unwrap(),
            );
            let _ = store.refund(&plan, Key::new(key.as_bytes()).unwrap(), Cost::ONE);
        }
        assert!(store.stats().keys <= 100 && !snapshot(&store).is_empty());
    }
    assert!(restored > 1_000, "{restored}");
}

/// Records beyond the budget are skipped.
#[test]
fn b2_a_snapshot_is_restored_within_the_budget() {
    let clock = start();
    let store = builder(&clock).build().unwrap();
    let plan = store.plan(&"sliding_window_log 100/hour".parse().unwrap(), "");
    for number in 0..1_000 {
        let _ = store.check(
            &plan,
            Key::new(format!("{number}").as_bytes()).unwrap(),
            Cost::ONE,
        );
    }
    let small = builder(&clock)
        .max_record_bytes(40_000)
        .restore(&snapshot(&store))
        .unwrap();
    small.table.assert_sound();
    assert!(
        small.stats().record_bytes <= 40_000 && small.stats().keys > 50,
        "{:?}",
        small.stats()
    );
}

/// The entry of a bucket claims to be a record. Neither a check nor the next snapshot fails.
#[test]
fn b7_an_entry_of_the_wrong_kind_is_ignored() {
    let clock = start();
    let (bucket, log): (Policy, Policy) = (
        "7/hour".parse().unwrap(),
        "sliding_window_log 5/hour".parse().unwrap(),
    );
    let key = |text: &'static str| Key::new(text.as_bytes()).unwrap();
    let store = builder(&clock).build().unwrap();
    let _ = store.check(&store.plan(&bucket, ""), key("bucket"), Cost::ONE);
    let good = snapshot(&store);
    let header_end = good.len() - CHECKSUM_BYTES - 9 - 34;
    let mut entry = good[header_end..header_end + 26].to_vec();
    entry[0] = 3; // A record…
    entry.extend(0_u64.to_le_bytes()); // …without states.
    let content = [&good[..header_end], &entry, &[END], &1_u64.to_le_bytes()].concat();
    let store = builder(&clock).restore(&forged(&content)).unwrap();
    let (bucket, log) = (store.plan(&bucket, ""), store.plan(&log, ""));
    let _ = store.check(&log, key("log"), Cost::ONE);
    for thousandths in [1_500, 1_000] {
        assert!(
            store
                .check(
                    &bucket,
                    key("bucket"),
                    Cost::from_thousandths(thousandths).unwrap()
                )
                .is_allowed()
        );
        assert!(!snapshot(&store).is_empty());
    }
    store.reset(&bucket, key("bucket"));
    assert_eq!(store.check(&log, key("log"), Cost::ONE).remaining(), 3);
    assert_eq!(store.stats().keys, 1);
}

#[test]
fn a_policy_name_of_any_length_is_restored() {
    let clock = start();
    let store = builder(&clock).build().unwrap();
    let policy: Policy = "5/minute".parse().unwrap();
    let (name, key) = ("n".repeat(300), Key::new(b"k").unwrap());
    let _ = store.check(&store.plan(&policy, &name), key, Cost::ONE);
    let store = builder(&clock).restore(&snapshot(&store)).unwrap();
    assert_eq!(
        store
            .check(&store.plan(&policy, &name), key, Cost::ZERO)
            .remaining(),
        4
    );
}
