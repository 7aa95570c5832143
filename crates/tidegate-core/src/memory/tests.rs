//! What the store does with its memory.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use super::*;
use crate::clock::ManualClock;
use crate::limiter::Limiter;

/// A fixed secret: keys always land in the same places, so that no test of eviction depends on chance.
const SECRET: Secret = Secret([0, 1]);

fn limiter(policy: &str, max_keys: u64) -> (Limiter, ManualClock) {
    limiter_with(SECRET, policy, max_keys)
}

fn limiter_with(secret: Secret, policy: &str, max_keys: u64) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let builder = MemoryStore::builder().max_keys(max_keys).clock(clock.clone());
    (Limiter::new(builder.build_with(secret).unwrap(), policy.parse().unwrap()), clock)
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

#[test]
fn as_many_keys_as_it_says_and_not_one_more() {
    for policy in POLICIES {
        for max_keys in [1, 2, 10, 44, 45, 46, 64, 100, 1_000, 5_000] {
            let (limiter, _) = limiter(policy, max_keys);
            for key in 0..max_keys {
                limiter.check(&format!("{key}")).cost(2).now().unwrap();
            }
            assert!((0..max_keys).all(|key| used(&limiter, &key.to_string()) == 2), "{policy} {max_keys}");
            let stats = limiter.store().stats();
            assert_eq!((stats.keys, stats.evictions), (max_keys, 0), "{policy} {max_keys}");
            limiter.check("one more").now().unwrap();
            let stats = limiter.store().stats();
            assert_eq!((stats.keys, stats.evictions), (max_keys, 1), "{policy} {max_keys}");
            assert_eq!(used(&limiter, "one more"), 1);
        }
    }
}

#[test]
fn a2_a_full_store_drops_what_was_asked_for_longest_ago() {
    let (limiter, _) = limiter("100/minute", 1_000);
    let ask = |key: u64| assert!(limiter.check(&key.to_string()).now().unwrap().is_allowed());
    (0..1_000).for_each(ask);
    // The first hundred are asked for again and again while as many new keys come as there is room for.
    for new in 1_000..2_000 {
        if new % 100 == 0 {
            (0..100).for_each(ask);
        }
        ask(new);
    }
    assert!((0..100).all(|key| used(&limiter, &key.to_string()) >= 11));
    let kept = |keys: std::ops::Range<u64>| keys.filter(|key| used(&limiter, &key.to_string()) > 0).count();
    assert!(kept(1_500..2_000) >= 490, "{}", kept(1_500..2_000));
}

/// Uses up a key's limit, and is denied so often.
fn exhaust(limiter: &Limiter, key: &str, denials: u32) {
    let capacity = limiter.policy().limits()[0].capacity();
    assert!(limiter.check(key).cost(capacity).now().unwrap().is_allowed());
    for _ in 0..denials {
        assert!(limiter.check(key).cost(capacity).now().unwrap().is_denied());
    }
}

/// Also where those that are denied came first and so reset first.
#[test]
fn a2_a_flood_that_is_not_denied_frees_no_quiet_denied_key() {
    for policy in POLICIES {
        let (limiter, clock) = limiter(policy, 1_000);
        let capacity = limiter.policy().limits()[0].capacity();
        let denied: Vec<String> = (0..20).map(|number| format!("denied {number}")).collect();
        denied.iter().for_each(|key| exhaust(&limiter, key, 1));
        for flood in 0..100_000 {
            clock.advance(Duration::from_micros(20));
            limiter.check(&format!("{flood}")).now().unwrap();
        }
        let still = denied.iter().filter(|key| limiter.check(*key).cost(capacity).now().unwrap().is_denied()).count();
        assert_eq!(still, denied.len(), "{policy}");
        assert_eq!(limiter.store().stats().keys, 1_000);
        assert_eq!(limiter.store().stats().denied_evictions, 0, "{policy}");
    }
}

