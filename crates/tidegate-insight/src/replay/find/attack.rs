//! The loosest limit that stops an attack.
//!
//! The attack is the traffic of its period above the usual level. A limit stops a part of it: the
//! requests that it denies in the period, divided by the excess.

use std::collections::HashMap;
use std::io;

use super::{Candidate, Goal, LogPart, Split};
use crate::replay::Spool;

/// The number of requests of an attack that are looked at. With more, keys are sampled.
const REQUESTS: u64 = 200_000;
/// The bursts to try, relative to the smallest that leaves enough keys untouched, in tenths.
const LOOSER: [u64; 6] = [10, 15, 20, 30, 50, 100];

/// The requests above the usual level, in thousandths of a request for precision.
pub(super) fn excess(attack: u64, attack_us: u64, rest: u64, rest_us: u64) -> f64 {
    let usual = match rest_us {
        0 => 0.0,
        _ => rest as f64 * attack_us as f64 / rest_us as f64,
    };
    (attack as f64 - usual).max(1.0)
}

/// Returns the loosest candidate that stops enough of the first half of the attack, or otherwise
/// the one that stops the most; and whether it stops enough.
pub(super) fn loosest(
    spool: &mut Spool,
    split: &Split,
    (from, to): (u64, u64),
    candidates: &[Candidate],
    goal: &Goal,
) -> io::Result<Option<(Candidate, bool)>> {
    let tried: Vec<Candidate> = candidates
        .iter()
        .flat_map(|candidate| LOOSER.map(|tenths| looser(candidate, tenths)))
        .collect();
    let sample = sample(spool, split)?;
    let mut keys: HashMap<u64, (u64, Box<[f32]>)> = HashMap::new();
    let mut denied = vec![0_u64; tried.len()];
    let (mut attacked, mut rest) = (0_u64, 0_u64);
    spool.each(|request| {
        if !request.is_in_sample(sample) {
            return;
        }
        match split.part(request.at_us) {
            LogPart::AttackSearched => attacked += 1,
            LogPart::AttackChecked => return,
            LogPart::Searched | LogPart::Checked => {
                rest += 1;
                return;
            }
        }
        let cost = request.cost as f32 / 1e3;
        let fresh = || (request.at_us, vec![0.0; tried.len()].into());
        let (last, levels) = keys.entry(request.key).or_insert_with(fresh);
        let elapsed = (request.at_us - *last) as f32;
        *last = request.at_us;
        for ((level, candidate), denied) in levels.iter_mut().zip(&tried).zip(&mut denied) {
            let drained = (*level - elapsed * candidate.per_us as f32).max(0.0);
            let is_denied = drained + cost > candidate.burst as f32 * 1.000_01;
            *level = if is_denied { drained } else { drained + cost };
            *denied += u64::from(is_denied);
        }
    })?;
    let (first, last) = spool.span_us();
    let rest_us = (last - first).saturating_sub(to - from);
    let excess = excess(attacked, (to - from) / 2, rest, rest_us);
    let wanted = goal.stopped_ppm as f64 / 1e6;
    let stopping = tried
        .iter()
        .zip(&denied)
        .filter(|(_, n)| **n as f64 / excess >= wanted);
    let by_most =
        |(a, _): &(&Candidate, &u64), (b, _): &(&Candidate, &u64)| -> std::cmp::Ordering {
            a.most_in(goal.stretch).total_cmp(&b.most_in(goal.stretch))
        };
    if let Some((best, _)) = stopping.max_by(by_most) {
        return Ok(Some((*best, true)));
    }
    let nearest = tried.iter().zip(&denied).max_by_key(|(_, denied)| **denied);
    Ok(nearest.map(|(nearest, _)| (*nearest, false)))
}

fn looser(candidate: &Candidate, tenths: u64) -> Candidate {
    let burst = (candidate.burst * tenths).div_ceil(10).min(1_000_000_000);
    Candidate {
        burst,
        ..*candidate
    }
}

/// Returns the share of keys with which the attack has few enough requests.
fn sample(spool: &mut Spool, split: &Split) -> io::Result<u64> {
    let mut requests = 0_u64;
    spool.each(|request| {
        let part = split.part(request.at_us);
        requests += u64::from(part == LogPart::AttackSearched);
    })?;
    Ok(requests.div_ceil(REQUESTS).max(1))
}
