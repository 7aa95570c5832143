//! The shortest trace on which two policies decide differently.
//!
//! A trace is a few pauses with requests of cost 1 between them. The search tries the instants at
//! which a decision can change: those that either policy names, and the edges of windows.

use std::time::Duration;

use serde::Serialize;
use tidegate_core::Policy;

use super::period_ns;
use crate::trial::{Run, Trial, origin, units};

/// The number of pauses in a trace.
const PAUSES: usize = 3;
/// The number of instants of a trace that only sends as fast as allowed.
const INSTANTS: usize = 20_000;

/// The shortest trace found on which two policies decide its last request differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The requests in order. The last step is one request.
    pub steps: Vec<TraceStep>,
    /// The decision of the first policy on the last request.
    pub first_allows: bool,
}

/// Requests of cost 1 at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TraceStep {
    /// The instant, relative to the edge of a window.
    pub at_ns: i64,
    /// The number of requests.
    pub count: u64,
}

impl Difference {
    /// Searches for a trace with as few requests as possible. Returns `None` if none was found.
    #[must_use]
    pub fn between(first: &Policy, second: &Policy) -> Option<Self> {
        let origin = origin([first, second]);
        let search = Search {
            trials: [Trial::at(first, origin), Trial::at(second, origin)],
            periods: periods(&[first, second]),
        };
        let mut best = None;
        for start in search.starts() {
            search.extend(&mut Vec::new(), start, PAUSES, &mut best);
        }
        if best.is_none() {
            let drained = search.starts().into_iter();
            let drained = drained.filter_map(|start| search.drain(start));
            best = drained.min_by_key(Self::rank);
        }
        best
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.steps.iter().map(|step| step.count).sum()
    }

    /// Orders traces: fewer requests, then fewer steps, then less time.
    fn rank(&self) -> (u64, usize, i64) {
        let length = match (self.steps.first(), self.steps.last()) {
            (Some(first), Some(last)) => last.at_ns - first.at_ns,
            _ => 0,
        };
        (self.requests(), self.steps.len(), length)
    }
}

fn periods(policies: &[&Policy]) -> Vec<i64> {
    let limits = policies.iter().flat_map(|policy| policy.limits());
    let mut periods: Vec<i64> = limits.map(|limit| period_ns(limit) as i64).collect();
    periods.sort_unstable();
    periods.dedup();
    periods
}

struct Search {
    trials: [Trial; 2],
    periods: Vec<i64>,
}

impl Search {
    /// The first request arrives at an edge, just before it, or in the middle of a window.
    fn starts(&self) -> Vec<i64> {
        let middles = self.periods.iter().map(|period| period / 2);
        [0, -1].into_iter().chain(middles).collect()
    }

    /// Sends requests at `now` after the steps so far, and continues after a pause.
    fn extend(
        &self,
        steps: &mut Vec<TraceStep>,
        now: i64,
        pauses: usize,
        best: &mut Option<Difference>,
    ) {
        let [first, second] = self.replay(steps);
        let rooms = [first.remaining(now), second.remaining(now)];
        let sent: u64 = steps.iter().map(|step| step.count).sum();
        if rooms[0] != rooms[1] {
            let count = rooms[0].min(rooms[1]) + 1;
            let mut found = Difference {
                steps: steps.clone(),
                first_allows: rooms[0] > rooms[1],
            };
            found.steps.push(TraceStep { at_ns: now, count });
            if best.as_ref().is_none_or(|best| found.rank() < best.rank()) {
                *best = Some(found);
            }
            return;
        }
        if pauses == 0
            || best
                .as_ref()
                .is_some_and(|best| best.requests() <= sent + 1)
        {
            return;
        }
        let room = rooms[0];
        let mut counts = vec![1, room.div_ceil(2), room.saturating_sub(1), room];
        counts.retain(|count| (1..=room).contains(count));
        counts.sort_unstable();
        counts.dedup();
        for count in counts {
            let mut after = self.replay(steps);
            for run in &mut after {
                run.check(now, units(count));
            }
            steps.push(TraceStep { at_ns: now, count });
            for next in self.next_instants(now, &after) {
                self.extend(steps, next, pauses - 1, best);
            }
            steps.pop();
        }
        // Requests that both deny change nothing, so a trace without room only waits.
        if room == 0 {
            for next in self.next_instants(now, &[first, second]) {
                self.extend(steps, next, pauses - 1, best);
            }
        }
    }

    /// Sends as fast as both policies allow, until only one does.
    fn drain(&self, start: i64) -> Option<Difference> {
        let mut runs = self.replay(&[]);
        let mut steps = Vec::new();
        let mut now = start;
        for _ in 0..INSTANTS {
            let rooms = [runs[0].remaining(now), runs[1].remaining(now)];
            let room = rooms[0].min(rooms[1]);
            if rooms[0] != rooms[1] {
                let count = room + 1;
                steps.push(TraceStep { at_ns: now, count });
                let first_allows = rooms[0] > rooms[1];
                return Some(Difference {
                    steps,
                    first_allows,
                });
            }
            if room > 0 {
                for run in &mut runs {
                    run.check(now, units(room));
                }
                steps.push(TraceStep {
                    at_ns: now,
                    count: room,
                });
            }
            let waits = runs.iter().filter_map(|run| run.changes(now).0);
            now = now.saturating_add(nanoseconds(waits.min()?).max(1));
        }
        None
    }

    fn replay(&self, steps: &[TraceStep]) -> [Run<'_>; 2] {
        let mut runs = [self.trials[0].start(), self.trials[1].start()];
        for step in steps {
            for run in &mut runs {
                run.check(step.at_ns, units(step.count));
            }
        }
        runs
    }

    /// Returns the instants after `now` at which a decision can change.
    fn next_instants(&self, now: i64, runs: &[Run<'_>; 2]) -> Vec<i64> {
        let mut instants = Vec::new();
        let mut around = |instant: i64| instants.extend([instant - 1, instant]);
        for run in runs {
            let (retry, reset) = run.changes(now);
            for wait in [retry, reset].into_iter().flatten() {
                around(now.saturating_add(nanoseconds(wait)));
            }
        }
        for period in &self.periods {
            let edge = (now.div_euclid(*period) + 1) * period;
            around(edge);
            around(edge + period / 2);
            around(now.saturating_add(*period));
        }
        instants.retain(|instant| *instant > now);
        instants.sort_unstable();
        instants.dedup();
        instants
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