/// On a small store, again and again: chance must not gather the denied keys in one place.
#[test]
fn a2_a_flood_frees_no_quiet_denied_key_by_chance() {
    for seed in 0..60 {
        let (limiter, clock) = limiter_with(Secret([seed, 1]), "10/minute", 100);
        let denied: Vec<String> = (0..10).map(|number| format!("denied {number}")).collect();
        denied.iter().for_each(|key| exhaust(&limiter, key, 1));
        for flood in 0..20_000 {
            clock.advance(Duration::from_micros(20));
            limiter.check(&format!("{flood}")).now().unwrap();
        }
        assert!(denied.iter().all(|key| limiter.check(key).cost(5).now().unwrap().is_denied()));
    }
}

/// The flood: one key after the other, each asked once or twice at a cost that leaves nothing. The client: ten times a second.
#[test]
fn a2_no_flood_frees_a_client_that_keeps_asking() {
    for (policy, flood_policy) in [
        ("sliding_window_log 5/minute", "sliding_window_log 5/minute"),
        ("fixed_window 5/minute anchor=first_hit", "fixed_window 5/minute anchor=first_hit"),
        ("5/minute", "5/minute"),
        ("5/minute", "fixed_window 5/day"),
    ] {
        for (flood_cost, times) in [(1, 1), (1, 2), (5, 1), (5, 2)] {
            let (limiter, clock) = limiter(policy, 20_000);
            let flood = limiter.with_policy(flood_policy.parse().unwrap());
            let mut passed = 0;
            let mut new = 0;
            for tick in 0..100 {
                // Two tables full in a second, and the limit of a minute in ten.
                for _ in 0..4_000 {
                    new += 1;
                    for _ in 0..times {
                        flood.check(&format!("flood {new}")).cost(flood_cost).now().unwrap();
                    }
                }
                clock.advance(Duration::from_millis(100));
                // The client begins before the flood fills the table, or in the middle of it.
                if tick >= 30 {
                    passed += u64::from(limiter.check("client").now().unwrap().is_allowed());
                }
            }
            assert_eq!(passed, 5, "{policy} under {flood_policy}, {times} times {flood_cost}");
        }
    }
}

#[test]
fn a2_a_flood_of_one_policy_does_not_evict_the_keys_of_another() {
    let (login, clock) = limiter("5/hour", 10_000);
    let name = |name: &str| crate::Name::new(name).unwrap();
    let policy = login.policy().clone();
    let [login, api] = ["login", "api"].map(|policy_name| login.in_namespace(&name(policy_name), policy.clone()));
    let denied: Vec<String> = (0..1_000).map(|number| format!("denied {number}")).collect();
    denied.iter().for_each(|key| exhaust(&login, key, 1));
    let quiet: Vec<String> = (0..1_000).map(|number| format!("quiet {number}")).collect();
    quiet.iter().for_each(|key| assert!(login.check(key).now().unwrap().is_allowed()));
    for flood in 0..100_000 {
        clock.advance(Duration::from_micros(20));
        // Denied and not, once and often.
        for _ in 0..flood % 4 + 1 {
            api.check(&format!("{flood}")).cost(4).now().unwrap();
        }
    }
    assert!(denied.iter().all(|key| login.check(key).now().unwrap().is_denied()));
    assert!(quiet.iter().all(|key| used(&login, key) == 1));
    // A policy that has less than its share gets it back from one that has more.
    (0..9_000).for_each(|key| assert!(login.check(&format!("more {key}")).now().unwrap().is_allowed()));
    let kept = (6_000..9_000).filter(|key| used(&login, &format!("more {key}")) > 0).count();
    assert!(kept >= 2_800, "{kept}");
    let groups = &api.store().table.groups;
    assert_eq!([1, 2].map(|group| groups.keys(fingerprint::Group(group))), [5_000, 5_000]);
    api.store().table.assert_sound();
}

#[test]
fn a2_where_every_candidate_is_denied_that_is_counted() {
    let (limiter, _) = limiter("1/hour", 1_000);
    for key in 0..1_000 {
        exhaust(&limiter, &key.to_string(), 4);
    }
    assert_eq!(limiter.store().stats().denied_evictions, 0);
    limiter.check("new").now().unwrap();
    assert_eq!(limiter.store().stats().denied_evictions, 1);
}

