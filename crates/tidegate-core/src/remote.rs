//! For stores that keep and decide in a language of their own: what they kept, as the steps of this crate read it.
//!
//! *The store decides, Rust explains*: the store hands back what it had kept and its time, and every figure of the
//! decision is worked out here, by the code that the memory store runs.

use std::collections::HashSet;

use crate::algorithm::{Claim, Claims, CounterState, LogState, Step, StepState, WindowState, gcd};
use crate::clock::Timestamp;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::{Limit, Policy};
use crate::record::{Record, Settlement};
use crate::store::{Admission, Store, StoreError};

/// Such stores count in microseconds.
const TICK: u64 = 1_000;

/// Decides on one request that several keys must all meet, one after the other: what was taken is given back on a denial.
/// All are asked, whichever denies, so that the longest wait is known.
///
/// # Errors
/// If the store could not answer, and no key denied: a denial stands. What was taken has been given back, as far as it
/// could be.
pub async fn check_in_order<S: Store + ?Sized>(
    store: &S,
    requests: &[(&S::Plan, Key<'_>, Cost)],
) -> Result<Vec<Option<Admission>>, StoreError> {
    let mut admissions: Vec<Option<Admission>> = vec![None; requests.len()];
    let mut failure = None;
    for ((plan, key, cost), admission) in requests.iter().zip(&mut admissions) {
        match store.admit_one(plan, *key, *cost).await {
            Ok(answer) => *admission = Some(answer),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let is_denied = admissions
        .iter()
        .flatten()
        .any(|(decision, _)| decision.is_denied());
    if failure.is_some() || is_denied {
        for ((plan, key, cost), admission) in requests.iter().zip(&mut admissions) {
            if let Some((_, claims)) = admission.take_if(|(decision, _)| decision.is_allowed()) {
                let settlement = Settlement {
                    claims: &claims,
                    taken: *cost,
                    actual: Cost::ZERO,
                };
                // What cannot be given back stays taken.
                let look = store.settle(plan, *key, &settlement).await.ok();
                *admission = look.map(|decision| (decision, Claims::new()));
            }
        }
    }
    match failure {
        Some(error) if !is_denied => Err(error),
        _ => Ok(admissions),
    }
}

/// Runs of requests in groups, in order: within a group no two runs have a key in common, and they may be asked at a time.
/// What is asked at a time across a network may be decided in any order.
pub(crate) fn groups_apart<'r, R>(
    runs: impl Iterator<Item = &'r [R]>,
    key: impl Fn(&R) -> &[u8],
) -> Vec<Vec<&'r [R]>> {
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

/// The record of what a store kept, one state a limit, in stored order.
#[must_use]
pub fn record(policy: &Policy, stored: &[Stored]) -> Record {
    let states = stored
        .iter()
        .enumerate()
        .filter_map(|(limit, stored)| Some(state(stored_step(policy, limit)?, *stored)));
    Record::of_states(states)
}

/// Puts what a store keeps for one limit, by its number in stored order, into a record: a log hands over what one request
/// needs of it, each time.
pub fn replace(policy: &Policy, record: &mut Record, limit: usize, stored: Stored) {
    if let Some(step) = stored_step(policy, limit) {
        record.set(limit, state(step, stored));
    }
}

/// The step of a limit by its number in stored order.
fn stored_step(policy: &Policy, limit: usize) -> Option<&Step> {
    let index = policy.stored_order().map_or(Some(limit), |order| {
        order.get(limit).copied().map(usize::from)
    })?;
    policy.steps().get(index)
}

/// The limits of a policy, in stored order.
pub fn stored_limits(policy: &Policy) -> impl Iterator<Item = &Limit> {
    let order = policy.stored_order();
    (0..policy.limits().len()).filter_map(move |index| {
        policy
            .limits()
            .get(order.map_or(index, |order| usize::from(order[index])))
    })
}

/// Where a limit, by its number in stored order, counted a request. Of a bucket: in microseconds and parts of `denominator`,
/// the rate's own in microseconds.
#[must_use]
pub fn claim_in_micros(
    policy: &Policy,
    claims: &[Claim],
    limit: usize,
    denominator: u64,
) -> (u64, u64) {
    let index = policy.stored_order().map_or(limit, |order| {
        order.get(limit).copied().map_or(limit, usize::from)
    });
    let claim = claims.get(index).copied().unwrap_or_default();
    let own = match policy.steps().get(index) {
        Some(Step::WholeBucket(bucket)) => bucket.denominator(),
        Some(Step::Bucket(bucket)) => bucket.denominator(),
        _ => return (claim.time / TICK, claim.part),
    };
    let parts = u128::from(claim.time % TICK) * u128::from(own) + u128::from(claim.part);
    let part = parts * u128::from(denominator) / (u128::from(own) * u128::from(TICK));
    (claim.time / TICK, u64::try_from(part).unwrap_or(0))
}

/// Sets the claim on a limit, by its number in stored order, to a time in microseconds and an amount.
pub fn set_claim(
    policy: &Policy,
    claims: &mut [Claim],
    limit: usize,
    (micros, amount): (u64, u64),
) {
    let index = policy.stored_order().map_or(limit, |order| {
        order.get(limit).copied().map_or(limit, usize::from)
    });
    if let Some(claim) = claims.get_mut(index) {
        *claim = Claim {
            time: micros.saturating_mul(TICK),
            part: amount,
        };
    }
}

/// Decides as [`Policy::decide`], for a store that counts in microseconds.
pub fn decide(policy: &Policy, record: &mut Record, now: Timestamp, cost: Cost) -> Decision {
    policy.decide(record, now, cost).rounded_up(TICK)
}

/// Admits as [`Policy::admit`], for a store that counts in microseconds.
pub fn admit(
    policy: &Policy,
    record: &mut Record,
    now: Timestamp,
    cost: Cost,
) -> (Decision, Claims) {
    let (decision, claims) = policy.admit(record, now, cost);
    (decision.rounded_up(TICK), claims)
}

fn state(step: &Step, stored: Stored) -> StepState {
    let nanos = |micros: u64| micros.saturating_mul(TICK);
    match (stored, step) {
        (
            Stored::Bucket {
                free_at,
                part,
                denominator,
            },
            Step::WholeBucket(bucket),
        ) => step.bucket_state(bucket.state_of_micros(free_at, part, denominator)),
        (
            Stored::Bucket {
                free_at,
                part,
                denominator,
            },
            Step::Bucket(bucket),
        ) => step.bucket_state(bucket.state_of_micros(free_at, part, denominator)),
        (Stored::Window { end, count }, Step::FixedWindow(_)) => StepState::Window(WindowState {
            end: nanos(end),
            count,
        }),
        (
            Stored::Counter {
                end,
                current,
                previous,
            },
            Step::SlidingWindowCounter(_),
        ) => StepState::Counter(CounterState {
            end: nanos(end),
            current,
            previous,
        }),
        (
            Stored::Log {
                waits_for,
                newest,
                live,
            },
            Step::SlidingWindowLog(_),
        ) if live > 0 => {
            let newest = (nanos(newest), live);
            let waits_for = waits_for
                .map(|(at, total)| (nanos(at), total))
                .filter(|first| *first != newest);
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
