//! Tests of states that the public API cannot create, and of limits that change under a state.
#![allow(clippy::unwrap_used, clippy::panic)]

use fastrand::Rng;

use super::*;
use crate::identity::BucketNumbers;
use crate::policy::{Limit, Policy};

fn any_number(random: &mut Rng) -> u64 {
    match random.u8(0..4) {
        0 => random.u64(..),
        1 => random.u64(..) >> random.u32(0..64),
        2 => u64::MAX - random.u64(0..4),
        _ => random.u64(0..4),
    }
}

fn any_state(random: &mut Rng) -> StepState {
    let mut number = || any_number(random);
    let (a, b, c) = (number(), number(), number());
    match random.u8(0..4) {
        0 => StepState::Fresh,
        1 => StepState::Bucket(BucketVersions {
            numbers: BucketNumbers::default(),
            state: BucketState {
                free_at: a,
                part: b,
                denominator_tag: c as u8,
            },
            others: None,
        }),
        2 => StepState::Window(WindowState { end: a, count: b }),
        _ => StepState::Counter(CounterState {
            end: a,
            current: b,
            previous: c,
        }),
    }
}

const POLICIES: [&str; 14] = [
    "1/s",
    "7/s burst=3",
    "1000000000/ms",
    "999999937/366 days",
    "leaky_bucket 3/minute burst=100000000",
    "gcra 1/366 days burst=100",
    "fixed_window 1000000000/366 days",
    "fixed_window 1/ms anchor=first_hit",
    "sliding_window_counter 1000000000/366 days",
    "sliding_window_counter 1/ms",
    "sliding_window_log 1000000/366 days",
    "10/s; fixed_window 5/ms; sliding_window_counter 7/hour; sliding_window_log 3/s",
    "7/s burst=3 debt=5; fixed_window 3/hour debt=1000000000",
    "sliding_window_counter 3/hour debt=9; sliding_window_log 7/s debt=1000000000",
];

/// Overflow panics in a test build, so this test finds any sum that wraps.
#[test]
fn no_combination_of_state_time_and_cost_panics() {
    let mut random = Rng::with_seed(3);
    for text in POLICIES {
        let policy: Policy = text.parse().unwrap();
        let steps = policy.steps();
        for _ in 0..50_000 {
            let mut states: Vec<StepState> = steps.iter().map(|_| any_state(&mut random)).collect();
            for _ in 0..3 {
                let (now, cost) = (
                    any_number(&mut random),
                    any_number(&mut random).min(1_000_000_000_000),
                );
                let claims: Vec<Claim> = steps
                    .iter()
                    .map(|_| Claim {
                        time: any_number(&mut random),
                        part: random.u64(0..1_000_000_000_000),
                    })
                    .collect();
                let other = random.u64(0..=cost);
                let decision = match random.u8(0..6) {
                    0 => refund(steps, &mut states, now, cost).0,
                    1 => settle(steps, &mut states, &claims, now, cost, other).0,
                    2 => settle(steps, &mut states, &claims, now, other, cost).0,
                    3 => charge(steps, &mut states, now, cost).0,
                    4 => peek(steps, &mut states, now, cost).0,
                    _ => decide(steps, &mut states, now, cost).0,
                };
                assert!(
                    decision.remaining <= decision.limit,
                    "{text} {states:?} {now} {cost}"
                );
            }
        }
    }
}

/// Compares the answer of a limit with the decision on the same state. Returns the number of
/// admitted and of denied requests that were answered.
fn compare_answers<A>(
    step: &A,
    random: &mut Rng,
    mut any: impl FnMut(&mut Rng, u64) -> A::State,
) -> [u32; 2]
where
    A: Algorithm<State: Copy + PartialEq + std::fmt::Debug> + std::fmt::Debug,
{
    let mut answered = [0, 0];
    for _ in 0..20_000 {
        let now = match random.u8(0..8) {
            0 => any_number(random),
            _ => 1_700_000_000_000_000_000 + random.u64(..) % 100_000_000_000_000_000,
        };
        let cost = match random.u8(0..4) {
            0 => THOUSANDTHS,
            1 => any_number(random).min(1_000_000_000_000),
            2 => step.capacity_cost() - random.u64(0..THOUSANDTHS),
            _ => random.u64(0..=step.capacity_cost()),
        };
        let state = any(random, now);
        let Some(answer) = step.answer(&state, now, cost) else {
            continue;
        };
        let mut states = [state];
        let (decision, change) = decide(std::slice::from_ref(step), &mut states, now, cost);
        let context = format!("{step:?} {state:?} now={now} cost={cost}: {decision:?}");
        assert_eq!(decision.is_allowed(), answer.taken.is_some(), "{context}");
        assert_eq!(
            change == StateChange::Changed,
            answer.taken.is_some(),
            "{context}"
        );
        assert_eq!(states[0], answer.taken.unwrap_or(state), "{context}");
        let figures = (answer.wait, answer.remaining, answer.reset_after);
        let expected = (
            decision.wait,
            u64::from(decision.remaining),
            decision.reset_after,
        );
        assert_eq!(figures, expected, "{context}");
        answered[usize::from(answer.taken.is_none())] += 1;
    }
    answered
}

