//! The bursts that keys need, for many rates in one pass.

use std::collections::HashMap;
use std::io;

use tidegate_core::Rate;

use super::{Candidate, LogPart, Split, rates};
use crate::replay::Spool;

/// The number of requests that a search looks at. With more, keys are sampled.
pub(super) const REQUESTS: u64 = 1_500_000;
/// The stretch over which the highest rate of a key is measured.
const PEAK_US: u64 = 10_000_000;
const BILLION: u64 = 1_000_000_000;

/// The levels of one key's bucket at every rate, and the highest of each.
struct KeyLevels {
    last_us: u64,
    levels: Box<[(f32, f32)]>,
}

/// The needed bursts of all keys of the searched part.
pub(super) struct Needs {
    rates: Vec<Rate>,
    /// For each rate, the needed burst of each key in units, sorted.
    bursts: Vec<Vec<f32>>,
    pub(super) sample: u64,
}

impl Needs {
    /// Measures the searched part of a log. Returns `None` if it is empty.
    pub(super) fn measure(spool: &mut Spool, split: &Split) -> io::Result<Option<Self>> {
        let sample = spool.sample_for(REQUESTS);
        let Some((lowest, highest)) = range(spool, split, sample)? else {
            return Ok(None);
        };
        let rates = rates::between(lowest, highest);
        let per_us: Vec<f32> = rates
            .iter()
            .map(|rate| rates::per_us(rate) as f32)
            .collect();
        let mut keys: HashMap<u64, KeyLevels> = HashMap::new();
        spool.each(|request| {
            if !request.is_in_sample(sample) || split.part(request.at_us) != LogPart::Searched {
                return;
            }
            let cost = request.cost as f32 / 1e3;
            let entry = keys.entry(request.key).or_insert_with(|| KeyLevels {
                last_us: request.at_us,
                levels: vec![(0.0, 0.0); per_us.len()].into(),
            });
            let elapsed = (request.at_us - entry.last_us) as f32;
            entry.last_us = request.at_us;
            for ((level, highest), rate) in entry.levels.iter_mut().zip(&per_us) {
                *level = (*level - elapsed * rate).max(0.0) + cost;
                *highest = highest.max(*level);
            }
        })?;
        let bursts = (0..rates.len()).map(|index| {
            let mut bursts: Vec<f32> = keys.values().map(|key| key.levels[index].1).collect();
            bursts.sort_unstable_by(f32::total_cmp);
            bursts
        });
        Ok(Some(Self {
            bursts: bursts.collect(),
            rates,
            sample,
        }))
    }

    /// Returns the smallest burst for each rate that limits at most this part of the keys.
    pub(super) fn candidates(&self, touched_ppm: u64) -> Vec<Candidate> {
        let rates = self.rates.iter().zip(&self.bursts);
        let candidates = rates.map(|(rate, bursts)| {
            let keys = bursts.len() as u64;
            let touched = keys * touched_ppm / 1_000_000;
            let index = (keys - 1).saturating_sub(touched) as usize;
            // Level and rate are rounded. The check with a real limiter follows.
            let burst = (f64::from(bursts[index]) - 1e-3).ceil().max(1.0) as u64;
            Candidate {
                rate: *rate,
                per_us: rates::per_us(rate),
                burst: burst.min(BILLION),
            }
        });
        candidates
            .filter(|candidate| candidate.policy().is_some())
            .collect()
    }
}

/// Returns the lowest and highest rate to try, in units per microsecond: the average of a busy key,
/// and the peak of the busiest.
fn range(spool: &mut Spool, split: &Split, sample: u64) -> io::Result<Option<(f64, f64)>> {
    /// Total, and the count of the current stretch.
    struct Peak {
        total: u64,
        stretch: u64,
        count: u64,
    }
    let mut keys: HashMap<u64, Peak> = HashMap::new();
    let mut highest = 0_u64;
    let mut span: Option<(u64, u64)> = None;
    spool.each(|request| {
        if !request.is_in_sample(sample) || split.part(request.at_us) != LogPart::Searched {
            return;
        }
        span = Some((
            span.map_or(request.at_us, |(first, _)| first),
            request.at_us,
        ));
        let stretch = request.at_us / PEAK_US;
        let peak = keys.entry(request.key).or_insert(Peak {
            total: 0,
            stretch,
            count: 0,
        });
        if peak.stretch != stretch {
            (peak.stretch, peak.count) = (stretch, 0);
        }
        peak.total += request.cost;
        peak.count += request.cost;
        highest = highest.max(peak.count);
    })?;
    let Some((first, last)) = span else {
        return Ok(None);
    };
    let mut totals: Vec<u64> = keys.values().map(|peak| peak.total).collect();
    totals.sort_unstable();
    let busy = totals[totals.len() * 99 / 100];
    let length = (last - first).max(PEAK_US) as f64;
    let lowest = busy as f64 / 1e3 / length / 4.0;
    Ok(Some((lowest, highest as f64 / 1e3 / PEAK_US as f64)))
}
