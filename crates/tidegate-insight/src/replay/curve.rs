//! The curve from a limit to the share of keys and requests that it denies, and its knee.

use std::collections::HashMap;
use std::io;

use serde::Serialize;
use tidegate_core::{Cost, Limit, Limiter, ManualClock, MemoryStore, Policy, Rate, Timestamp};

use super::Spool;

/// The number of limits on a curve, at most.
const POINTS: u32 = 24;
/// The number of requests that a curve is computed from. With more, keys are sampled.
const REQUESTS: u64 = 400_000;

/// The effect of limits of different sizes.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// The points, smallest limit first.
    pub points: Vec<CurvePoint>,
    /// The index of the knee: from there on, a larger limit frees few more keys.
    pub knee: Option<usize>,
    /// The curve was computed from one in this many keys.
    pub sample: u64,
}

/// One limit and its effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CurvePoint {
    /// The limit in canonical text.
    pub policy: String,
    /// The units per period.
    pub limit: u64,
    /// The keys of the sample.
    pub keys: u64,
    /// The keys with at least one denied request.
    pub limited_keys: u64,
    /// The requests of the sample.
    pub requests: u64,
    /// The denied requests.
    pub denied: u64,
}

impl Curve {
    /// Computes the curve of limits that have the shape of the policy's first limit: algorithm,
    /// period, and burst in proportion.
    ///
    /// # Errors
    ///
    /// Returns an error if the spool cannot be read.
    pub fn of(spool: &mut Spool, policy: &Policy) -> io::Result<Self> {
        let [shape, ..] = policy.limits() else {
            return Ok(Self::empty());
        };
        let sample = spool.sample_for(REQUESTS);
        let (busiest, key_count) = busiest_period(spool, sample, shape)?;
        let scaled = limits(busiest)
            .into_iter()
            .filter_map(|limit| scaled(shape, limit));
        let mut trials: Vec<Trial> = scaled
            .filter_map(|policy| Trial::new(policy, key_count))
            .collect();
        // The index of each key: its denials are one bit per limit.
        let mut keys: HashMap<u64, u32> = HashMap::new();
        let mut requests = 0;
        spool.each(|request| {
            let Some(at) = Timestamp::from_micros(request.at_us) else {
                return;
            };
            if !request.is_in_sample(sample) {
                return;
            }
            requests += 1;
            let denied_by = keys.entry(request.key).or_default();
            let cost = Cost::from_thousandths(request.cost).unwrap_or(Cost::ONE);
            for (bit, trial) in trials.iter_mut().enumerate() {
                if trial.denies(at, request.key, cost) {
                    *denied_by |= 1 << bit;
                }
            }
        })?;
        let limited = |bit: usize| {
            keys.values()
                .filter(|denied| *denied & (1 << bit) != 0)
                .count()
        };
        let points = trials.iter().enumerate().map(|(bit, trial)| CurvePoint {
            policy: trial.limiter.policy().to_string(),
            limit: trial.limiter.policy().limits()[0].limit(),
            keys: keys.len() as u64,
            limited_keys: limited(bit) as u64,
            requests,
            denied: trial.denied,
        });
        let points: Vec<CurvePoint> = points.collect();
        Ok(Self {
            knee: knee(&points),
            points,
            sample,
        })
    }

    const fn empty() -> Self {
        Self {
            points: Vec::new(),
            knee: None,
            sample: 1,
        }
    }
}

/// Returns the most units of one key in one period of the clock, and the number of keys.
fn busiest_period(spool: &mut Spool, sample: u64, shape: &Limit) -> io::Result<(u64, u64)> {
    let period = (shape.period().as_micros() as u64).max(1);
    let mut keys: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut most = 0;
    spool.each(|request| {
        if !request.is_in_sample(sample) {
            return;
        }
        let window = request.at_us / period;
        let entry = keys.entry(request.key).or_insert((window, 0));
        if entry.0 != window {
            *entry = (window, 0);
        }
        entry.1 += request.cost;
        most = most.max(entry.1);
    })?;
    Ok((most.div_ceil(1_000).max(1), keys.len() as u64))
}

/// Returns limits from 1 to `busiest`, evenly spaced on a logarithmic scale.
fn limits(busiest: u64) -> Vec<u64> {
    let top = (busiest as f64).ln();
    let mut limits: Vec<u64> = (0..POINTS)
        .map(|index| {
            (top * f64::from(index) / f64::from(POINTS - 1))
                .exp()
                .round() as u64
        })
        .collect();
    limits.dedup();
    limits
}

/// Returns a limit of the same shape, or `None` if it is out of bounds.
fn scaled(shape: &Limit, limit: u64) -> Option<Policy> {
    let mut scaled = Limit::new(shape.algorithm(), Rate::new(limit, shape.period()));
    if shape.algorithm().is_bucket() {
        let burst = u128::from(shape.capacity()) * u128::from(limit) / u128::from(shape.limit());
        scaled = scaled.burst(u64::try_from(burst).ok()?.max(1));
    }
    if shape.opens_with_first_hit() {
        scaled = scaled.anchor(tidegate_core::Anchor::FirstHit);
    }
    Policy::new([scaled]).ok()
}

struct Trial {
    limiter: Limiter,
    clock: ManualClock,
    denied: u64,
}

impl Trial {
    fn new(policy: Policy, keys: u64) -> Option<Self> {
        let clock = ManualClock::new();
        // Room for all keys, so that none is evicted.
        let max_keys = keys + keys / 2 + 1_024;
        let builder = MemoryStore::builder()
            .max_keys(max_keys)
            .clock(clock.clone());
        Some(Self {
            limiter: Limiter::new(builder.build().ok()?, policy),
            clock,
            denied: 0,
        })
    }

    fn denies(&mut self, at: Timestamp, key: u64, cost: Cost) -> bool {
        self.clock.set(at);
        let decision = self.limiter.check(key).cost(cost).now();
        let is_denied = decision.is_ok_and(|decision| decision.is_denied());
        self.denied += u64::from(is_denied);
        is_denied
    }
}

/// Returns the point that is farthest below the line from the first to the last, with the limits
/// on a logarithmic scale.
fn knee(points: &[CurvePoint]) -> Option<usize> {
    let (first, last) = (points.first()?, points.last()?);
    let x = |point: &CurvePoint| (point.limit as f64).ln();
    let y = |point: &CurvePoint| point.limited_keys as f64;
    let (width, height) = (x(last) - x(first), y(first) - y(last));
    if width <= 0.0 || height <= 0.0 {
        return None;
    }
    let below = |point: &CurvePoint| {
        let along = (x(point) - x(first)) / width;
        (1.0 - along) - (y(point) - y(last)) / height
    };
    let farthest = points.iter().map(below).enumerate();
    let (index, distance) = farthest.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    (distance > 0.05).then_some(index)
}