/// Returns a number of nanoseconds from 0 to a bit more than `most`.
fn near(random: &mut Rng, most: u64) -> u64 {
    match random.u8(0..4) {
        0 => random.u64(0..4),
        1 => most.saturating_sub(random.u64(0..4)),
        2 => most.saturating_add(random.u64(0..4)),
        _ => random.u64(0..=most),
    }
}

#[test]
fn the_answer_of_a_limit_equals_the_decision() {
    let mut random = Rng::with_seed(5);
    let single = POLICIES.iter().filter(|text| !text.contains(';'));
    let more = [
        "1000000000/s",
        "7/day burst=100000 debt=9",
        "fixed_window 100/minute debt=50",
        "sliding_window_counter 8000000/day",
        "sliding_window_counter 100/minute debt=50",
    ];
    for text in single.chain(&more) {
        let limit = text.parse::<Policy>().unwrap().limits()[0];
        let (capacity, period) = (limit.most_counted() * THOUSANDTHS, limit.period_ns());
        let bucket = |random: &mut Rng, now: u64, full: u64, denominator: u64, tag: u8| {
            let part = near(random, denominator - 1).min(denominator - 1);
            BucketState {
                free_at: now
                    .saturating_add(near(random, full))
                    .saturating_sub(random.u64(0..3)),
                part,
                denominator_tag: if part == 0 { 0 } else { tag },
            }
        };
        let answered = match Step::new(&limit) {
            Step::WholeBucket(step) => {
                let full = step.reset_after(&step.emptied(0), 0);
                let any = |random: &mut Rng, now| bucket(random, now, full, 1, 0);
                compare_answers(&step.with_any_rate(), &mut random, any);
                compare_answers(&step, &mut random, any)
            }
            Step::Bucket(step) => {
                let (full, tag) = (
                    step.reset_after(&step.emptied(0), 0),
                    step.emptied(0).denominator_tag,
                );
                let any =
                    |random: &mut Rng, now| bucket(random, now, full, step.denominator(), tag);
                compare_answers(&step.with_any_rate(), &mut random, any);
                compare_answers(&step, &mut random, any)
            }
            Step::FixedWindow(step) => {
                compare_answers(&step, &mut random, |random, now| WindowState {
                    end: now
                        .saturating_add(near(random, period))
                        .saturating_sub(random.u64(0..3)),
                    count: near(random, capacity),
                })
            }
            Step::SlidingWindowCounter(step) => {
                compare_answers(&step, &mut random, |random, now| {
                    let [current, previous] = [(); 2].map(|()| near(random, capacity));
                    CounterState {
                        end: now
                            .saturating_add(near(random, period))
                            .saturating_sub(random.u64(0..=period)),
                        current,
                        previous,
                    }
                })
            }
            Step::SlidingWindowLog(_) => continue,
        };
        let is_wide =
            text.contains("366 days") && !text.contains("fixed") && !text.contains("burst");
        assert!(
            is_wide || answered.iter().all(|count| *count > 500),
            "{text}: {answered:?}"
        );
    }
}

/// Returns the time until a bucket of any rate is free after a step under one limit. The first
/// value is reported by that limit, the second by another limit.
fn ahead_after(before: &str, cost: u64, after: &str) -> (u64, u64) {
    let [before, after]: [Limit; 2] =
        [before, after].map(|text| text.parse::<Policy>().unwrap().limits()[0]);
    let [before, after] = [before, after].map(|limit| Step::new(&limit).with_any_rate().unwrap());
    let (mut states, now) = ([StepState::Fresh], 1_000_000_000_000);
    let (taken, _) = decide(&[before], &mut states, now, cost);
    let (seen, change) = decide(&[after], &mut states, now, 0);
    assert_eq!(change, StateChange::Unchanged);
    (taken.reset_after, seen.reset_after)
}

#[test]
fn a1_a_bucket_of_any_rate_keeps_its_time_when_the_rate_changes() {
    // Both denominators are 1, so the times are equal to the nanosecond.
    assert_eq!(
        ahead_after("10/s", 3_000, "20/s"),
        (300_000_000, 300_000_000)
    );
    // The state is not clamped to a smaller capacity.
    assert_eq!(
        ahead_after("10/s burst=50", 50_000, "10/s burst=5"),
        (5_000_000_000, 5_000_000_000)
    );
    // A fraction with another denominator is rounded up to the next nanosecond, never down.
    let thirds = ahead_after("3/s", 1_000, "7/s burst=9");
    assert_eq!(thirds, (333_333_334, 333_333_334));
    assert_eq!(
        ahead_after("3/s", 1_000, "10/s"),
        (333_333_334, 333_333_334)
    );
    assert_eq!(
        ahead_after("10/s", 1_000, "3/s"),
        (100_000_000, 100_000_000)
    );
}

