//! The worst cases equal those that a naive search over all arrivals finds, and the arrivals that
//! they name are admitted by a real limiter.
// Helpers panic when a test should fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::collections::HashMap;
use std::time::Duration;

use tidegate_core::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Policy, Timestamp};
use tidegate_insight::{Difference, Explanation, WorstCase};

/// An edge of all windows in these tests: periods divide it.
const EDGE: u64 = 1_700_006_400_000_000_000;

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

/// Small policies of every algorithm, and of several limits.
fn small_policies() -> Vec<Policy> {
    let mut policies = Vec::new();
    for algorithm in Algorithm::ALL {
        for limit in 1..=3 {
            policies.push(policy(&format!("{algorithm} {limit}/6 ms")));
            if algorithm.is_bucket() {
                for burst in [1, 2, 4] {
                    policies.push(policy(&format!("{algorithm} {limit}/6 ms burst={burst}")));
                }
            }
        }
    }
    for limit in 1..=3 {
        policies.push(policy(&format!(
            "fixed_window {limit}/6 ms anchor=first_hit"
        )));
    }
    policies
}

/// The instants at which requests may arrive: a grid on which every token of the small buckets and
/// every edge lies, and the instants just before.
fn grid() -> Vec<i64> {
    let mut instants: Vec<i64> = (-3..=6)
        .flat_map(|step: i64| [step * 2_000_000 - 1, step * 2_000_000])
        .collect();
    instants.extend((-2..=4).map(|step: i64| step * 3_000_000));
    instants.sort_unstable();
    instants.dedup();
    instants
}

/// The period of the small policies.
const PERIOD: i64 = 6_000_000;

/// The usage of one key under one limit, written from the definitions. Equal futures have equal
/// states, so that the search visits each once.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Usage {
    /// Used tokens at a time, in fractions: `PERIOD` of them are one token.
    Bucket(i64, i64),
    /// The start and the count of the window.
    Window(i64, i64),
    /// The index of the window, its count and that of the previous one.
    Counter(i64, i64, i64),
    Log(Vec<i64>),
}

impl Usage {
    fn new(limit: &Limit) -> Self {
        match limit.algorithm() {
            Algorithm::FixedWindow => Self::Window(i64::MIN / 2, 0),
            Algorithm::SlidingWindowCounter => Self::Counter(-100, 0, 0),
            Algorithm::SlidingWindowLog => Self::Log(Vec::new()),
            _ => Self::Bucket(-100 * PERIOD, 0),
        }
    }

    /// Returns the usage as of `now`.
    fn at(&self, limit: &Limit, now: i64) -> Self {
        match self {
            Self::Bucket(at, used) => {
                Self::Bucket(now, (used - (now - at) * limit.limit() as i64).max(0))
            }
            Self::Window(start, _) if now - start >= PERIOD => {
                let aligned = now.div_euclid(PERIOD) * PERIOD;
                Self::Window(
                    if limit.opens_with_first_hit() {
                        i64::MIN / 2
                    } else {
                        aligned
                    },
                    0,
                )
            }
            Self::Counter(window, current, previous) => match now.div_euclid(PERIOD) - window {
                0 => Self::Counter(*window, *current, *previous),
                1 => Self::Counter(window + 1, 0, *current),
                _ => Self::Counter(now.div_euclid(PERIOD), 0, 0),
            },
            Self::Log(times) => Self::Log(
                times
                    .iter()
                    .copied()
                    .filter(|at| now - at < PERIOD)
                    .collect(),
            ),
            Self::Window(..) => self.clone(),
        }
    }

    /// Takes one request, if it is allowed.
    fn take(&self, limit: &Limit, now: i64) -> Option<Self> {
        let most = limit.capacity() as i64;
        match self.at(limit, now) {
            Self::Bucket(at, used) if used + PERIOD <= most * PERIOD => {
                Some(Self::Bucket(at, used + PERIOD))
            }
            Self::Window(start, count) if count < most => Some(Self::Window(
                if count == 0 && limit.opens_with_first_hit() {
                    now
                } else {
                    start
                },
                count + 1,
            )),
            Self::Counter(window, current, previous)
                if previous * (PERIOD - now.rem_euclid(PERIOD)) + (current + 1) * PERIOD
                    <= most * PERIOD =>
            {
                Some(Self::Counter(window, current + 1, previous))
            }
            Self::Log(mut times) if (times.len() as i64) < most => {
                times.push(now);
                Some(Self::Log(times))
            }
            _ => None,
        }
    }
}

