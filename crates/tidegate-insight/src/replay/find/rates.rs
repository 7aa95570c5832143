//! Round rates to choose from.

use std::time::Duration;

use tidegate_core::Rate;

/// The number of rates in one search.
const RATES: usize = 36;
const STEPS: [u64; 9] = [10, 15, 20, 25, 30, 40, 50, 60, 80];

/// Returns about [`RATES`] round rates between two numbers of units per microsecond.
pub(super) fn between(lowest: f64, highest: f64) -> Vec<Rate> {
    let hour = [1, 2, 3, 5, 10, 20, 30].map(|count| Rate::new(count, Duration::from_secs(3_600)));
    let minute = [1, 2, 3, 4, 5, 6, 8].map(Rate::per_minute);
    // Up to a few per second, a rate per minute is finer.
    let minutes = [10_u64, 100].into_iter();
    let minutes = minutes.flat_map(|scale| STEPS.map(|step| Rate::per_minute(step * scale / 10)));
    let seconds = (0..8).flat_map(|power| {
        STEPS.map(|step| Rate::per_second(step.saturating_mul(10_u64.pow(power))))
    });
    let all = hour.into_iter().chain(minute).chain(minutes).chain(seconds);
    let mut rates: Vec<Rate> = all.collect();
    rates.sort_by(|a, b| per_us(a).total_cmp(&per_us(b)));
    rates.dedup_by(|a, b| per_us(a) == per_us(b));
    // The next one outside the range on either side stays.
    let first = rates
        .partition_point(|rate| per_us(rate) < lowest)
        .saturating_sub(1);
    let last = rates
        .partition_point(|rate| per_us(rate) <= highest)
        .min(rates.len() - 1);
    let chosen = &rates[first.min(last)..=last];
    let thin = chosen.len().div_ceil(RATES).max(1);
    chosen.iter().copied().step_by(thin).collect()
}

/// Returns the units per microsecond.
pub(super) fn per_us(rate: &Rate) -> f64 {
    // A rate's own numbers are private: the limit that it makes shows them.
    let limit = tidegate_core::Limit::token_bucket(*rate);
    limit.limit() as f64 / limit.period().as_micros() as f64
}
