//! Likely mistakes in a policy.

use std::time::Duration;

use tidegate_core::{Algorithm, Cost, Limit, Policy};

use super::{WorstCase, refill_ns, units_ns};
use crate::text::{count, duration};

const HOUR_NS: u64 = 3_600_000_000_000;
const DAY: Duration = Duration::from_secs(86_400);
/// The number of entries from which the memory of a log matters.
const LARGE_LOG: u64 = 10_000;

/// Returns the warnings for a policy whose requests cost up to `cost`.
pub(super) fn of(policy: &Policy, cost: Option<Cost>) -> Vec<String> {
    let mut warnings = Vec::new();
    unreachable_limits(policy, &mut warnings);
    if let Some(cost) = cost {
        cost_that_never_fits(policy, cost, &mut warnings);
    }
    for limit in policy.limits() {
        burst(limit, &mut warnings);
        calendar(limit, &mut warnings);
        edge(limit, &mut warnings);
        if limit.algorithm() == Algorithm::SlidingWindowLog && limit.limit() > LARGE_LOG {
            warnings.push(format!(
                "{limit}: a busy key stores up to {} times of requests, {} MB in memory; \
                 sliding_window_counter needs two numbers",
                count(limit.limit()),
                count((limit.limit() * 32).div_ceil(1_000_000)),
            ));
        }
    }
    warnings
}

/// A limit that never denies a request, because another always denies it first.
fn unreachable_limits(policy: &Policy, warnings: &mut Vec<String>) {
    let limits = policy.limits();
    for (index, limit) in limits.iter().enumerate() {
        let stricter = limits.iter().enumerate().find(|(other, strict)| {
            // If two limits imply each other, the first one stays.
            *other != index && implies(strict, limit) && !(index < *other && implies(limit, strict))
        });
        if let Some((_, stricter)) = stricter {
            warnings.push(format!(
                "{limit}: never denies, because {stricter} is stricter"
            ));
        }
    }
}

/// Returns `true` if requests that `strict` allows are always allowed by `limit`.
fn implies(strict: &Limit, limit: &Limit) -> bool {
    let most_in = |stretch: Duration| {
        let policy = Policy::new([*strict]);
        policy.map_or(u64::MAX, |policy| WorstCase::of(&policy, stretch).most)
    };
    let is_slower = || {
        u128::from(strict.limit()) * limit.period().as_nanos()
            <= u128::from(limit.limit()) * strict.period().as_nanos()
    };
    match limit.algorithm() {
        Algorithm::FixedWindow | Algorithm::SlidingWindowLog => {
            most_in(limit.period()) <= limit.capacity()
        }
        // Both of its windows together.
        Algorithm::SlidingWindowCounter => most_in(2 * limit.period()) <= limit.capacity(),
        // A bucket denies nothing that starts within its burst and continues within its rate. The
        // largest burst of a window limit is that of two adjacent windows.
        _ if strict.algorithm().is_bucket() => is_slower() && strict.capacity() <= limit.capacity(),
        _ => is_slower() && most_in(strict.period()) <= limit.capacity(),
    }
}

fn cost_that_never_fits(policy: &Policy, cost: Cost, warnings: &mut Vec<String>) {
    let needed = cost.thousandths();
    let limits = policy.limits().iter();
    for limit in limits.filter(|limit| limit.capacity().saturating_mul(1_000) < needed) {
        let option = if limit.algorithm().is_bucket() {
            "burst"
        } else {
            "limit"
        };
        warnings.push(format!(
            "{limit}: a request of cost {cost} is never allowed; its {option} must be at least {}",
            count(needed.div_ceil(1_000)),
        ));
    }
}

/// A burst that hides a wrong rate, or forbids two requests at once.
fn burst(limit: &Limit, warnings: &mut Vec<String>) {
    if !limit.algorithm().is_bucket() {
        return;
    }
    let capacity = limit.capacity();
    if capacity >= 10 * limit.limit() && refill_ns(limit) > HOUR_NS {
        warnings.push(format!(
            "{limit}: the burst hides the rate; after the first {} requests a client gets one every \
             {}, and a full burst returns after {}",
            count(capacity),
            duration(units_ns(limit, 1)),
            duration(refill_ns(limit)),
        ));
    }
    if capacity == 1 {
        warnings.push(format!(
            "{limit}: two requests at once are never allowed; a browser or a retry sends several"
        ));
    }
}

/// Periods that are not those of a calendar.
fn calendar(limit: &Limit, warnings: &mut Vec<String>) {
    let days = limit.period().as_secs() / DAY.as_secs();
    let is_whole_days = limit.period() == DAY * days as u32;
    let unit = match days {
        365 => "a year is 365 days",
        1.. if days.is_multiple_of(30) => "a month is 30 days",
        _ => return,
    };
    if !is_whole_days {
        return;
    }
    let start = match limit.algorithm() {
        Algorithm::FixedWindow if !limit.opens_with_first_hit() => {
            ", counted from 1970-01-01; windows do not start with a calendar month"
        }
        _ => ", not a calendar one",
    };
    warnings.push(format!("{limit}: {unit}{start}"));
}

/// The double limit at the edge of two windows.
fn edge(limit: &Limit, warnings: &mut Vec<String>) {
    if limit.algorithm() == Algorithm::FixedWindow && limit.limit() > 1 {
        warnings.push(format!(
            "{limit}: twice the limit can pass around the edge of two windows; \
             sliding_window_log or a bucket avoids it"
        ));
    }
}