#[test]
fn b2_records_stay_within_their_budget() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(100_000)
        .max_record_bytes(1 << 20)
        .clock(clock.clone())
        .build_with(SECRET)
        .unwrap();
    let eight = (1..=8).map(|period| format!("fixed_window 9 per {period} hours")).collect::<Vec<_>>().join("; ");
    let limiter = Limiter::new(store, eight.parse().unwrap());
    exhaust(&limiter, "denied", 3);
    for key in 0..20_000 {
        limiter.check(&key.to_string()).now().unwrap();
    }
    let stats = limiter.store().stats();
    assert!(stats.record_bytes <= 1 << 20 && stats.record_bytes > 1 << 19, "{stats:?}");
    assert!(stats.record_evictions > 10_000 && stats.keys > 500, "{stats:?}");
    assert!(limiter.check("denied").now().unwrap().is_denied());
    limiter.store().table.assert_sound();
    // Logs count by their entries.
    let log = limiter.with_policy("sliding_window_log 1000/hour".parse().unwrap());
    for entry in 0..50_000 {
        clock.advance(Duration::from_micros(1));
        log.check(&(entry % 100).to_string()).now().unwrap();
    }
    let stats = limiter.store().stats();
    assert!(stats.record_bytes <= (1 << 20) + (1 << 15), "{stats:?}");
    // And what has gone is not counted.
    for key in 0..20_000 {
        limiter.reset(&key.to_string()).now().unwrap();
        log.reset(&key.to_string()).now().unwrap();
    }
    limiter.reset("denied").now().unwrap();
    assert_eq!(limiter.store().stats().record_bytes, 0);
}

/// Where the budget of records is what is full, and the table is not.
#[test]
fn a2_a_flood_of_records_frees_no_quiet_denied_key() {
    for policy in ["sliding_window_log 5/day", "5/day; fixed_window 5/day"] {
        let clock = ManualClock::new();
        let builder = MemoryStore::builder().max_keys(100_000).max_record_bytes(4 << 20).clock(clock);
        let limiter = Limiter::new(builder.build_with(SECRET).unwrap(), policy.parse().unwrap());
        let denied: Vec<String> = (0..200).map(|number| format!("denied {number}")).collect();
        denied.iter().for_each(|key| exhaust(&limiter, key, 1));
        for flood in 0..150_000 {
            limiter.check(&format!("{flood}")).now().unwrap();
        }
        let stats = limiter.store().stats();
        assert!(stats.record_evictions > 100_000 && stats.record_bytes <= 4 << 20, "{stats:?}");
        assert_eq!(denied.iter().filter(|key| used(&limiter, key) < 5).count(), 0, "{policy}: {stats:?}");
    }
}

#[test]
fn b2_a_log_has_at_most_a_million_entries() {
    let (limiter, clock) = limiter("sliding_window_log 1000000/day", 10);
    for _ in 0..1_000_100 {
        clock.advance(Duration::from_micros(1));
        assert!(limiter.check("k").cost(0.001).now().unwrap().is_allowed());
    }
    let bytes = limiter.store().stats().record_bytes;
    assert!(bytes < 40_000_000, "{bytes}");
    // All of them count, until the last one expires.
    let look = limiter.check("k").cost(0).now().unwrap();
    assert_eq!((look.remaining(), look.reset_after()), (998_999, Duration::from_secs(86_400)));
}

#[test]
fn what_has_expired_is_forgotten_a_little_at_each_check() {
    for policy in POLICIES {
        let (limiter, clock) = limiter(policy, 10_000);
        for key in 0..10_000 {
            limiter.check(&format!("{key}")).now().unwrap();
        }
        clock.advance(Duration::from_secs(7_200));
        // One key that comes again and again is enough: every 64th visit looks after one line.
        let lines = limiter.store().stats().table_bytes as u64 / 128;
        limiter.check("busy").now().unwrap();
        for _ in 0..(lines + 1) * 64 {
            limiter.check("busy").cost(0).now().unwrap();
        }
        let stats = limiter.store().stats();
        assert_eq!((stats.keys, stats.evictions), (1, 0), "{policy}: {stats:?}");
        assert_eq!(stats.expiries, 10_000, "{policy}");
    }
}

