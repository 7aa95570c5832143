//! For stores that keep and decide in a language of their own: what they kept, as the steps of this crate read it.
//!
//! *The store decides, Rust explains*: the store hands back what it had kept and its time, and every figure of the
//! decision is worked out here, by the code that the memory store runs.

use std::collections::HashSet;

use crate::algorithm::{CounterState, LogState, Step, StepState, WindowState, gcd};
use crate::clock::Timestamp;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::Policy;
use crate::record::Record;
use crate::store::{Store, StoreError};

/// Such stores count in microseconds.
const TICK: u64 = 1_000;

/// Decides on one request that several keys must all meet, one after the other: what was taken is given back on a refusal.
/// All are asked, whoever denies, so that the longest wait is known.
///
/// # Errors
/// If the store could not answer, and nobody denied: who denies stands. What was taken has been given back, as far as it
/// could be.
pub async fn check_in_order<S: Store + ?Sized>(
    store: &S,
    requests: &[(&S::Plan, Key<'_>, Cost)],
) -> Result<Vec<Option<Decision>>, StoreError> {
    let mut decisions = vec![None; requests.len()];
    let mut trouble = None;
    for ((plan, key, cost), decision) in requests.iter().zip(&mut decisions) {
        match store.check(plan, *key, *cost).await {
            Ok(answer) => *decision = Some(answer),
            Err(error) => {
                trouble = Some(error);
                break;
            }
        }
    }
    let is_denied = decisions.iter().flatten().any(Decision::is_denied);
    if trouble.is_some() || is_denied {
        for ((plan, key, cost), decision) in requests.iter().zip(&mut decisions) {
            if decision.is_some_and(|decision| decision.is_allowed()) {
                // What cannot be given back stays taken.
                *decision = store.refund(plan, *key, *cost).await.ok();
            }
        }
    }
    match trouble {
        Some(error) if !is_denied => Err(error),
        _ => Ok(decisions),
    }
}

/// Runs of requests in groups, in order: within a group no two runs have a key in common, and they may be asked at a time.
/// What is asked at a time across a network may be decided in any order.
pub(crate) fn groups_apart<'r, R>(runs: impl Iterator<Item = &'r [R]>, key: impl Fn(&R) -> &[u8]) -> Vec<Vec<&'r [R]>> {
    let mut groups: Vec<Vec<&[R]>> = vec![Vec::new()];
    let mut keys: HashSet<&[u8]> = HashSet::new();
    for run in runs {
        if run.iter().any(|request| keys.contains(key(request))) {
            groups.push(Vec::new());
            keys.clear();
        }
        keys.extend(run.iter().map(&key));
        if let Some(group) = groups.last_mut() {
            group.push(run);
        }
    }
    groups
}

/// What a store kept for one limit of one key, times in microseconds, amounts in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Nothing.
    Fresh,
    /// A bucket that is free again at `free_at` + `part` / `denominator`, the rate's own denominator in microseconds.
    Bucket {
        /// Whole microseconds.
        free_at: u64,
        /// The rest, in parts of the denominator.
        part: u64,
        /// The denominator.
        denominator: u64,
    },
    /// A fixed window.
    Window {
        /// When it ends.
        end: u64,
        /// What was admitted in it.
        count: u64,
    },
    /// A sliding window counter.
    Counter {
        /// When the current window ends.
        end: u64,
        /// What was admitted in it.
        current: u64,
        /// What was admitted in the one before.
        previous: u64,
    },
    /// What is live of a log, and as much of where it stands as a decision needs.
    Log {
        /// The oldest entry that has to expire for the request to fit, and all that is live up to and with it.
        waits_for: Option<(u64, u64)>,
        /// When the newest entry was made.
        newest: u64,
        /// All that is live.
        live: u64,
    },
}

/// The record of what a store kept, one state a limit.
#[must_use]
pub fn record(policy: &Policy, stored: &[Stored]) -> Record {
    Record::of_states(policy.steps().iter().zip(stored).map(|(step, stored)| state(step, *stored)))
}

/// Puts what a store keeps for one limit into a record: a log hands over what one request needs of it, each time.
pub fn replace(policy: &Policy, record: &mut Record, limit: usize, stored: Stored) {
    let steps = policy.steps();
    if let (Some(step), Some(slot)) = (steps.get(limit), record.states(steps).get_mut(limit)) {
        *slot = state(step, stored);
    }
}

/// Decides as [`Policy::decide`], for a store that counts in microseconds.
pub fn decide(policy: &Policy, record: &mut Record, now: Timestamp, cost: Cost) -> Decision {
    policy.decide(record, now, cost).rounded_up(TICK)
}

fn state(step: &Step, stored: Stored) -> StepState {
    let nanos = |micros: u64| micros.saturating_mul(TICK);
    match (stored, step) {
        (Stored::Bucket { free_at, part, denominator }, Step::WholeBucket(bucket)) => {
            StepState::Bucket(bucket.state_of_micros(free_at, part, denominator))
        }
        (Stored::Bucket { free_at, part, denominator }, Step::Bucket(bucket)) => {
            StepState::Bucket(bucket.state_of_micros(free_at, part, denominator))
        }
        (Stored::Window { end, count }, Step::FixedWindow(_)) => {
            StepState::Window(WindowState { end: nanos(end), count })
        }
        (Stored::Counter { end, current, previous }, Step::SlidingWindowCounter(_)) => {
            StepState::Counter(CounterState { end: nanos(end), current, previous })
        }
        (Stored::Log { waits_for, newest, live }, Step::SlidingWindowLog(_)) if live > 0 => {
            let newest = (nanos(newest), live);
            let waits_for = waits_for.map(|(at, total)| (nanos(at), total)).filter(|first| *first != newest);
            StepState::Log(LogState::of_totals(waits_for.into_iter().chain([newest])))
        }
        _ => StepState::Fresh,
    }
}

/// In lowest terms, a rate's numbers are as small as they can be.
#[must_use]
pub fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    gcd(a, b)
}

/// Runs a future to its end on this thread.
pub fn wait<F: Future>(future: F) -> F::Output {
    crate::blocking::wait(future)
}
