//! Several limits on one key, all or nothing. One limit is the same with one.

use super::Algorithm;
use crate::cost::THOUSANDTHS;
use crate::decision::{Decision, Verdict};

/// Whether the states changed and must be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Nothing,
    States,
}

/// Decides on one request of `cost` thousandths at `now`. Where nothing is written the states are as they were.
#[inline]
pub(crate) fn decide<A: Algorithm>(limits: &[A], states: &mut [A::State], now: u64, cost: u64) -> (Decision, Written) {
    let is_brought_back = bring_back(limits, states, now);
    if let Some(denial) = denial(limits, states, now, cost) {
        return (denial, written(is_brought_back));
    }
    let mut delay = 0;
    for (limit, state) in limits.iter().zip(&mut *states) {
        delay = delay.max(limit.delay(state, now));
        if cost > 0 {
            limit.take(state, now, cost);
        }
    }
    (allowance(limits, states, now, delay), written(is_brought_back || cost > 0))
}

/// Gives `cost` back to every limit, and answers like a request of cost 0 made right after.
#[inline]
pub(crate) fn refund<A: Algorithm>(limits: &[A], states: &mut [A::State], now: u64, cost: u64) -> (Decision, Written) {
    let is_brought_back = bring_back(limits, states, now);
    if cost > 0 {
        for (limit, state) in limits.iter().zip(&mut *states) {
            limit.give_back(state, now, cost);
        }
    }
    let (decision, _) = decide(limits, states, now, 0);
    (decision, written(is_brought_back || cost > 0))
}

fn written(is_changed: bool) -> Written {
    if is_changed { Written::States } else { Written::Nothing }
}

#[inline]
fn bring_back<A: Algorithm>(limits: &[A], states: &mut [A::State], now: u64) -> bool {
    limits.iter().zip(states).fold(false, |is_any, (limit, state)| limit.bring_back(state, now) | is_any)
}

/// Of the limits that deny, the one with the longest wait; never is longest; the first on a tie.
#[inline]
fn denial<A: Algorithm>(limits: &[A], states: &[A::State], now: u64, cost: u64) -> Option<Decision> {
    let mut longest: Option<(usize, Wait)> = None;
    for (index, (limit, state)) in limits.iter().zip(states).enumerate() {
        let wait = if cost > limit.capacity() * THOUSANDTHS {
            Some(Wait::Never)
        } else {
            limit.wait(state, now, cost).map(Wait::Until)
        };
        if let Some(wait) = wait {
            if longest.is_none_or(|(_, longest)| wait > longest) {
                longest = Some((index, wait));
            }
        }
    }
    let (index, wait) = longest?;
    let (verdict, wait) = match wait {
        Wait::Until(wait) => (Verdict::Denied, wait),
        Wait::Never => (Verdict::Never, 0),
    };
    let (limit, state) = (limits.get(index)?, states.get(index)?);
    Some(Decision {
        verdict,
        wait,
        reset_after: longest_reset(limits, states, now),
        limit: narrow(limit.capacity()),
        remaining: narrow(limit.remaining(state, now)),
        limit_index: narrow(index as u64),
    })
}

/// Ordered as SPEC does: never is longer than any wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    Until(u64),
    Never,
}

/// What is left is that of the limit with the least remaining, the first on a tie.
#[inline]
fn allowance<A: Algorithm>(limits: &[A], states: &[A::State], now: u64, delay: u64) -> Decision {
    let mut tightest = (u64::MAX, 0, 0);
    for (index, (limit, state)) in limits.iter().zip(states).enumerate() {
        let remaining = limit.remaining(state, now);
        if remaining < tightest.0 {
            tightest = (remaining, limit.capacity(), index);
        }
    }
    let (remaining, capacity, index) = tightest;
    Decision {
        verdict: Verdict::Allowed,
        wait: delay,
        reset_after: longest_reset(limits, states, now),
        limit: narrow(capacity),
        remaining: narrow(remaining),
        limit_index: narrow(index as u64),
    }
}

#[inline]
fn longest_reset<A: Algorithm>(limits: &[A], states: &[A::State], now: u64) -> u64 {
    limits.iter().zip(states).map(|(limit, state)| limit.reset_after(state, now)).max().unwrap_or(0)
}

/// Capacities are at most 10^9: they fit.
fn narrow(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