#[test]
fn a_reset_key_starts_afresh_and_others_do_not() {
    for policy in POLICIES {
        let (limiter, _) = limiter(policy, 1_000);
        for key in 0..1_000 {
            limiter.check(&format!("{key}")).cost(3).now().unwrap();
        }
        for key in (0..1_000).step_by(2) {
            limiter.reset(&format!("{key}")).now().unwrap();
        }
        limiter.reset("nobody").now().unwrap();
        for key in 0..1_000 {
            assert_eq!(used(&limiter, &key.to_string()), if key % 2 == 0 { 0 } else { 3 }, "{policy}");
        }
        assert_eq!(limiter.store().stats().keys, 500);
    }
}

#[test]
fn a_look_a_denial_and_a_refund_of_nothing_keep_nothing() {
    for policy in POLICIES {
        let (limiter, _) = limiter(policy, 100);
        limiter.check("a").cost(0).now().unwrap();
        limiter.check("b").cost(1_000_000_000).now().unwrap();
        limiter.refund("c", 5).now().unwrap();
        assert_eq!(limiter.store().stats().keys, 0, "{policy}");
    }
}

#[test]
fn a1_a_named_policy_keeps_the_counts_of_windows_and_logs_when_its_numbers_change() {
    let changes = [
        ("fixed_window 10/minute", "fixed_window 90/minute", true),
        ("sliding_window_counter 100/minute", "sliding_window_counter 10_000_000/minute", true),
        ("sliding_window_counter 10_000_000/minute", "sliding_window_counter 100/minute", true),
        ("sliding_window_log 10/minute", "sliding_window_log 20/minute", true),
        ("fixed_window 10/minute; 100/hour", "20/hour; fixed_window 9/minute", true),
        ("10/minute", "20/minute burst=30", false),
        ("10/minute", "10/minute burst=9", false),
        ("10/minute; 100/hour", "20/minute; 90/hour", false),
        ("10/minute", "10/hour", false),
        ("10/minute", "gcra 10/minute", false),
        ("fixed_window 10/minute", "fixed_window 10/minute anchor=first_hit", false),
    ];
    for (before, after, is_kept) in changes {
        let (unnamed, _) = limiter(before, 100);
        let named = unnamed.in_namespace(&crate::Name::new("api").unwrap(), unnamed.policy().clone());
        for (limiter, keeps) in [(&named, is_kept), (&unnamed, false)] {
            limiter.check("k").cost(6).now().unwrap();
            let changed = limiter.with_policy(after.parse().unwrap());
            let decision = changed.check("k").cost(0).now().unwrap();
            assert_eq!(decision.remaining() < decision.limit(), keeps, "{before} -> {after}: {decision:?}");
            // And back again, with something taken in between.
            changed.check("k").now().unwrap();
            let decision = limiter.check("k").cost(0).now().unwrap();
            assert!(decision.remaining() <= decision.limit() - 6, "{after} -> {before}: {decision:?}");
        }
    }
}

