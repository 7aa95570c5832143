//! The most requests that can pass in a stretch of time, and the arrivals that attain it.
//!
//! A policy of one limit has a closed form. With several limits, each gives an upper bound, and
//! [`greedy`](super::greedy) searches for arrivals that attain the smallest.

use std::time::Duration;

use serde::Serialize;
use tidegate_core::{Algorithm, Limit, Policy};

use super::greedy;

/// The groups of arrivals that are computed for a sliding_window_counter. A longer stretch has an
/// upper bound: the whole limit in every further window.
const MAX_GROUPS: usize = 8_192;

/// The most requests of cost 1 that can pass in any stretch of one length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorstCase {
    /// The length of the stretch in nanoseconds. It includes its start and excludes its end.
    pub stretch_ns: u64,
    /// The largest number of requests that can pass.
    pub most: u64,
    /// The number of requests that pass if they arrive as in [`arrivals`](Self::arrivals). It
    /// equals `most` for one limit. With several limits, `most` may be an upper bound.
    pub attained: u64,
    /// The start of the stretch, relative to the edge of a window.
    pub start_ns: i64,
    /// The arrivals that attain it. Those before the start prepare it and do not count.
    pub arrivals: Vec<Arrivals>,
}

/// A group of requests of cost 1: `count` at a time, repeated at even intervals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Arrivals {
    /// The number of requests at each instant.
    pub count: u64,
    /// The origin of the group, relative to the edge of a window.
    pub origin_ns: i64,
    /// The index of the first repetition: 0 is at the origin.
    pub first: u64,
    /// The number of repetitions.
    pub repeat: u64,
    /// The interval is `period_ns / units`. Instants are rounded up to nanoseconds.
    pub period_ns: u64,
    /// See [`period_ns`](Self::period_ns).
    pub units: u64,
}

impl Arrivals {
    /// Requests at one instant.
    pub(super) const fn once(origin_ns: i64, count: u64) -> Self {
        Self {
            count,
            origin_ns,
            first: 0,
            repeat: 1,
            period_ns: 0,
            units: 1,
        }
    }

    /// `count` requests at the origin, and again after every period.
    const fn every_period(origin_ns: i64, count: u64, period_ns: u64, repeat: u64) -> Self {
        Self {
            count,
            origin_ns,
            first: 0,
            repeat,
            period_ns,
            units: 1,
        }
    }

    /// One request after each interval of `period_ns / units` from the origin.
    const fn spaced(origin_ns: i64, period_ns: u64, units: u64, repeat: u64) -> Self {
        Self {
            count: 1,
            origin_ns,
            first: 1,
            repeat,
            period_ns,
            units,
        }
    }

    /// Returns the number of requests.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.count.saturating_mul(self.repeat)
    }

    /// Returns the instant of a repetition, relative to the edge of a window.
    #[must_use]
    pub fn instant(&self, repetition: u64) -> i64 {
        let steps = u128::from(self.first + repetition);
        let after = (steps * u128::from(self.period_ns)).div_ceil(u128::from(self.units));
        // A stretch is at most two years long.
        self.origin_ns
            .saturating_add(i64::try_from(after).unwrap_or(i64::MAX))
    }
}

impl WorstCase {
    /// Computes the worst case of a policy for stretches of one length, at least 2 ns.
    #[must_use]
    pub fn of(policy: &Policy, stretch: Duration) -> Self {
        let stretch_ns = u64::try_from(stretch.as_nanos()).unwrap_or(u64::MAX).max(2);
        if let [limit] = policy.limits() {
            return one_limit(limit, stretch_ns);
        }
        let bounds = policy.limits().iter();
        let most = bounds.map(|limit| one_limit(limit, stretch_ns).most).min();
        let mut found = greedy::search(policy, stretch_ns, most.unwrap_or(0));
        found.most = most.unwrap_or(0);
        found
    }

    fn new(stretch_ns: u64, start_ns: i64, arrivals: Vec<Arrivals>) -> Self {
        let counted = arrivals.iter().filter(|group| group.instant(0) >= start_ns);
        let most = counted.map(Arrivals::total).fold(0, u64::saturating_add);
        Self {
            stretch_ns,
            most,
            attained: most,
            start_ns,
            arrivals: arrivals
                .into_iter()
                .filter(|group| group.total() > 0)
                .collect(),
        }
    }
}

