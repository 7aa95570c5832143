//! Combines the limits of a policy: all or nothing. A policy of one limit runs the same code.

use smallvec::SmallVec;

use super::{Algorithm, Claim};
use crate::decision::{Decision, LimitFigures, OutcomeKind};

/// The effect of a decision on the stored states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateChange {
    Unchanged,
    Changed,
}

/// Decides a request of `cost` thousandths at `now`. If nothing is written, the states are
/// unchanged.
#[inline(always)]
pub(crate) fn decide<A: Algorithm>(
    limits: &[A],
    states: &mut [A::State],
    now: u64,
    cost: u64,
) -> (Decision, StateChange) {
    let is_clamped = clamp(limits, states, now);
    let CombinedOutcome {
        kind,
        mut wait,
        mut index,
    } = combine(limits, states, now, cost);
    if kind == OutcomeKind::Allowed {
        wait = admit(limits, states, now, cost);
        index = tightest(limits, states, now);
    }
    let is_written = is_clamped || (kind == OutcomeKind::Allowed && cost > 0);
    let combined = CombinedOutcome { kind, wait, index };
    (figures(limits, states, now, combined), change(is_written))
}

/// Returns the decision with the figures of these states.
#[inline(always)]
fn figures<A: Algorithm>(
    limits: &[A],
    states: &[A::State],
    now: u64,
    CombinedOutcome { kind, wait, index }: CombinedOutcome,
) -> Decision {
    let (limit, remaining, limit_reset_after) = match (limits.get(index), states.get(index)) {
        (Some(limit), Some(state)) => (
            limit.capacity(),
            limit.remaining(state, now),
            limit.reset_after(state, now),
        ),
        _ => (0, 0, 0), // No limit, no policy.
    };
    let reset_after = if limits.len() == 1 {
        limit_reset_after
    } else {
        longest_reset(limits, states, now)
    };
    Decision {
        kind,
        wait,
        reset_after,
        limit_reset_after,
        limit: narrow(limit),
        remaining: narrow(remaining),
        limit_index: narrow(index as u64),
        degraded: None,
        is_leased: false,
    }
}

/// Returns the decision that a request of `cost` would get and the figures of every limit, and
/// takes nothing.
pub(crate) fn peek<A: Algorithm>(
    limits: &[A],
    states: &mut [A::State],
    now: u64,
    cost: u64,
) -> (Decision, Vec<LimitFigures>, StateChange) {
    let change = change(clamp(limits, states, now));
    let mut combined = combine(limits, states, now, cost);
    if combined.kind != OutcomeKind::Allowed {
        let decision = figures(limits, states, now, combined);
        let all = limit_figures(&decision, limits, states, now, cost);
        return (decision, all, change);
    }
    let mut trial: SmallVec<[A::State; 8]> = limits
        .iter()
        .zip(&*states)
        .map(|(limit, state)| limit.trial_copy(state, now))
        .collect();
    combined.wait = admit(limits, &mut trial, now, cost);
    combined.index = tightest(limits, &trial, now);
    let decision = figures(limits, &trial, now, combined);
    let all = limit_figures(&decision, limits, &trial, now, cost);
    (decision, all, change)
}

/// Decides like [`decide`] without taking. If the request would be allowed, the figures are those
/// of a request of cost 0.
pub(crate) fn probe<A: Algorithm>(
    limits: &[A],
    states: &mut [A::State],
    now: u64,
    cost: u64,
) -> (Decision, StateChange) {
    let (look, change) = decide(limits, states, now, 0);
    match combine(limits, states, now, cost).kind {
        OutcomeKind::Allowed => (look, change),
        OutcomeKind::Denied | OutcomeKind::Never => (decide(limits, states, now, cost).0, change),
    }
}

/// Gives `cost` back to every limit. Returns the decision of a request of cost 0 made right after.
pub(crate) fn refund<A: Algorithm>(
    limits: &[A],
    states: &mut [A::State],
    now: u64,
    cost: u64,
) -> (Decision, StateChange) {
    let is_clamped = clamp(limits, states, now);
    if cost > 0 {
        for (limit, state) in limits.iter().zip(&mut *states) {
            limit.refund_cost(state, now, cost);
        }
    }
    let (decision, _) = decide(limits, states, now, 0);
    (decision, change(is_clamped || cost > 0))
}

/// Takes `cost` from every limit whatever they say, as far as their debt allows. Returns the
/// decision of a request of cost 0 made right after, and the amount that was dropped: the largest
/// of all limits.
pub(crate) fn charge<A: Algorithm>(
    limits: &[A],
    states: &mut [A::State],
    now: u64,
    cost: u64,
) -> (Decision, StateChange, u64) {
    let is_clamped = clamp(limits, states, now);
    let mut dropped = 0;
    if cost > 0 {
        for (limit, state) in limits.iter().zip(&mut *states) {
            dropped = limit.charge(state, now, cost).max(dropped);
        }
    }
    let (decision, _) = decide(limits, states, now, 0);
    (decision, change(is_clamped || cost > 0), dropped)
}

/// Corrects a request that was admitted at a cost of `taken` to its `actual` cost. Returns the
/// decision of a request of cost 0 made right after, and the amount that was dropped.
///
/// If the actual cost is lower, each limit gives back what it still counts of the request. If it is
/// higher, the difference is [charged](charge).
pub(crate) fn settle<A: Algorithm>(
    limits: &[A],
    states: &mut [A::State],
    claims: &[Claim],
    now: u64,
    taken: u64,
    actual: u64,
) -> (Decision, StateChange, u64) {
    if actual > taken {
        return charge(limits, states, now, actual - taken);
    }
    let is_clamped = clamp(limits, states, now);
    for ((limit, state), claim) in limits.iter().zip(&mut *states).zip(claims) {
        if actual < taken {
            limit.refund_claimed(state, now, *claim, taken - actual);
        }
    }
    let (decision, _) = decide(limits, states, now, 0);
    (decision, change(is_clamped || actual != taken), 0)
}