/// Finds the most requests that pass in `stretch`, over all arrivals on the grid.
fn brute_force(policy: &Policy, stretch: i64) -> u64 {
    let [limit] = policy.limits() else {
        panic!("{policy}")
    };
    let grid = grid();
    let mut most = 0;
    for start in &grid {
        let mut states = HashMap::from([(Usage::new(limit), 0_u64)]);
        for now in grid.iter().copied().filter(|now| *now < start + stretch) {
            let mut next = HashMap::new();
            for (usage, counted) in states {
                let (mut usage, mut counted) = (Some(usage.at(limit, now)), counted);
                while let Some(reached) = usage {
                    usage = reached.take(limit, now);
                    let best = next.entry(reached).or_insert(counted);
                    *best = counted.max(*best);
                    counted += u64::from(now >= *start);
                }
            }
            states = next;
        }
        most = most.max(states.into_values().max().unwrap_or(0));
    }
    most
}

#[test]
fn worst_cases_equal_a_search_over_all_arrivals() {
    for policy in small_policies() {
        for stretch in [6, 12] {
            let worst = WorstCase::of(&policy, Duration::from_millis(stretch));
            let searched = brute_force(&policy, stretch as i64 * 1_000_000);
            assert_eq!(worst.most, searched, "{policy} in {stretch} ms");
        }
    }
}

/// Runs the arrivals through a real limiter and returns how many pass in the stretch.
fn passed(policy: &Policy, worst: &WorstCase) -> u64 {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .clock(clock.clone())
        .max_keys(64)
        .build()
        .unwrap();
    let limiter = Limiter::new(store, policy.clone());
    let mut instants: Vec<(i64, u64)> = worst
        .arrivals
        .iter()
        .flat_map(|group| (0..group.repeat).map(|i| (group.instant(i), group.count)))
        .collect();
    instants.sort_unstable();
    let mut passed = 0;
    // Periods of months do not divide the usual edge.
    let period = policy.limits()[0].period().as_nanos() as u64;
    let edge = EDGE.div_ceil(period) * period;
    for (at, count) in instants {
        clock.set(Timestamp::from_nanos(edge.checked_add_signed(at).unwrap()));
        let decision = limiter.check("key").cost(count).now().unwrap();
        assert!(decision.is_allowed(), "{policy}: {count} at {at} ns");
        let is_inside = at >= worst.start_ns && at < worst.start_ns + worst.stretch_ns as i64;
        passed += if is_inside { count } else { 0 };
    }
    passed
}

#[test]
fn the_arrivals_attain_the_worst_case() {
    let mut policies = small_policies();
    for text in [
        "100/minute",
        "7/s burst=3",
        "gcra 1000/hour burst=5000",
        "fixed_window 5000/day",
        "fixed_window 100/month",
        "sliding_window_counter 500/hour",
        "sliding_window_counter 7/s",
        "sliding_window_log 40/minute",
        "leaky_bucket 3/minute",
        "sliding_window_counter 2/5 ms",
        "fixed_window 60/minute anchor=first_hit",
        "sliding_window_counter 1/s",
    ] {
        policies.push(policy(text));
    }
    for policy in policies {
        for worst in Explanation::of(&policy, None).worst_cases {
            assert_eq!(
                (passed(&policy, &worst), worst.attained),
                (worst.most, worst.most),
                "{policy}"
            );
        }
    }
}

#[test]
fn several_limits_attain_their_bound_or_say_that_they_do_not() {
    for (text, is_exact) in [
        ("10/s; fixed_window 100/minute", true),
        ("5/s burst=5; sliding_window_log 20/minute", true),
        ("fixed_window 3/s; fixed_window 100/hour", true),
        (
            "2/s; sliding_window_counter 60/minute; fixed_window 1000/day",
            false,
        ),
    ] {
        let policy = policy(text);
        for worst in Explanation::of(&policy, None).worst_cases {
            assert_eq!(passed(&policy, &worst), worst.attained, "{text}");
            assert!(worst.attained <= worst.most, "{text}");
            if is_exact {
                assert_eq!(
                    worst.attained, worst.most,
                    "{text}: {} ns",
                    worst.stretch_ns
                );
            }
        }
    }
}

