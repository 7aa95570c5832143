//! Tests of eviction: which keys and records a full store drops.

use super::*;

#[test]
fn a2_a_full_store_evicts_the_least_recently_used_key() {
    let (limiter, _) = limiter("100/minute", 1_000);
    let check = |key: u64| assert!(limiter.check(key.to_string()).now().unwrap().is_allowed());
    (0..1_000).for_each(check);
    // The first hundred keys are used repeatedly while enough new keys arrive to fill the store.
    for new in 1_000..2_000 {
        if new % 100 == 0 {
            (0..100).for_each(check);
        }
        check(new);
    }
    assert!((0..100).all(|key| used(&limiter, &key.to_string()) >= 11));
    let retained = |keys: std::ops::Range<u64>| {
        keys.filter(|key| used(&limiter, &key.to_string()) > 0)
            .count()
    };
    assert!(retained(1_500..2_000) >= 490, "{}", retained(1_500..2_000));
}

/// Uses up a key's limit, then makes `denials` requests that are denied.
fn exhaust(limiter: &Limiter, key: &str, denials: u32) {
    let capacity = limiter.policy().limits()[0].capacity();
    assert!(
        limiter
            .check(key)
            .cost(capacity)
            .now()
            .unwrap()
            .is_allowed()
    );
    for _ in 0..denials {
        assert!(limiter.check(key).cost(capacity).now().unwrap().is_denied());
    }
}

/// The denied keys come first, so their limits would also reset first.
#[test]
fn a2_a_flood_of_allowed_keys_frees_no_idle_denied_key() {
    for policy in POLICIES {
        let (limiter, clock) = limiter(policy, 1_000);
        let capacity = limiter.policy().limits()[0].capacity();
        let denied: Vec<String> = (0..20).map(|number| format!("denied {number}")).collect();
        denied.iter().for_each(|key| exhaust(&limiter, key, 1));
        for flood in 0..100_000 {
            clock.advance(Duration::from_micros(20));
            let _ = limiter.check(format!("{flood}")).now().unwrap();
        }
        let still_denied = denied
            .iter()
            .filter(|key| {
                limiter
                    .check(*key)
                    .cost(capacity)
                    .now()
                    .unwrap()
                    .is_denied()
            })
            .count();
        assert_eq!(still_denied, denied.len(), "{policy}");
        assert_eq!(limiter.store().stats().keys, 1_000);
        assert_eq!(limiter.store().stats().denied_evictions, 0, "{policy}");
    }
}

/// Repeats the flood on small stores, so that denied keys do not gather in one place by chance.
#[test]
fn a2_a_flood_frees_no_idle_denied_key_by_chance() {
    for seed in 0..60 {
        let (limiter, clock) = limiter_with(Secret([seed, 1]), "10/minute", 100);
        let denied: Vec<String> = (0..10).map(|number| format!("denied {number}")).collect();
        denied.iter().for_each(|key| exhaust(&limiter, key, 1));
        for flood in 0..20_000 {
            clock.advance(Duration::from_micros(20));
            let _ = limiter.check(format!("{flood}")).now().unwrap();
        }
        assert!(
            denied
                .iter()
                .all(|key| limiter.check(key).cost(5).now().unwrap().is_denied())
        );
    }
}

/// The flood uses one key after the other, once or twice each, at a cost that leaves nothing. The
/// client makes ten requests a second.
#[test]
fn a2_a_flood_does_not_free_a_client_that_keeps_making_requests() {
    for (policy, flood_policy) in [
        ("sliding_window_log 5/minute", "sliding_window_log 5/minute"),
        (
            "fixed_window 5/minute anchor=first_hit",
            "fixed_window 5/minute anchor=first_hit",
        ),
        ("5/minute", "5/minute"),
        ("5/minute", "fixed_window 5/day"),
    ] {
        for (flood_cost, times) in [(1, 1), (1, 2), (5, 1), (5, 2)] {
            let (limiter, clock) = limiter(policy, 20_000);
            let flood = limiter.with_policy(flood_policy.parse().unwrap());
            let mut passed = 0;
            let mut new = 0;
            for tick in 0..100 {
                // Two full tables arrive a second. The client uses up its minute's limit in ten
                // requests.
                for _ in 0..4_000 {
                    new += 1;
                    for _ in 0..times {
                        let _ = flood
                            .check(format!("flood {new}"))
                            .cost(flood_cost)
                            .now()
                            .unwrap();
                    }
                }
                clock.advance(Duration::from_millis(100));
                // The client starts in the middle of the flood.
                if tick >= 30 {
                    passed += u64::from(limiter.check("client").now().unwrap().is_allowed());
                }
            }
            assert_eq!(
                passed, 5,
                "{policy} under {flood_policy}, {times} times {flood_cost}"
            );
        }
    }
}