/// Returns the wait until a request of `cost` is allowed, or `None` if it never is.
pub(crate) fn wait<A: Algorithm>(
    limits: &[A],
    states: &[A::State],
    now: u64,
    cost: u64,
) -> Option<u64> {
    let CombinedOutcome { kind, wait, .. } = combine(limits, states, now, cost);
    (kind != OutcomeKind::Never).then_some(wait)
}

/// Returns the figures of every limit, for a decision that was made on these states.
///
/// A request that was denied took nothing, so each limit is asked for its own outcome.
pub(crate) fn limit_figures<A: Algorithm>(
    decision: &Decision,
    limits: &[A],
    states: &[A::State],
    now: u64,
    cost: u64,
) -> Vec<LimitFigures> {
    let figures = |(limit, state): (&A, &A::State)| {
        let (kind, wait) = match limit.wait(state, now, cost) {
            _ if decision.is_allowed() => (OutcomeKind::Allowed, 0),
            _ if cost > limit.capacity_cost() => (OutcomeKind::Never, 0),
            Some(wait) => (OutcomeKind::Denied, wait),
            None => (OutcomeKind::Allowed, 0),
        };
        LimitFigures {
            kind,
            wait,
            reset_after: limit.reset_after(state, now),
            limit: narrow(limit.capacity()),
            remaining: narrow(limit.remaining(state, now)),
        }
    };
    if limits.len() < 2 {
        return Vec::new();
    }
    limits.iter().zip(states).map(figures).collect()
}

#[inline(always)]
fn change(is_changed: bool) -> StateChange {
    if is_changed {
        StateChange::Changed
    } else {
        StateChange::Unchanged
    }
}

/// Returns `true` if any state is from the future.
#[inline(always)]
pub(crate) fn is_from_future<A: Algorithm>(limits: &[A], states: &[A::State], now: u64) -> bool {
    limits
        .iter()
        .zip(states)
        .any(|(limit, state)| limit.is_from_future(state, now))
}

/// Clamps states from the future to now. Returns `true` if there were any.
#[inline(always)]
fn clamp<A: Algorithm>(limits: &[A], states: &mut [A::State], now: u64) -> bool {
    let mut is_any = false;
    for (limit, state) in limits.iter().zip(states) {
        if limit.is_from_future(state, now) {
            limit.clamp(state, now);
            is_any = true;
        }
    }
    is_any
}

/// The outcome of all limits together, and the limit that determines it.
struct CombinedOutcome {
    kind: OutcomeKind,
    wait: u64,
    index: usize,
}

/// Combines the limits. If several deny, the one with the longest wait determines the outcome;
/// never is longest, and the first wins a tie.
#[inline(always)]
fn combine<A: Algorithm>(
    limits: &[A],
    states: &[A::State],
    now: u64,
    cost: u64,
) -> CombinedOutcome {
    let mut combined = CombinedOutcome {
        kind: OutcomeKind::Allowed,
        wait: 0,
        index: 0,
    };
    for (index, (limit, state)) in limits.iter().zip(states).enumerate() {
        if cost > limit.capacity_cost() {
            return CombinedOutcome {
                kind: OutcomeKind::Never,
                wait: 0,
                index: first_never(limits, cost),
            };
        }
        // A wait is never 0, so the first limit that denies is selected.
        if let Some(wait) = limit
            .wait(state, now, cost)
            .filter(|wait| *wait > combined.wait)
        {
            combined = CombinedOutcome {
                kind: OutcomeKind::Denied,
                wait,
                index,
            };
        }
    }
    combined
}

#[cold]
fn first_never<A: Algorithm>(limits: &[A], cost: u64) -> usize {
    limits
        .iter()
        .position(|limit| cost > limit.capacity_cost())
        .unwrap_or(0)
}

/// Takes the cost from all limits and returns the longest delay.
#[inline(always)]
fn admit<A: Algorithm>(limits: &[A], states: &mut [A::State], now: u64, cost: u64) -> u64 {
    let mut delay = 0;
    for (limit, state) in limits.iter().zip(states) {
        delay = delay.max(limit.delay(state, now));
        if cost > 0 {
            limit.take(state, now, cost);
        }
    }
    delay
}

/// Returns the limit with the least remaining, the first on a tie.
#[inline(always)]
fn tightest<A: Algorithm>(limits: &[A], states: &[A::State], now: u64) -> usize {
    if limits.len() == 1 {
        return 0;
    }
    let by_remaining = |(_, (limit, state)): &(usize, (&A, &A::State))| limit.remaining(state, now);
    limits
        .iter()
        .zip(states)
        .enumerate()
        .min_by_key(by_remaining)
        .map_or(0, |(index, _)| index)
}

#[inline(always)]
fn longest_reset<A: Algorithm>(limits: &[A], states: &[A::State], now: u64) -> u64 {
    limits
        .iter()
        .zip(states)
        .map(|(limit, state)| limit.reset_after(state, now))
        .max()
        .unwrap_or(0)
}

/// Converts a capacity or a remaining amount. Both are at most 10^9, so they fit.
#[inline(always)]
fn narrow(units: u64) -> u32 {
    debug_assert!(units <= 1_000_000_000);
    units as u32
}
