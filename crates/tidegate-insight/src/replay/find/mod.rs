//! Finds a token bucket for the traffic of a log: rate and burst, each on its own.
//!
//! For a rate, the burst that a key needs is the highest level of its bucket, so one pass over the
//! log gives the needed bursts of all keys for many rates (`levels`). Among the pairs that leave
//! enough keys untouched, the one that lets the least through in a minute is the tightest. With an
//! attack, `attack` looks for the loosest pair that stops it. A real limiter checks the result on
//! the part of the log that the search did not see (`verify`).

mod attack;
mod levels;
mod rates;
mod verify;

use std::io;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::{Limit, Policy, Rate};

pub use verify::{HourFigures, PartFigures};

use super::Spool;
use levels::Needs;

/// The goal of a search.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// The most keys that may be limited, in millionths of all keys.
    pub touched_ppm: u64,
    /// The least part of an attack that must be denied, in millionths.
    pub stopped_ppm: u64,
    /// The attack: from and to, in microseconds since 1970.
    pub attack_us: Option<(u64, u64)>,
    /// The stretch in which the tightest limit lets the least through.
    pub stretch: Duration,
}

/// A recommended limit, and how well it does.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The limit in canonical text.
    pub policy: String,
    /// The units per period.
    pub limit: u64,
    /// The period in microseconds.
    pub period_us: u64,
    /// The burst.
    pub burst: u64,
    /// The first part of the log, which was searched.
    pub searched: PartFigures,
    /// The rest, which was only checked.
    pub checked: PartFigures,
    /// The requests and denials of each hour of the log, without the attack.
    pub hours: Vec<HourFigures>,
    /// The search used one in this many keys.
    pub sample: u64,
    /// False if no limit reaches the goal. This is then the nearest.
    pub reaches_goal: bool,
}

/// A rate and a burst. Amounts are in units.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    rate: Rate,
    per_us: f64,
    burst: u64,
}

impl Candidate {
    fn policy(&self) -> Option<Policy> {
        Policy::new([Limit::token_bucket(self.rate).burst(self.burst)]).ok()
    }

    /// Returns the most that passes in a stretch.
    fn most_in(&self, stretch: Duration) -> f64 {
        self.burst as f64 + self.per_us * stretch.as_micros() as f64
    }
}

/// The split of a log: the search sees the first half, the check the second one. An attack is split
/// in its own middle.
#[derive(Clone, Copy, Debug)]
struct Split {
    middle_us: u64,
    attack: Option<(u64, u64)>,
}

/// The part of the log to which a request belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogPart {
    Searched,
    Checked,
    AttackSearched,
    AttackChecked,
}

impl Split {
    const fn new((first, last): (u64, u64), attack: Option<(u64, u64)>) -> Self {
        Self {
            middle_us: first + (last - first) / 2,
            attack,
        }
    }

    const fn part(&self, at_us: u64) -> LogPart {
        match self.attack {
            Some((from, to)) if at_us >= from && at_us < to => {
                if at_us < from + (to - from) / 2 {
                    LogPart::AttackSearched
                } else {
                    LogPart::AttackChecked
                }
            }
            _ if at_us <= self.middle_us => LogPart::Searched,
            _ => LogPart::Checked,
        }
    }
}

/// Searches for a limit.
///
/// Returns `None` if the log has no requests, or none outside the attack.
///
/// # Errors
///
/// Returns an error if the spool cannot be read.
pub fn find(spool: &mut Spool, goal: &Goal) -> io::Result<Option<Found>> {
    let split = Split::new(spool.span_us(), goal.attack_us);
    let Some(needs) = Needs::measure(spool, &split)? else {
        return Ok(None);
    };
    let candidates = needs.candidates(goal.touched_ppm);
    let (best, reaches_goal) = match goal.attack_us {
        None => (tightest(&candidates, goal.stretch), true),
        Some(attack) => {
            let best = attack::loosest(spool, &split, attack, &candidates, goal)?;
            (
                best.map(|(best, _)| best),
                best.is_some_and(|(_, reaches)| reaches),
            )
        }
    };
    let Some(best) = best else {
        return Ok(None);
    };
    verify::verified(spool, &split, goal, best, &needs, reaches_goal)
}

/// Returns the candidate that lets the least through in a stretch.
fn tightest(candidates: &[Candidate], stretch: Duration) -> Option<Candidate> {
    let by_most =
        |a: &&Candidate, b: &&Candidate| a.most_in(stretch).total_cmp(&b.most_in(stretch));
    candidates.iter().min_by(by_most).copied()
}