fn one_limit(limit: &Limit, stretch: u64) -> WorstCase {
    let period = period_ns(limit);
    match limit.algorithm() {
        Algorithm::FixedWindow if limit.opens_with_first_hit() => {
            first_hit(limit.limit(), period, stretch)
        }
        Algorithm::FixedWindow => fixed_window(limit.limit(), period, stretch),
        Algorithm::SlidingWindowLog => {
            let repeat = (stretch - 1) / period + 1;
            let arrivals = Arrivals::every_period(0, limit.limit(), period, repeat);
            WorstCase::new(stretch, 0, vec![arrivals])
        }
        Algorithm::SlidingWindowCounter => sliding_window_counter(limit.limit(), period, stretch),
        _ => bucket(limit, period, stretch),
    }
}

/// Returns the period in nanoseconds, which fits.
pub(crate) fn period_ns(limit: &Limit) -> u64 {
    limit.period().as_nanos() as u64
}

/// A full bucket at once, and then every token as soon as it is there.
fn bucket(limit: &Limit, period: u64, stretch: u64) -> WorstCase {
    let refilled = u128::from(stretch - 1) * u128::from(limit.limit()) / u128::from(period);
    let refilled = u64::try_from(refilled).unwrap_or(u64::MAX);
    let arrivals = vec![
        Arrivals::once(0, limit.capacity()),
        Arrivals::spaced(0, period, limit.limit(), refilled),
    ];
    WorstCase::new(stretch, 0, arrivals)
}

/// The whole limit in the last instant of a window, and again at every edge.
fn fixed_window(limit: u64, period: u64, stretch: u64) -> WorstCase {
    let edges = (stretch - 2) / period + 1;
    let arrivals = vec![
        Arrivals::once(-1, limit),
        Arrivals::every_period(0, limit, period, edges),
    ];
    WorstCase::new(stretch, -1, arrivals)
}

/// One request opens a window. The rest of the limit arrives in its last instant, and the whole
/// limit at the start of every later window.
fn first_hit(limit: u64, period: u64, stretch: u64) -> WorstCase {
    let from_start = (stretch - 1) / period + 1;
    let after_end = (stretch - 2) / period + 1;
    if u128::from(from_start) * u128::from(limit)
        >= u128::from(limit - 1) + u128::from(after_end) * u128::from(limit)
    {
        let arrivals = Arrivals::every_period(0, limit, period, from_start);
        return WorstCase::new(stretch, 0, vec![arrivals]);
    }
    let arrivals = vec![
        Arrivals::once(-(period as i64), 1),
        Arrivals::once(-1, limit - 1),
        Arrivals::every_period(0, limit, period, after_end),
    ];
    WorstCase::new(stretch, -1, arrivals)
}

/// The whole limit in the last instant of a window, or from an edge on. Every later request arrives
/// as soon as the weight of the previous window leaves room for it.
fn sliding_window_counter(limit: u64, period: u64, stretch: u64) -> WorstCase {
    let late = counter_from(limit, period, stretch, -1);
    let early = counter_from(limit, period, stretch, 0);
    if early.most >= late.most { early } else { late }
}

fn counter_from(limit: u64, period: u64, stretch: u64, start: i64) -> WorstCase {
    let mut arrivals = vec![Arrivals::once(start, limit)];
    let mut previous = limit;
    // The edges after the first request.
    let mut edge = if start < 0 { 0 } else { period };
    let end = stretch - u64::from(start < 0);
    // Many short windows in a long stretch: the rest has only an upper bound.
    while edge < end && arrivals.len() < MAX_GROUPS {
        let last = (end - 1 - edge).min(period - 1);
        let weight =
            (u128::from(previous) * u128::from(period - last)).div_ceil(u128::from(period));
        let count = limit - u64::try_from(weight).unwrap_or(limit).min(limit);
        let at_edge = (limit - previous).min(count);
        arrivals.push(Arrivals::once(edge as i64, at_edge));
        let later = Arrivals::spaced(edge as i64, period, previous.max(1), count - at_edge);
        arrivals.push(later);
        previous = count;
        edge += period;
    }
    let mut worst = WorstCase::new(stretch, start, arrivals);
    if edge < end {
        let windows = (end - 1 - edge) / period + 1;
        worst.most = worst.most.saturating_add(limit.saturating_mul(windows));
    }
    worst
}
