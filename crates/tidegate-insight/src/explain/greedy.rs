//! Arrivals for policies of several limits: send whenever a request is allowed, from each start
//! that could matter, and keep the best.

use std::time::Duration;

use tidegate_core::{Algorithm, Limit, Policy};

use super::worst_case::{Arrivals, WorstCase, period_ns};
use crate::trial::Trial;

/// The number of instants at which one attempt sends. If they do not suffice, it starts again and
/// skips some.
const INSTANTS: u64 = 50_000;

/// Returns the best arrivals found. `bound` is the most that any could attain.
pub(super) fn search(policy: &Policy, stretch: u64, bound: u64) -> WorstCase {
    let trial = Trial::new(policy);
    let mut best: Option<WorstCase> = None;
    for start in starts(&trial, policy) {
        for preparation in preparations(policy, start) {
            let run = |step| attempt(&trial, policy, stretch, (start, &preparation), step);
            let coarse = (stretch / INSTANTS).max(1) as i64;
            let Some(found) = run(1).or_else(|| run(coarse)) else {
                continue;
            };
            let is_better = best
                .as_ref()
                .is_none_or(|best| found.attained > best.attained);
            if is_better {
                best = Some(found);
            }
            if best.as_ref().is_some_and(|best| best.attained >= bound) {
                return best.unwrap_or_else(|| empty(stretch));
            }
        }
    }
    best.unwrap_or_else(|| empty(stretch))
}

const fn empty(stretch_ns: u64) -> WorstCase {
    WorstCase {
        stretch_ns,
        most: 0,
        attained: 0,
        start_ns: 0,
        arrivals: Vec::new(),
    }
}

/// Returns the starts to try: at an edge of all windows and at one of each period, just before
/// them, and so long before that a whole limit can pass.
fn starts(trial: &Trial, policy: &Policy) -> Vec<i64> {
    let mut starts = vec![0, -1];
    for limit in policy.limits() {
        let period = period_ns(limit) as i64;
        let Some(needed) = time_to_pass(trial, limit.limit(), period) else {
            continue;
        };
        starts.extend([-needed - 1, period - needed - 1]);
        if is_aligned(limit) {
            starts.extend([period, period - 1]);
        }
    }
    starts
}

/// Returns the time in which `count` requests pass from a fresh state, if that is within `longest`.
fn time_to_pass(trial: &Trial, count: u64, longest: i64) -> Option<i64> {
    let mut run = trial.start();
    let (mut now, mut passed) = (0, 0);
    for _ in 0..INSTANTS {
        let room = run.remaining(now).min(count - passed);
        if room > 0 && run.take(now, room) {
            passed += room;
        }
        if passed == count {
            return Some(now);
        }
        now = now.saturating_add(run.wait(now).map_or(1, duration_ns).max(1));
        if now >= longest {
            return None;
        }
    }
    None
}

const fn is_aligned(limit: &Limit) -> bool {
    match limit.algorithm() {
        Algorithm::FixedWindow => !limit.opens_with_first_hit(),
        Algorithm::SlidingWindowCounter => true,
        _ => false,
    }
}

/// Returns the requests that may be sent before the start: none, or one that opens a window which
/// ends just after it.
fn preparations(policy: &Policy, start: i64) -> Vec<Vec<i64>> {
    let opening = |limit: &Limit| start + 1 - period_ns(limit) as i64;
    let windows = policy.limits().iter();
    let openings: Vec<i64> = windows
        .filter(|limit| limit.opens_with_first_hit())
        .map(opening)
        .collect();
    let mut all = vec![Vec::new()];
    all.extend(openings.iter().map(|instant| vec![*instant]));
    if openings.len() > 1 {
        let mut sorted = openings;
        sorted.sort_unstable();
        sorted.dedup();
        all.push(sorted);
    }
    all
}

/// Sends as soon as a request is allowed, but not more often than `least_step`, from the start to
/// the end of the stretch. Returns `None` if it takes too many instants.
fn attempt(
    trial: &Trial,
    policy: &Policy,
    stretch: u64,
    (start, preparation): (i64, &[i64]),
    least_step: i64,
) -> Option<WorstCase> {
    let mut run = trial.start();
    let mut arrivals = Groups::default();
    for instant in preparation {
        if run.take(*instant, 1) {
            arrivals.add(*instant, 1);
        }
    }
    let end = start + stretch as i64;
    let mut attained = 0;
    let mut now = start;
    for instants in 0.. {
        if instants > 4 * INSTANTS {
            return None;
        }
        let room = run.remaining(now);
        if room > 0 && run.take(now, room) {
            arrivals.add(now, room);
            attained += room;
        }
        if now >= end - 1 {
            break;
        }
        let wait = run.wait(now).map_or(i64::MAX, duration_ns);
        let next = now.saturating_add(wait.max(least_step));
        // Edges and the last instant must not be skipped: the room before them would be lost.
        let last = next_edge(policy, now, least_step).min(end - 1);
        now = next.min(last).max(now + 1);
    }
    Some(WorstCase {
        stretch_ns: stretch,
        most: attained,
        attained,
        start_ns: start,
        arrivals: arrivals.groups,
    })
}

/// Returns the next edge of an aligned window, or the instant before it, if it comes later than the
/// least step.
fn next_edge(policy: &Policy, now: i64, least_step: i64) -> i64 {
    let aligned = policy.limits().iter().filter(|limit| is_aligned(limit));
    let edges = aligned.filter_map(|limit| {
        let period = period_ns(limit) as i64;
        let edge = (now.div_euclid(period) + 1) * period;
        let next = if edge - 1 > now { edge - 1 } else { edge };
        (period > 4 * least_step).then_some(next)
    });
    edges.min().unwrap_or(i64::MAX)
}

fn duration_ns(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Arrivals in order, with even intervals joined to groups.
#[derive(Default)]
struct Groups {
    groups: Vec<Arrivals>,
}

impl Groups {
    fn add(&mut self, instant: i64, count: u64) {
        if let Some(last) = self.groups.last_mut()
            && last.count == count
        {
            let interval = (instant - last.instant(last.repeat - 1)) as u64;
            if last.repeat == 1 || last.period_ns == interval {
                last.period_ns = interval;
                last.repeat += 1;
                return;
            }
        }
        self.groups.push(Arrivals::once(instant, count));
    }
}