#[test]
fn a1_a_smaller_capacity_denies_a_bucket_of_any_rate_for_the_true_time() {
    let step = |text: &str| {
        Step::new(&text.parse::<Policy>().unwrap().limits()[0])
            .with_any_rate()
            .unwrap()
    };
    let (large, small) = ([step("gcra 10/s burst=50")], [step("gcra 10/s burst=5")]);
    let (mut states, now) = ([StepState::Fresh], 1_000_000_000_000);
    let _ = decide(&large, &mut states, now, 50_000);
    let (denied, change) = decide(&small, &mut states, now, 1_000);
    assert_eq!((denied.is_denied(), change), (true, StateChange::Unchanged));
    let wait = denied.retry_after().unwrap().as_nanos() as u64;
    assert_eq!(wait, 4_600_000_000);
    assert!(
        decide(&small, &mut states.clone(), now + wait - 1, 1_000)
            .0
            .is_denied()
    );
    assert!(
        decide(&small, &mut states.clone(), now + wait, 1_000)
            .0
            .is_allowed()
    );
    // The large bucket is as empty as before.
    assert!(decide(&large, &mut states, now, 1_000).0.is_denied());
}

#[test]
fn a1_buckets_with_different_numbers_in_one_record_count_separately() {
    let [old, new]: [Policy; 2] = [
        "100/minute; fixed_window 1000/day",
        "100/minute burst=20; fixed_window 900/day",
    ]
    .map(|text| text.parse().unwrap());
    let (mut record, now) = (
        crate::Record::default(),
        crate::Timestamp::from_nanos(86_400_000_000_000),
    );
    let check = |policy: &Policy, record: &mut crate::Record, cost| {
        policy.decide(record, now, crate::Cost::from_thousandths(cost).unwrap())
    };
    assert!(check(&old, &mut record, 100_000).is_allowed());
    assert!(check(&old, &mut record, 1_000).is_denied());
    // The new bucket is another bucket, so it is full. The window keeps its count.
    assert_eq!(check(&new, &mut record, 0).remaining(), 20);
    assert!(check(&new, &mut record, 20_000).is_allowed());
    // Two servers that alternate never free either bucket.
    for _ in 0..100 {
        assert!(check(&old, &mut record, 1_000).is_denied());
        assert!(check(&new, &mut record, 1_000).is_denied());
    }
    let window = ["fixed_window 1000/day; 100/minute"].map(|text| text.parse::<Policy>().unwrap());
    assert_eq!(window[0].stored_order(), None);
    assert_eq!(
        record.as_states()[0],
        StepState::Window(WindowState {
            end: 172_800_000_000_000,
            count: 120_000
        })
    );
}

#[test]
fn windows_keep_their_counts_when_their_limit_changes() {
    for kind in [
        "fixed_window",
        "sliding_window_counter",
        "sliding_window_log",
    ] {
        let mut states = [StepState::Fresh];
        let step = |limit: u64| {
            Step::new(
                &format!("{kind} {limit}/hour")
                    .parse::<Policy>()
                    .unwrap()
                    .limits()[0],
            )
        };
        let now = 7_200_000_000_000;
        assert_eq!(decide(&[step(10)], &mut states, now, 8_000).0.remaining, 2);
        assert_eq!(decide(&[step(20)], &mut states, now, 0).0.remaining, 12);
        let (lowered, _) = decide(&[step(5)], &mut states, now, 1_000);
        assert_eq!(
            (lowered.remaining, lowered.is_allowed()),
            (0, false),
            "{kind}"
        );
    }
}

#[test]
fn a_denial_and_a_peek_write_nothing() {
    let policy: Policy = POLICIES[11].parse().unwrap();
    let steps = policy.steps();
    let (mut states, now) = (vec![StepState::Fresh; 4], 1_000_000_000_000);
    assert_eq!(
        decide(steps, &mut states, now, 3_000).1,
        StateChange::Changed
    );
    let before = states.clone();
    for (later, cost) in [
        (0, 1_000),
        (0, 0),
        (500_000_000, 4_000),
        (3_600_000_000_000, 0),
    ] {
        assert_eq!(
            decide(steps, &mut states, now + later, cost).1,
            StateChange::Unchanged
        );
        assert_eq!(states, before);
    }
    // A state from the future is the exception.
    assert_eq!(decide(steps, &mut states, 1, 0).1, StateChange::Changed);
    assert_ne!(states, before);
}
