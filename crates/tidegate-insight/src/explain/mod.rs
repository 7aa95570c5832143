//! Explains a policy: rates, worst cases, waits, memory, headers, and likely mistakes.

mod difference;
mod footprint;
mod greedy;
mod headers;
mod warnings;
mod worst_case;

use std::time::Duration;

use serde::Serialize;
use tidegate_core::{Algorithm, Cost, Limit, Policy};

pub use difference::{Difference, TraceStep};
pub use footprint::Footprint;
pub use headers::ExampleHeaders;
pub use worst_case::{Arrivals, WorstCase};

pub(crate) use worst_case::period_ns;

/// The properties of a policy.
///
/// # Examples
///
/// ```
/// use tidegate_insight::Explanation;
///
/// let policy = "fixed_window 100/minute".parse()?;
/// let explanation = Explanation::of(&policy, None);
/// // 100 just before the end of a minute, and 100 just after.
/// assert_eq!(explanation.worst_cases[0].most, 200);
/// # Ok::<(), tidegate_core::PolicyError>(())
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The policy in canonical text.
    pub policy: String,
    /// The most units that one request may cost. A request that costs more is never allowed.
    pub at_once: u64,
    /// The limit with the lowest average rate.
    pub sustained: SustainedRate,
    /// The worst case in a second, in each period and in two of each.
    pub worst_cases: Vec<WorstCase>,
    /// The longest time until the whole capacity is free, in nanoseconds.
    pub refill_ns: u64,
    /// The longest time until a request of cost 1 is allowed, in nanoseconds.
    pub longest_wait_ns: u64,
    /// The memory of one key.
    pub footprint: Footprint,
    /// The headers that a client receives.
    pub headers: ExampleHeaders,
    /// Likely mistakes.
    pub warnings: Vec<String>,
}

/// The average rate of a client that sends all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SustainedRate {
    /// The units per period.
    pub units: u64,
    /// The period in nanoseconds.
    pub period_ns: u64,
}

impl SustainedRate {
    /// Returns the units in a stretch of time, in thousandths, rounded to the nearest.
    #[must_use]
    pub fn thousandths_per(&self, stretch: Duration) -> u64 {
        let period = u128::from(self.period_ns.max(1));
        let doubled = u128::from(self.units) * 2_000 * stretch.as_nanos() + period;
        let thousandths = doubled / (2 * period);
        u64::try_from(thousandths).unwrap_or(u64::MAX)
    }

    /// Compares two rates without rounding.
    fn is_lower_than(&self, other: &Self) -> bool {
        u128::from(self.units) * u128::from(other.period_ns)
            < u128::from(other.units) * u128::from(self.period_ns)
    }
}

impl Explanation {
    /// Explains a policy. `cost` is that of a typical request, for warnings.
    #[must_use]
    pub fn of(policy: &Policy, cost: Option<Cost>) -> Self {
        let limits = policy.limits();
        let capacities = limits.iter().map(Limit::capacity);
        Self {
            policy: policy.to_string(),
            at_once: capacities.min().unwrap_or(0),
            sustained: sustained(limits),
            worst_cases: stretches(limits)
                .into_iter()
                .map(|stretch| WorstCase::of(policy, stretch))
                .collect(),
            refill_ns: limits.iter().map(refill_ns).max().unwrap_or(0),
            longest_wait_ns: limits.iter().map(longest_wait_ns).max().unwrap_or(0),
            footprint: Footprint::of(policy),
            headers: ExampleHeaders::of(policy),
            warnings: warnings::of(policy, cost),
        }
    }
}

fn sustained(limits: &[Limit]) -> SustainedRate {
    let rates = limits.iter().map(|limit| SustainedRate {
        units: limit.limit(),
        period_ns: period_ns(limit),
    });
    let lowest = rates.reduce(|a, b| if b.is_lower_than(&a) { b } else { a });
    lowest.unwrap_or(SustainedRate {
        units: 0,
        period_ns: 1,
    })
}

/// Returns a second, each period and two of each, in order.
fn stretches(limits: &[Limit]) -> Vec<Duration> {
    let periods = limits
        .iter()
        .flat_map(|limit| [limit.period(), 2 * limit.period()]);
    let mut stretches: Vec<Duration> = periods.chain([Duration::from_secs(1)]).collect();
    stretches.sort_unstable();
    stretches.dedup();
    stretches
}

/// Returns the longest time until the whole capacity is free.
fn refill_ns(limit: &Limit) -> u64 {
    let period = period_ns(limit);
    match limit.algorithm() {
        Algorithm::FixedWindow | Algorithm::SlidingWindowLog => period,
        Algorithm::SlidingWindowCounter => 2 * period,
        _ => units_ns(limit, limit.capacity() + limit.max_debt()),
    }
}

/// Returns the longest time until a request of cost 1 is allowed.
fn longest_wait_ns(limit: &Limit) -> u64 {
    let period = period_ns(limit);
    match limit.algorithm() {
        Algorithm::FixedWindow | Algorithm::SlidingWindowLog => period,
        Algorithm::SlidingWindowCounter => {
            // The whole limit, and the debt, at the start of a window: the request waits for the
            // next window, until the weight of this one leaves room.
            let counted = u128::from(limit.limit() + limit.max_debt());
            let excess = counted + 1 - u128::from(limit.limit());
            period + (u128::from(period) * excess).div_ceil(counted) as u64
        }
        _ => units_ns(limit, 1 + limit.max_debt()),
    }
}

/// Returns the time in which a bucket gains this many units.
fn units_ns(limit: &Limit, units: u64) -> u64 {
    let time =
        (u128::from(units) * u128::from(period_ns(limit))).div_ceil(u128::from(limit.limit()));
    u64::try_from(time).unwrap_or(u64::MAX)
}