#[test]
fn a2_a_flood_of_one_policy_does_not_evict_the_keys_of_another() {
    let (login, clock) = limiter("5/hour", 10_000);
    let name = |name: &str| crate::Name::new(name).unwrap();
    let policy = login.policy().clone();
    let [login, api] =
        ["login", "api"].map(|policy_name| login.in_namespace(&name(policy_name), policy.clone()));
    let denied: Vec<String> = (0..1_000)
        .map(|number| format!("denied {number}"))
        .collect();
    denied.iter().for_each(|key| exhaust(&login, key, 1));
    let quiet: Vec<String> = (0..1_000).map(|number| format!("quiet {number}")).collect();
    quiet
        .iter()
        .for_each(|key| assert!(login.check(key).now().unwrap().is_allowed()));
    for flood in 0..100_000 {
        clock.advance(Duration::from_micros(20));
        // The flood has denied and allowed keys, used once and often.
        for _ in 0..flood % 4 + 1 {
            let _ = api.check(format!("{flood}")).cost(4).now().unwrap();
        }
    }
    assert!(
        denied
            .iter()
            .all(|key| login.check(key).now().unwrap().is_denied())
    );
    assert!(quiet.iter().all(|key| used(&login, key) == 1));
    // A policy below its share regains entries from a policy above its share.
    (0..9_000).for_each(|key| {
        assert!(
            login
                .check(format!("more {key}"))
                .now()
                .unwrap()
                .is_allowed()
        )
    });
    let retained = (6_000..9_000)
        .filter(|key| used(&login, &format!("more {key}")) > 0)
        .count();
    assert!(retained >= 2_800, "{retained}");
    let groups = &api.store().table.groups;
    assert_eq!(
        [1, 2].map(|group| groups.keys(fingerprint::Group(group))),
        [5_000, 5_000]
    );
    api.store().table.assert_sound();
}

#[test]
fn a2_evicting_a_denied_key_is_counted() {
    let (limiter, _) = limiter("1/hour", 1_000);
    for key in 0..1_000 {
        exhaust(&limiter, &key.to_string(), 4);
    }
    assert_eq!(limiter.store().stats().denied_evictions, 0);
    let _ = limiter.check("new").now().unwrap();
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
    let eight = (1..=8)
        .map(|period| format!("fixed_window 9 per {period} hours"))
        .collect::<Vec<_>>()
        .join("; ");
    let limiter = Limiter::new(store, eight.parse().unwrap());
    exhaust(&limiter, "denied", 3);
    for key in 0..20_000 {
        let _ = limiter.check(key.to_string()).now().unwrap();
    }
    let stats = limiter.store().stats();
    assert!(
        stats.record_bytes <= 1 << 20 && stats.record_bytes > 1 << 19,
        "{stats:?}"
    );
    assert!(
        stats.record_evictions > 10_000 && stats.keys > 500,
        "{stats:?}"
    );
    assert!(limiter.check("denied").now().unwrap().is_denied());
    limiter.store().table.assert_sound();
    // Logs count by their entries.
    let log = limiter.with_policy("sliding_window_log 1000/hour".parse().unwrap());
    for entry in 0..50_000 {
        clock.advance(Duration::from_micros(1));
        let _ = log.check((entry % 100).to_string()).now().unwrap();
    }
    let stats = limiter.store().stats();
    assert!(stats.record_bytes <= (1 << 20) + (1 << 15), "{stats:?}");
    // Deleted records are not counted.
    for key in 0..20_000 {
        limiter.reset(key.to_string()).now().unwrap();
        log.reset(key.to_string()).now().unwrap();
    }
    limiter.reset("denied").now().unwrap();
    assert_eq!(limiter.store().stats().record_bytes, 0);
}

/// The record budget is full, but the table is not.
#[test]
fn a2_a_flood_of_records_frees_no_idle_denied_key() {
    for policy in [
        "sliding_window_log 5/day",
        "sliding_window_log 5/day; fixed_window 5/day",
    ] {
        let clock = ManualClock::new();
        let builder = MemoryStore::builder()
            .max_keys(100_000)
            .max_record_bytes(4 << 20)
            .clock(clock);
        let limiter = Limiter::new(builder.build_with(SECRET).unwrap(), policy.parse().unwrap());
        let denied: Vec<String> = (0..200).map(|number| format!("denied {number}")).collect();
        denied.iter().for_each(|key| exhaust(&limiter, key, 1));
        for flood in 0..150_000 {
            let _ = limiter.check(format!("{flood}")).now().unwrap();
        }
        let stats = limiter.store().stats();
        assert!(
            stats.record_evictions > 100_000 && stats.record_bytes <= 4 << 20,
            "{stats:?}"
        );
        assert_eq!(
            denied.iter().filter(|key| used(&limiter, key) < 5).count(),
            0,
            "{policy}: {stats:?}"
        );
    }
}

