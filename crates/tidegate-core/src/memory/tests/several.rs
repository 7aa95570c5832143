//! Tests of policies of several limits, each with an entry of its own.

use super::*;
use crate::name::Name;
use crate::record::Record;

const POLICIES: [&str; 6] = [
    "5/second; fixed_window 20/minute",
    "7/second burst=3 debt=2; sliding_window_counter 20/minute",
    "leaky_bucket 5/second; gcra 11/second burst=20; fixed_window 30/minute anchor=first_hit",
    "sliding_window_counter 9_000_000/day; 5/second",
    "fixed_window 5/second; fixed_window 8 per 3 s; fixed_window 20/minute; 10/second",
    "1/minute; 1/minute; 1/minute; 1/minute; 1/minute",
];

/// The store decides as the pure function does on a record, with the same figures.
#[test]
fn every_operation_equals_that_on_a_record() {
    let mut random = fastrand::Rng::with_seed(11);
    for text in POLICIES {
        let (limiter, clock) = limiter(text, 1_000);
        let mut records = vec![Record::default(); 3];
        let (mut allowed, mut denied) = (0, 0);
        for step in 0..20_000 {
            let wait = [0, 1, 1_000, 20_000, 100_000, 700_000][random.usize(0..6)];
            clock.advance(Duration::from_micros(random.u64(0..=wait)));
            let number = random.usize(0..records.len());
            let (key, record) = (number.to_string(), &mut records[number]);
            let cost = Cost::from_thousandths(random.u64(0..5) * 500).unwrap();
            let (now, policy) = (Store::now(limiter.store()), limiter.policy());
            let [stored, expected] = match random.u8(0..20) {
                0 => [
                    limiter.refund(&key, cost).now().unwrap().into(),
                    policy.refund(record, now, cost),
                ],
                1 => [
                    limiter.charge(&key, cost).now().unwrap().into(),
                    policy.charge(record, now, cost).decision,
                ],
                2 => [
                    limiter.peek(&key).cost(cost).now().unwrap(),
                    policy.peek(record, now, cost),
                ],
                _ => [
                    limiter.check(&key).cost(cost).now().unwrap(),
                    policy.decide(record, now, cost),
                ],
            };
            assert_eq!(stored, expected, "{text}, step {step}, key {key}");
            *(if stored.is_allowed() {
                &mut allowed
            } else {
                &mut denied
            }) += 1;
        }
        assert!(
            allowed > 1_000 && denied > 1_000,
            "{text}: {allowed} {denied}"
        );
        limiter.store().table.assert_sound();
    }
}

/// A counter above 8,589,934 does not fit in a slot.
#[test]
fn a_counter_keeps_its_count_when_its_limit_grows_and_shrinks() {
    let (limiter, _) = limiter("1/second", 100);
    let policy = |limit: &str| {
        let text = format!("5/second; sliding_window_counter {limit}/day");
        limiter.in_namespace(&Name::new("api").unwrap(), text.parse().unwrap())
    };
    let (small, large) = (policy("8_000_000"), policy("9_000_000"));
    let left = |limiter: &Limiter| {
        let (_, limits) = limiter.peek("k").with_limits().cost(0).now().unwrap();
        limits[1].remaining()
    };
    let steps = [(&small, &large), (&large, &small), (&small, &large)];
    for (number, (one, other)) in (1..).zip(steps) {
        assert!(one.check("k").now().unwrap().is_allowed());
        let used = |of: &Limiter| of.policy().limits()[1].capacity() - left(of);
        assert_eq!((used(one), used(other)), (number, number));
    }
    assert!(large.reset("k").now().unwrap());
    assert_eq!(limiter.store().stats().keys, 0);
    assert_eq!(limiter.store().stats().record_bytes, 0);
}

