//! Several limits on one key, all or nothing. One limit is the same with one.

use super::{Algorithm, Claim};
use crate::decision::{Decision, Verdict};

/// Whether the states changed and must be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Nothing,
    States,
}

/// Decides on one request of `cost` thousandths at `now`. Where nothing is written the states are as they were.
#[inline(always)]
pub(crate) fn decide<A: Algorithm>(
    limits: &[A],
    states: &mut [A::State],
    now: u64,
    cost: u64,
) -> (Decision, Written) {
    let is_brought_back = bring_back(limits, states, now);
    let Ruling {
        verdict,
        mut wait,
        mut index,
    } = rule(limits, states, now, cost);
    if verdict == Verdict::Allowed {
        wait = admit(limits, states, now, cost);
        index = tightest(limits, states, now);
    }
    let (limit, remaining) = match (limits.get(index), states.get(index)) {
        (Some(limit), Some(state)) => (limit.capacity(), limit.remaining(state, now)),
        _ => (0, 0), // No limit, no policy.
    };
    let is_written = is_brought_back || (verdict == Verdict::Allowed && cost > 0);
    let decision = Decision {
        verdict,
        wait,
        reset_after: longest_reset(limits, states, now),
        limit: narrow(limit),
        remaining: narrow(remaining),
        limit_index: narrow(index as u64),
        degraded: None,
    };
    (decision, written(is_written))
}

/// Decides like [`decide`], and takes nothing. Of a request that would be allowed, the figures are those of one of cost 0.
pub(crate) fn probe<A: Algorithm>(
    limits: &[A],
    states: &mut [A::State],
    now: u64,
    cost: u64,
) -> (Decision, Written) {
    let (look, written) = decide(limits, states, now, 0);
    match rule(limits, states, now, cost).verdict {
        Verdict::Allowed => (look, written),
        Verdict::Denied | Verdict::Never => (decide(limits, states, now, cost).0, written),
    }
}

/// Gives `cost` back to every limit, and answers like a request of cost 0 made right after.
pub(crate) fn refund<A: Algorithm>(
    limits: &[A],
    states: &mut [A::State],
    now: u64,
    cost: u64,
) -> (Decision, Written) {
    let is_brought_back = bring_back(limits, states, now);
    if cost > 0 {
        for (limit, state) in limits.iter().zip(&mut *states) {
            limit.give_back(state, now, cost);
        }
    }
    let (decision, _) = decide(limits, states, now, 0);
    (decision, written(is_brought_back || cost > 0))
}

/// Corrects a request that was admitted at a cost of `taken` to its `actual` cost, and answers like a request of cost 0 made
/// right after. Each limit gives back what it still counts of the request; what the request cost beyond `taken` is charged.
pub(crate) fn settle<A: Algorithm>(
    limits: &[A],
    states: &mut [A::State],
    claims: &[Claim],
    now: u64,
    taken: u64,
    actual: u64,
) -> (Decision, Written) {
    let is_brought_back = bring_back(limits, states, now);
    for ((limit, state), claim) in limits.iter().zip(&mut *states).zip(claims) {
        if actual < taken {
            limit.give_back_claimed(state, now, *claim, taken - actual);
        } else if actual > taken {
            limit.charge(state, now, actual - taken);
        }
    }
    let (decision, _) = decide(limits, states, now, 0);
    (decision, written(is_brought_back || actual != taken))
}

#[inline(always)]
fn written(is_changed: bool) -> Written {
    if is_changed {
        Written::States
    } else {
        Written::Nothing
    }
}

/// Whether any state is from the future.
#[inline(always)]
pub(crate) fn is_ahead<A: Algorithm>(limits: &[A], states: &[A::State], now: u64) -> bool {
    limits
        .iter()
        .zip(states)
        .any(|(limit, state)| limit.is_ahead(state, now))
}

/// Brings what is from the future back to now. True if anything was.
#[inline(always)]
fn bring_back<A: Algorithm>(limits: &[A], states: &mut [A::State], now: u64) -> bool {
    let mut is_any = false;
    for (limit, state) in limits.iter().zip(states) {
        if limit.is_ahead(state, now) {
            limit.bring_back(state, now);
            is_any = true;
        }
    }
    is_any
}

/// What the limits say together, and which of them speaks.
struct Ruling {
    verdict: Verdict,
    wait: u64,
    index: usize,
}

/// Of the limits that deny, the one with the longest wait speaks; never is longest; the first on a tie.
#[inline(always)]
fn rule<A: Algorithm>(limits: &[A], states: &[A::State], now: u64, cost: u64) -> Ruling {
    let mut ruling = Ruling {
        verdict: Verdict::Allowed,
        wait: 0,
        index: 0,
    };
    for (index, (limit, state)) in limits.iter().zip(states).enumerate() {
        if cost > limit.capacity_cost() {
            return Ruling {
                verdict: Verdict::Never,
                wait: 0,
                index: first_never(limits, cost),
            };
        }
        // A wait is never 0, so the first that denies is longer than nothing.
        if let Some(wait) = limit
            .wait(state, now, cost)
            .filter(|wait| *wait > ruling.wait)
        {
            ruling = Ruling {
                verdict: Verdict::Denied,
                wait,
                index,
            };
        }
    }
    ruling
}

#[cold]
fn first_never<A: Algorithm>(limits: &[A], cost: u64) -> usize {
    limits
        .iter()
        .position(|limit| cost > limit.capacity_cost())
        .unwrap_or(0)
}

/// Takes the cost from all, and answers the longest delay.
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

/// The limit with the least remaining, the first on a tie.
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

/// Capacities, and what remains of them, are at most 10^9: they fit.
#[inline(always)]
fn narrow(units: u64) -> u32 {
    debug_assert!(units <= 1_000_000_000);
    units as u32
}
