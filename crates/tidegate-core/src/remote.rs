//! Support for stores that decide in a language of their own, such as Lua in Redis.
//!
//! *The store decides, Rust computes the rest*: the store returns the state it had and its time. Every
//! figure of the decision is computed here, by the code that the memory store runs.

use std::collections::HashSet;
use std::time::Duration;

use crate::algorithm::{Claim, CounterState, LogState, Step, StepState, WindowState, gcd};
use crate::clock::Timestamp;
use crate::cost::Cost;
use crate::decision::{Decision, OutcomeKind};
use crate::key::Key;
pub use crate::memory::KeyHasher;
use crate::policy::{Algorithm, Limit, Policy};
use crate::record::{Record, Settlement};
use crate::store::{Admission, Store, StoreError};

/// The resolution of remote stores: one microsecond, in nanoseconds.
const TICK: u64 = 1_000;

/// Decides one request that several keys must allow, by asking them one after the other. On a
/// denial, everything taken is given back. All keys are asked even if one denies, so that the
/// longest wait is known.
///
/// # Errors
///
/// Returns an error if the store could not answer and no key denied the request. Everything taken
/// has been given back as far as possible.
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
        .any(|admission| admission.decision.is_denied());
    if failure.is_some() || is_denied {
        for ((plan, key, cost), admission) in requests.iter().zip(&mut admissions) {
            if let Some(taken) = admission.take_if(|one| one.decision.is_allowed()) {
                let settlement = Settlement {
                    claims: &taken.claims,
                    taken: *cost,
                    actual: Cost::ZERO,
                };
                // A cost that cannot be given back stays taken.
                let look = store.settle(plan, *key, &settlement).await.ok();
                *admission = look.map(|settled| Admission::look(settled.decision));
            }
        }
    }
    match failure {
        Some(error) if !is_denied => Err(error),
        _ => Ok(admissions),
    }
}

/// Returns a decision whose figures are marked as estimates.
pub fn leased(decision: Decision) -> Decision {
    Decision {
        is_leased: true,
        ..decision
    }
}

/// Returns the decision of a request that was admitted from a lease.
///
/// `granted` is the decision that granted the lease, `left` the units left in it and `delay` the
/// request's delay in a leaky bucket's queue. All durations are shorter by `elapsed`.
pub fn admitted_from_lease(
    granted: &Decision,
    left: u64,
    delay: Duration,
    elapsed: Duration,
) -> Decision {
    let elapsed = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    let remaining = u64::from(granted.remaining).saturating_add(left);
    Decision {
        kind: OutcomeKind::Allowed,
        wait: u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX),
        reset_after: granted.reset_after.saturating_sub(elapsed),
        limit_reset_after: granted.limit_reset_after.saturating_sub(elapsed),
        remaining: u32::try_from(remaining)
            .unwrap_or(u32::MAX)
            .min(granted.limit),
        is_leased: true,
        ..*granted
    }
}

/// Groups runs of requests, in order, so that no two runs of a group share a key.
///
/// Runs of one group may be sent at the same time. Requests sent at the same time across a network
/// may be decided in any order, so requests for the same key must not be.
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

/// The stored state of one limit for one key. Times are in microseconds, amounts in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// No state.
    Fresh,
    /// A bucket that is free again at `free_at` + `part` / `denominator` microseconds.
    Bucket {
        /// Whole microseconds.
        free_at: u64,
        /// The fraction, in parts of the denominator.
        part: u64,
        /// The denominator of the rate.
        denominator: u64,
    },
    /// A fixed window.
    Window {
        /// The end of the window.
        end: u64,
        /// The amount admitted in the window.
        count: u64,
    },
    /// A sliding window counter.
    Counter {
        /// The end of the current window.
        end: u64,
        /// The amount admitted in the current window.
        current: u64,
        /// The amount admitted in the previous window.
        previous: u64,
    },
    /// The live part of a log, reduced to what a decision needs.
    Log {
        /// The oldest entry that must expire for the request to fit, and the live amount up to and
        /// including it.
        waits_for: Option<(u64, u64)>,
        /// The time of the newest entry.
        newest: u64,
        /// The live amount.
        live: u64,
    },
}

/// Converts stored states, one per limit in stored order, to a record.
#[must_use]
pub fn record(policy: &Policy, stored: &[Stored]) -> Record {
    let states = stored
        .iter()
        .enumerate()
        .filter_map(|(limit, stored)| Some(state(stored_step(policy, limit)?, *stored)));
    Record::of_states(states)
}

/// Replaces the state of one limit, by its index in stored order. A log returns the part that one
/// request needs, so it is replaced for every request.
pub fn replace(policy: &Policy, record: &mut Record, limit: usize, stored: Stored) {
    if let Some(step) = stored_step(policy, limit) {
        record.set(limit, state(step, stored));
    }
}

/// Returns the step of a limit by its index in stored order.
fn stored_step(policy: &Policy, limit: usize) -> Option<&Step> {
    let index = policy.stored_order().map_or(Some(limit), |order| {
        order.get(limit).copied().map(usize::from)
    })?;
    policy.steps().get(index)
}

/// Returns the limits of a policy in stored order.
pub fn stored_limits(policy: &Policy) -> impl Iterator<Item = &Limit> {
    let order = policy.stored_order();
    (0..policy.limits().len()).filter_map(move |index| {
        policy
            .limits()
            .get(order.map_or(index, |order| usize::from(order[index])))
    })
}

/// Returns where a limit, by its index in stored order, counted a request: a time in microseconds
/// and, for a bucket, a part of `denominator`, the denominator of the rate in microseconds.
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

/// Sets the claim on a limit, by its index in stored order, to a time in microseconds and an
/// amount.
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

/// Decides like [`Policy::decide`], for a store that counts in microseconds.
pub fn decide(policy: &Policy, record: &mut Record, now: Timestamp, cost: Cost) -> Decision {
    policy.decide(record, now, cost).rounded_up(TICK)
}

/// Admits like [`Policy::admit`], for a store that counts in microseconds.
pub fn admit(policy: &Policy, record: &mut Record, now: Timestamp, cost: Cost) -> Admission {
    let mut admission = policy.admit(record, now, cost);
    admission.decision = admission.decision.rounded_up(TICK);
    for figures in &mut admission.limits {
        *figures = figures.rounded_up(TICK);
    }
    // A log returns only what this decision needs, so the next one is unknown.
    let has_log = policy
        .limits()
        .iter()
        .any(|limit| limit.algorithm() == Algorithm::SlidingWindowLog);
    admission.again_after = admission.again_after.filter(|_| !has_log);
    admission
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

/// Returns the greatest common divisor, to reduce a rate to lowest terms.
#[must_use]
pub fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    gcd(a, b)
}

/// Runs a future to completion on this thread.
pub fn wait<F: Future>(future: F) -> F::Output {
    crate::blocking::wait(future)
}
