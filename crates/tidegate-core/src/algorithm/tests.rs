//! What the public API cannot reach: states that no request ever led to, and limits that change under a state.
#![allow(clippy::unwrap_used, clippy::panic)]

use fastrand::Rng;

use super::*;
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
        1 => StepState::Bucket(BucketState { free_at: a, part: b, mark: c as u8 }),
        2 => StepState::Window(WindowState { end: a, count: b }),
        _ => StepState::Counter(CounterState { end: a, current: b, previous: c }),
    }
}

const POLICIES: [&str; 12] = [
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
];

/// In a test build sums that wrap panic: there are none.
#[test]
fn no_state_no_time_and_no_cost_panics() {
    let mut random = Rng::with_seed(3);
    for text in POLICIES {
        let policy: Policy = text.parse().unwrap();
        let steps = policy.steps();
        for _ in 0..50_000 {
            let mut states: Vec<StepState> = steps.iter().map(|_| any_state(&mut random)).collect();
            for _ in 0..3 {
                let (now, cost) = (any_number(&mut random), any_number(&mut random).min(1_000_000_000_000));
                let (decision, _) = match random.bool() {
                    true => decide(steps, &mut states, now, cost),
                    false => refund(steps, &mut states, now, cost),
                };
                assert!(decision.remaining <= decision.limit, "{text} {states:?} {now} {cost}");
            }
        }
    }
}

/// What a bucket's state is after a step under one limit, seen by another.
fn ahead_after(before: &str, cost: u64, after: &str) -> (u64, u64) {
    let [before, after]: [Limit; 2] = [before, after].map(|text| text.parse::<Policy>().unwrap().limits()[0]);
    let (before, after) = (Step::new(&before), Step::new(&after));
    let (mut states, now) = ([StepState::Fresh], 1_000_000_000_000);
    let (taken, _) = decide(&[before], &mut states, now, cost);
    let (seen, _) = decide(&[after], &mut states, now, 0);
    (taken.reset_after, seen.reset_after)
}

#[test]
fn a_bucket_keeps_its_time_when_its_limit_changes() {
    // Whole to whole: to the nanosecond.
    assert_eq!(ahead_after("10/s", 3_000, "20/s"), (300_000_000, 300_000_000));
    // At most what the new capacity takes to refill.
    assert_eq!(ahead_after("10/s burst=50", 50_000, "10/s burst=5"), (5_000_000_000, 500_000_000));
    // Parts of another denominator: up to the next nanosecond, never down.
    let thirds = ahead_after("3/s", 1_000, "7/s burst=9");
    assert_eq!(thirds, (333_333_334, 333_333_334));
    assert_eq!(ahead_after("3/s", 1_000, "10/s"), (333_333_334, 333_333_334));
    assert_eq!(ahead_after("10/s", 1_000, "3/s"), (100_000_000, 100_000_000));
}

#[test]
fn windows_keep_their_counts_when_their_limit_changes() {
    for kind in ["fixed_window", "sliding_window_counter", "sliding_window_log"] {
        let mut states = [StepState::Fresh];
        let step = |limit: u64| Step::new(&format!("{kind} {limit}/hour").parse::<Policy>().unwrap().limits()[0]);
        let now = 7_200_000_000_000;
        assert_eq!(decide(&[step(10)], &mut states, now, 8_000).0.remaining, 2);
        assert_eq!(decide(&[step(20)], &mut states, now, 0).0.remaining, 12);
        let (lowered, _) = decide(&[step(5)], &mut states, now, 1_000);
        assert_eq!((lowered.remaining, lowered.is_allowed()), (0, false), "{kind}");
    }
}

#[test]
fn a_denial_and_a_look_write_nothing() {
    let policy: Policy = POLICIES[11].parse().unwrap();
    let steps = policy.steps();
    let (mut states, now) = (vec![StepState::Fresh; 4], 1_000_000_000_000);
    assert_eq!(decide(steps, &mut states, now, 3_000).1, Written::States);
    let before = states.clone();
    for (later, cost) in [(0, 1_000), (0, 0), (500_000_000, 4_000), (3_600_000_000_000, 0)] {
        assert_eq!(decide(steps, &mut states, now + later, cost).1, Written::Nothing);
        assert_eq!(states, before);
    }
    // But for a state from the future.
    assert_eq!(decide(steps, &mut states, 1, 0).1, Written::States);
    assert_ne!(states, before);
}
