//! The check of a recommendation with a real limiter, on both parts of the log.

use std::collections::{BTreeMap, HashMap};
use std::io;

use serde::Serialize;
use tidegate_core::{Cost, Limit, Limiter, ManualClock, MemoryStore, Timestamp};

use super::levels::Needs;
use super::{Candidate, Found, Goal, LogPart, Split, attack};
use crate::replay::Spool;

const HOUR_US: u64 = 3_600_000_000;
/// Attempts with a larger burst, if rounding made the first one too small.
const ATTEMPTS: u32 = 4;

/// The effect of a limit on one part of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PartFigures {
    /// The keys outside the attack.
    pub keys: u64,
    /// The limited keys outside the attack.
    pub limited_keys: u64,
    /// The requests outside the attack.
    pub requests: u64,
    /// The denied requests outside the attack.
    pub denied: u64,
    /// The requests in the period of the attack.
    pub attack_requests: u64,
    /// The denied requests in the period of the attack.
    pub attack_denied: u64,
    /// The denied part of the traffic above the usual level, in the period of the attack.
    pub attack_stopped: Option<f64>,
}

/// The requests of one hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HourFigures {
    /// The start of the hour in microseconds since 1970.
    pub start_us: u64,
    /// The requests.
    pub requests: u64,
    /// The denied requests.
    pub denied: u64,
}

/// The outcome of one run.
struct Outcome {
    searched: PartFigures,
    checked: PartFigures,
    hours: Vec<HourFigures>,
}

/// Checks a candidate. If rounding made its burst too small, it grows by one.
pub(super) fn verified(
    spool: &mut Spool,
    split: &Split,
    goal: &Goal,
    mut candidate: Candidate,
    needs: &Needs,
    reaches_goal: bool,
) -> io::Result<Option<Found>> {
    for attempt in 1.. {
        let Some(outcome) = run(spool, split, &candidate, needs.sample)? else {
            return Ok(None);
        };
        let searched = &outcome.searched;
        let is_within = searched.limited_keys * 1_000_000 <= searched.keys * goal.touched_ppm;
        if is_within || attempt == ATTEMPTS {
            let limit = Limit::token_bucket(candidate.rate);
            return Ok(candidate.policy().map(|policy| Found {
                policy: policy.to_string(),
                limit: limit.limit(),
                period_us: limit.period().as_micros() as u64,
                burst: candidate.burst,
                searched: outcome.searched,
                checked: outcome.checked,
                hours: outcome.hours,
                sample: needs.sample,
                reaches_goal: reaches_goal && is_within,
            }));
        }
        candidate.burst += 1;
    }
    Ok(None)
}

fn run(
    spool: &mut Spool,
    split: &Split,
    candidate: &Candidate,
    sample: u64,
) -> io::Result<Option<Outcome>> {
    let clock = ManualClock::new();
    let builder = MemoryStore::builder()
        .max_keys(4_000_000)
        .clock(clock.clone());
    let (Ok(store), Some(policy)) = (builder.build(), candidate.policy()) else {
        return Ok(None);
    };
    let limiter = Limiter::new(store, policy);
    let mut tally = Tally::default();
    spool.each(|request| {
        let at = Timestamp::from_micros(request.at_us);
        let (Some(at), true) = (at, request.is_in_sample(sample)) else {
            return;
        };
        clock.set(at);
        let cost = Cost::from_thousandths(request.cost).unwrap_or(Cost::ONE);
        let decision = limiter.check(request.key).cost(cost).now();
        let is_denied = decision.is_ok_and(|decision| decision.is_denied());
        tally.add(
            split.part(request.at_us),
            request.at_us,
            request.key,
            is_denied,
        );
    })?;
    let (first, last) = spool.span_us();
    Ok(Some(tally.outcome(split, (first, last))))
}

#[derive(Default)]
struct Tally {
    searched: PartFigures,
    checked: PartFigures,
    /// For each key: seen and limited, in the searched and in the checked part.
    keys: HashMap<u64, [bool; 4]>,
    hours: BTreeMap<u64, HourFigures>,
}

impl Tally {
    fn add(&mut self, part: LogPart, at_us: u64, key: u64, is_denied: bool) {
        let is_searched = matches!(part, LogPart::Searched | LogPart::AttackSearched);
        let figures = if is_searched {
            &mut self.searched
        } else {
            &mut self.checked
        };
        if matches!(part, LogPart::AttackSearched | LogPart::AttackChecked) {
            figures.attack_requests += 1;
            figures.attack_denied += u64::from(is_denied);
            return;
        }
        figures.requests += 1;
        figures.denied += u64::from(is_denied);
        let seen = self.keys.entry(key).or_default();
        let offset = if is_searched { 0 } else { 2 };
        seen[offset] = true;
        seen[offset + 1] |= is_denied;
        let hour = self.hours.entry(at_us / HOUR_US).or_default();
        hour.start_us = at_us / HOUR_US * HOUR_US;
        hour.requests += 1;
        hour.denied += u64::from(is_denied);
    }

    fn outcome(mut self, split: &Split, (first, last): (u64, u64)) -> Outcome {
        let count = |index: usize| self.keys.values().filter(|seen| seen[index]).count() as u64;
        (self.searched.keys, self.searched.limited_keys) = (count(0), count(1));
        (self.checked.keys, self.checked.limited_keys) = (count(2), count(3));
        if let Some((from, to)) = split.attack {
            let rest = self.searched.requests + self.checked.requests;
            let rest_us = (last - first).saturating_sub(to - from);
            for part in [&mut self.searched, &mut self.checked] {
                let excess = attack::excess(part.attack_requests, (to - from) / 2, rest, rest_us);
                let share = part.attack_denied as f64 / excess;
                part.attack_stopped = (part.attack_requests > 0).then(|| share.min(1.0));
            }
        }
        Outcome {
            searched: self.searched,
            checked: self.checked,
            hours: self.hours.into_values().collect(),
        }
    }
}