/// Two configurations of one policy: each has its own bucket, and the windows are shared.
#[test]
fn buckets_with_other_numbers_are_other_buckets() {
    let (limiter, _) = limiter("1/second", 100);
    let api = Name::new("api").unwrap();
    let [one, other] = [
        "3/hour; fixed_window 10/hour",
        "fixed_window 10/hour; 2/hour",
    ]
    .map(|text| limiter.in_namespace(&api, text.parse().unwrap()));
    let remaining = |limiter: &Limiter| {
        let (_, limits) = limiter.peek("k").with_limits().cost(0).now().unwrap();
        limits.iter().map(|one| one.remaining()).collect::<Vec<_>>()
    };
    let _ = one.check("k").cost(3).now().unwrap();
    assert_eq!(remaining(&one), [0, 7]);
    assert_eq!(remaining(&other), [7, 2]);
    let _ = other.check("k").cost(2).now().unwrap();
    assert_eq!(
        (remaining(&one), remaining(&other)),
        (vec![0, 5], vec![5, 0])
    );
}

/// Eight limits have a record, since a line has four slots.
#[test]
fn more_limits_than_slots_are_stored_in_a_record() {
    let eight = ["9/second"; 8].join("; ");
    let (limiter, _) = limiter(&eight, 100);
    assert_eq!(limiter.check("k").now().unwrap().remaining(), 8);
    assert!(limiter.store().stats().record_bytes > 0);
}

#[test]
fn snapshots_hold_several_limits() {
    let (limiter, clock) = limiter(POLICIES[4], 100);
    let _ = limiter.check("k").cost(3).now().unwrap();
    let mut snapshot = Vec::new();
    assert_eq!(limiter.store().write_snapshot(&mut snapshot).unwrap(), 4);
    let builder = MemoryStore::builder().max_keys(100).clock(clock);
    let restored = Limiter::new(
        builder.restore(&snapshot).unwrap(),
        limiter.policy().clone(),
    );
    let [before, after] = [&limiter, &restored].map(|of| of.peek("k").with_limits().now().unwrap());
    assert_eq!(before, after);
}

/// A request on several keys that all allow it is decided in place, as `admit` decides it.
#[test]
fn several_keys_are_decided_in_place_as_otherwise() {
    let mut random = fastrand::Rng::with_seed(12);
    let clock = ManualClock::new();
    let [in_place, general] = [Secret([0, 1]), Secret([2, 3])].map(|secret| {
        let builder = MemoryStore::builder().max_keys(1_000).clock(clock.clone());
        builder.build_with(secret).unwrap()
    });
    let policies = [
        "7/second burst=30",
        "fixed_window 40 per 2 s",
        "sliding_window_counter 900/minute",
    ];
    let plans = |store: &MemoryStore| policies.map(|text| store.plan(&text.parse().unwrap(), ""));
    let (plans, general_plans) = (plans(&in_place), plans(&general));
    let (mut taken, mut denied) = (0, 0);
    for step in 0..20_000 {
        clock.advance(Duration::from_millis(random.u64(0..40)));
        let first = random.u8(b'a'..b'e');
        let cost = Cost::from_thousandths(random.u64(0..6) * 500).unwrap();
        let (count, keys) = (random.usize(1..=3), [[first], [first + 1], [b'z']]);
        let decide = |plans: &[Plan; 3], store: &MemoryStore, is_in_place: bool| {
            let keys = keys.iter().map(|key| Key::new(key).unwrap());
            let requests = plans.iter().zip(keys).take(count);
            let requests: Vec<_> = requests.map(|(plan, key)| (plan, key, cost)).collect();
            let quick = is_in_place
                .then(|| store.check_allowed(&requests))
                .flatten();
            let is_quick = quick.is_some();
            let decisions = quick.map_or_else(
                || {
                    store
                        .admit(&requests)
                        .into_iter()
                        .map(|one| one.decision)
                        .collect()
                },
                SmallVec::into_vec,
            );
            (decisions, is_quick)
        };
        let (decisions, is_quick) = decide(&plans, &in_place, true);
        let (expected, _) = decide(&general_plans, &general, false);
        assert_eq!(decisions, expected, "step {step}");
        taken += u32::from(is_quick);
        denied += u32::from(expected.iter().any(Decision::is_denied));
    }
    assert!(taken > 5_000 && denied > 1_000, "{taken} {denied}");
    in_place.table.assert_sound();
}