/// Replays a difference through two real limiters.
fn assert_differs(first: &Policy, second: &Policy, difference: &Difference) {
    let clock = ManualClock::new();
    let limiter = |policy: &Policy| {
        let store = MemoryStore::builder()
            .clock(clock.clone())
            .max_keys(64)
            .build()
            .unwrap();
        Limiter::new(store, policy.clone())
    };
    let limiters = [limiter(first), limiter(second)];
    let mut last = [false; 2];
    for step in &difference.steps {
        for index in 0..step.count {
            clock.set(Timestamp::from_nanos(
                EDGE.checked_add_signed(step.at_ns).unwrap(),
            ));
            let decisions =
                [0, 1].map(|i: usize| limiters[i].check("k").now().unwrap().is_allowed());
            let is_last = Some(step) == difference.steps.last() && index + 1 == step.count;
            assert_eq!(
                decisions[0] != decisions[1],
                is_last,
                "{first} and {second}"
            );
            last = decisions;
        }
    }
    assert_eq!(last[0], difference.first_allows);
}

#[test]
fn differences_are_found_and_short() {
    for (first, second, requests) in [
        ("5/minute", "7/minute", 6),
        ("token_bucket 5/minute", "fixed_window 5/minute", 6),
        ("fixed_window 5/minute", "sliding_window_log 5/minute", 6),
        (
            "fixed_window 1/minute",
            "fixed_window 1/minute anchor=first_hit",
            2,
        ),
        (
            "sliding_window_counter 2/minute",
            "sliding_window_log 2/minute",
            3,
        ),
        (
            "10/s burst=20",
            "10/s burst=20; fixed_window 100/minute",
            101,
        ),
    ] {
        let (a, b) = (policy(first), policy(second));
        let Some(difference) = Difference::between(&a, &b) else {
            panic!("{first} and {second}: none found");
        };
        assert_differs(&a, &b, &difference);
        assert!(
            difference.requests() <= requests,
            "{first}, {second}: {difference:?}"
        );
    }
    for (first, second) in [("gcra 5/minute", "5/minute"), ("2/s; 9/h", "9/h; 2/s")] {
        assert_eq!(Difference::between(&policy(first), &policy(second)), None);
    }
}

#[test]
fn waits_hold_by_trial() {
    for text in [
        "5/minute",
        "sliding_window_counter 4/minute",
        "fixed_window 3/s",
        "3/s debt=5",
        "sliding_window_log 3/s",
        "sliding_window_counter 4/s debt=3",
    ] {
        let policy = policy(text);
        let explanation = Explanation::of(&policy, None);
        let clock = ManualClock::at(Timestamp::from_nanos(EDGE));
        let store = MemoryStore::builder()
            .clock(clock.clone())
            .max_keys(64)
            .build()
            .unwrap();
        let limiter = Limiter::new(store, policy);
        let spent = limiter.check("k").cost(explanation.at_once).now().unwrap();
        assert!(spent.is_allowed());
        limiter.charge("k", 1_000_u64).now().unwrap();
        let peek = limiter.peek("k").now().unwrap();
        let wait = u64::try_from(peek.retry_after().unwrap().as_nanos()).unwrap();
        assert_eq!(wait, explanation.longest_wait_ns, "{text}");
        let reset = u64::try_from(peek.reset_after().as_nanos()).unwrap();
        assert_eq!(reset, explanation.refill_ns, "{text}");
    }
}

#[test]
fn warnings_name_the_mistake() {
    for (text, cost, expected) in [
        (
            "10/s; 1000000/second",
            None,
            "token_bucket 1000000/second: never denies, because token_bucket 10/second",
        ),
        (
            "100/minute; fixed_window 500/minute",
            None,
            "fixed_window 500/minute: never denies",
        ),
        ("1/hour burst=1000", None, "the burst hides the rate"),
        (
            "10/s",
            Some("25"),
            "a request of cost 25 is never allowed; its burst must be at least 25",
        ),
        ("fixed_window 100/month", None, "a month is 30 days"),
        ("fixed_window 100/year", None, "a year is 365 days"),
        ("sliding_window_log 1000000/day", None, "32 MB"),
        ("60/minute burst=1", None, "two requests at once"),
        ("fixed_window 60/minute", None, "twice the limit"),
    ] {
        let cost = cost.map(|cost| cost.parse().unwrap());
        let warnings = Explanation::of(&policy(text), cost).warnings;
        assert!(
            warnings.iter().any(|warning| warning.contains(expected)),
            "{text}: {warnings:?}"
        );
    }
    for text in [
        "100/minute burst=20",
        "10/s burst=20; sliding_window_log 1000/hour",
        "50/s",
    ] {
        assert_eq!(
            Explanation::of(&policy(text), None).warnings,
            Vec::<String>::new(),
            "{text}"
        );
    }
}