#[test]
fn a2_a_flood_frees_no_denied_key_of_several_limits() {
    let policy = "5/day; fixed_window 5/day; sliding_window_counter 5/day";
    let (limiter, _) = limiter(policy, 30_000);
    let denied: Vec<String> = (0..200).map(|number| format!("denied {number}")).collect();
    denied.iter().for_each(|key| exhaust(&limiter, key, 3));
    for flood in 0..100_000 {
        let _ = limiter.check(format!("{flood}")).now().unwrap();
    }
    assert!(limiter.store().stats().evictions > 200_000);
    for key in &denied {
        assert_eq!(used(&limiter, key), 5, "{key}");
        let (_, limits) = limiter.peek(key).with_limits().now().unwrap();
        let left = limits.iter().map(|limit| limit.remaining());
        assert_eq!(left.sum::<u64>(), 0, "{key}: a limit was evicted");
    }
    limiter.store().table.assert_sound();
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
    // All entries count until the last one expires.
    let peek = limiter.check("k").cost(0).now().unwrap();
    assert_eq!(
        (peek.remaining(), peek.reset_after()),
        (998_999, Duration::from_secs(86_400))
    );
}

/// A few keys of one policy fill the budget. Keys of another policy are not evicted for them.
#[test]
fn a2_large_logs_of_one_policy_evict_no_record_of_another() {
    let clock = ManualClock::new();
    let builder = MemoryStore::builder()
        .max_keys(100_000)
        .max_record_bytes(8 << 20)
        .clock(clock.clone());
    let store = builder.build_with(SECRET).unwrap();
    let key = |text: &'static str| Key::new(text.as_bytes()).unwrap();
    let login = store.plan(
        &"fixed_window 5/minute; fixed_window 20/day"
            .parse()
            .unwrap(),
        "login",
    );
    let bulk = store.plan(&"sliding_window_log 100_000/day".parse().unwrap(), "bulk");
    let names: Vec<String> = (0..5_000).map(|number| format!("user:{number}")).collect();
    for name in &names {
        for _ in 0..6 {
            let _ = store.check(&login, Key::new(name.as_bytes()).unwrap(), Cost::ONE);
        }
    }
    for attacker in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        for _ in 0..100_000 {
            clock.advance(Duration::from_nanos(10));
            let _ = store.check(&bulk, key(attacker), Cost::ONE);
        }
    }
    let stats = store.stats();
    assert!(
        stats.record_bytes <= 8 << 20 && stats.record_evictions > 0,
        "{stats:?}"
    );
    let is_denied = |name: &&String| {
        store
            .check(&login, Key::new(name.as_bytes()).unwrap(), Cost::ONE)
            .is_denied()
    };
    assert_eq!(names.iter().filter(is_denied).count(), names.len());
    store.table.assert_sound();
}

/// A client whose log alone exceeds the budget is not freed, even if the log is not the first
/// policy of the request.
#[test]
fn a2_a_client_cannot_free_itself_with_a_log_that_exceeds_the_budget() {
    let clock = ManualClock::new();
    let builder = MemoryStore::builder()
        .max_keys(10_000)
        .max_record_bytes(100_000)
        .clock(clock.clone());
    let store = builder.build_with(SECRET).unwrap();
    let key = |text: &'static str| Key::new(text.as_bytes()).unwrap();
    let log = store.plan(&"sliding_window_log 8_000/hour".parse().unwrap(), "log");
    let user = store.plan(
        &"fixed_window 1_000_000/hour; fixed_window 1_000_000/day"
            .parse()
            .unwrap(),
        "user",
    );
    let mut passed = 0;
    for _ in 0..20_000 {
        clock.advance(Duration::from_nanos(1));
        let admissions = store.admit(&[(&user, key("u"), Cost::ONE), (&log, key("k"), Cost::ONE)]);
        passed += u32::from(admissions.iter().all(|one| one.decision.is_allowed()));
    }
    assert_eq!(passed, 8_000);
}

/// One client's log exceeds the budget. The small records of the same policy are not evicted for
/// it.
#[test]
fn a2_a_large_log_evicts_no_small_record_of_its_own_policy() {
    let clock = ManualClock::new();
    let builder = MemoryStore::builder()
        .max_keys(100_000)
        .max_record_bytes(1 << 20)
        .clock(clock.clone());
    let limiter = Limiter::new(
        builder.build_with(SECRET).unwrap(),
        "sliding_window_log 5/day".parse().unwrap(),
    );
    let limiter = limiter.in_namespace(&crate::Name::new("p").unwrap(), limiter.policy().clone());
    let denied: Vec<String> = (0..1_000)
        .map(|number| format!("denied {number}"))
        .collect();
    denied.iter().for_each(|key| exhaust(&limiter, key, 1));
    let large = limiter.with_policy("sliding_window_log 1_000_000/day".parse().unwrap());
    for _ in 0..100_000 {
        clock.advance(Duration::from_nanos(10));
        assert!(large.check("large").cost(0.001).now().unwrap().is_allowed());
    }
    assert!(limiter.store().stats().record_bytes > 1 << 20);
    assert!(
        denied
            .iter()
            .all(|key| limiter.check(key).now().unwrap().is_denied())
    );
    // Another client's request evicts the large record.
    let _ = limiter.check("new").now().unwrap();
    assert!(limiter.store().stats().record_bytes < 1 << 20);
    assert!(
        denied
            .iter()
            .all(|key| limiter.check(key).now().unwrap().is_denied())
    );
}