#[test]
fn a1_limits_without_a_name_count_apart_unless_they_are_the_same() {
    let (limiter, _) = limiter("5/hour", 100);
    let under = |policy: &str| limiter.with_policy(policy.parse().unwrap());
    assert!(limiter.check("k").cost(5).now().unwrap().is_allowed());
    // A look, a denial and a peek under a smaller bucket free nothing.
    let small = under("5/hour burst=1");
    let mut passed = 0;
    for _ in 0..1_000 {
        passed += u32::from(small.check("k").now().unwrap().is_allowed());
        passed += u32::from(limiter.check("k").now().unwrap().is_allowed());
        small.check("k").cost(0).now().unwrap();
    }
    assert_eq!(passed, 1);
    let [login, api] = ["fixed_window 5/minute", "fixed_window 100/minute"].map(under);
    assert!(api.check("address").cost(100).now().unwrap().is_allowed());
    assert!(login.check("address").now().unwrap().is_allowed());
    // The order of limits does not matter, and each tells of the limit that it named first.
    let [one, other] = ["fixed_window 6/hour; 6/day", "6/day; fixed_window 6/hour"].map(under);
    assert_eq!(one.check("both").cost(2).now().unwrap().limit_index(), 0);
    let decision = other.check("both").cost(3).now().unwrap();
    assert_eq!((decision.remaining(), decision.limit_index()), (1, 0));
}

#[test]
fn keys_of_any_length_and_any_bytes() {
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
    keys.extend(["{", "}", "{}", "{a}", "\r\n", "e\u{301}", "é"].map(|text| text.as_bytes().to_vec()));
    for key in &keys {
        assert!(limiter.check(key).now().unwrap().is_allowed(), "{} bytes", key.len());
        assert!(limiter.check(key).now().unwrap().is_denied(), "{} bytes", key.len());
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    assert_eq!(MemoryStore::builder().max_keys(0).build().unwrap_err(), MemoryStoreError::NoKeys);
    for max_keys in [u64::MAX, u64::MAX / 100, 1 << 56] {
        let error = MemoryStore::builder().max_keys(max_keys).build().unwrap_err();
        assert_eq!(error, MemoryStoreError::OutOfMemory { max_keys });
    }
}

/// More than a slot's 33 bits were counted when the limit was lowered: not one of them is lost.
#[test]
fn a_counter_too_large_for_a_slot_stays_what_it_is() {
    let (unnamed, clock) = limiter("sliding_window_counter 10_000_000/minute", 10);
    let large = unnamed.in_namespace(&crate::Name::new("api").unwrap(), unnamed.policy().clone());
    large.check("k").cost(8_589_935).now().unwrap();
    let small = large.with_policy("sliding_window_counter 100/minute".parse().unwrap());
    assert!(small.check("k").now().unwrap().is_denied());
    clock.advance(Duration::from_secs(61));
    assert!(small.check("k").now().unwrap().is_denied());
    clock.advance(Duration::from_secs(120));
    assert!(small.check("k").now().unwrap().is_allowed());
    assert_eq!((used(&small, "k"), large.store().stats().keys), (1, 1));
}

/// A thread that was held up between reading the clock and being let in: what others wrote meanwhile is not taken for
/// the future, and nothing of it is forgotten.
#[test]
fn a_late_thread_does_not_turn_back_time() {
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
        assert!(store.run::<Checking>(&plan, place, now, all).is_allowed());
        let late = now - 500_000_000_000;
        assert!(store.run::<Checking>(&plan, place, late, Cost::ONE).is_denied(), "{policy}");
        let seen = store.run::<Checking>(&plan, place, now, Cost::ZERO);
        assert_eq!(seen.reset_after(), Duration::from_secs(reset), "{policy}");
    }
}

#[test]
fn a_plan_does_not_tell_its_secret() {
    let store = MemoryStore::builder().max_keys(10).build().unwrap();
    let shown = format!("{:?}", store.plan(&"1/s".parse().unwrap(), ""));
    assert!(shown.contains("kept") && !shown.contains("SipHasher") && !shown.contains("m128i"), "{shown}");
}

/// Random keys come, are forgotten, expire and are dropped, on stores from nearly empty to always full: whatever
/// happens, each entry can be found and is counted.
#[test]
fn the_table_stays_sound() {
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..60 {
        let max_keys = [3, 40, 100, 400][round % 4];
        let (limiter, clock) = limiter(POLICIES[round % POLICIES.len()], max_keys);
        for step in 0..2_000 {
            let key = random.u64(0..max_keys * [1, 2, 20][round % 3]).to_string();
            match random.u8(0..20) {
                0 => limiter.reset(&key).now().unwrap(),
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
