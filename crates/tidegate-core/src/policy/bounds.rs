//! Bounds of a limit's numbers, for the parser and for the typed constructors.

use std::time::Duration;

use super::limit::{Algorithm, Limit};

const MAX_UNITS: u64 = 1_000_000_000;
const MAX_LOG_UNITS: u64 = 1_000_000;
const DAY_MS: u128 = 86_400_000;
const MAX_PERIOD: Duration = Duration::from_secs(366 * 86_400);
const MAX_REFILL_DAYS: u128 = 36_600;

/// The maximum number of limits in a policy. It bounds the memory of a key and the work of a check.
pub(crate) const MAX_LIMITS: usize = 8;

/// The part of a limit that is out of bounds, so that the parser can point at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Limit,
    Period,
    Burst,
    Anchor,
    Debt,
}

/// The error for a limit that is out of bounds.
#[derive(Debug)]
pub(crate) struct OutOfBounds {
    pub(crate) part: Part,
    pub(crate) message: String,
}

fn out(part: Part, message: String) -> Result<(), OutOfBounds> {
    Err(OutOfBounds { part, message })
}

pub(crate) fn check(limit: &Limit) -> Result<(), OutOfBounds> {
    let units = limit.rate.limit;
    if !(1..=MAX_UNITS).contains(&units) {
        return out(
            Part::Limit,
            format!("a limit of {units} is out of bounds: expected 1 to 1,000,000,000"),
        );
    }
    if limit.algorithm == Algorithm::SlidingWindowLog && units > MAX_LOG_UNITS {
        return out(
            Part::Limit,
            format!(
                "sliding_window_log keeps every request: expected a limit of at most 1,000,000, not {units}"
            ),
        );
    }
    check_period(limit.rate.period)?;
    check_options(limit)?;
    check_refill(limit)
}

fn check_period(period: Duration) -> Result<(), OutOfBounds> {
    if !period.subsec_nanos().is_multiple_of(1_000_000) {
        return out(
            Part::Period,
            format!("a period of {period:?} is too fine: expected whole milliseconds"),
        );
    }
    if period.is_zero() || period > MAX_PERIOD {
        return out(
            Part::Period,
            format!("a period of {period:?} is out of bounds: expected 1 ms to 366 days"),
        );
    }
    Ok(())
}

fn check_options(limit: &Limit) -> Result<(), OutOfBounds> {
    if let Some(burst) = limit.burst {
        if !limit.algorithm.is_bucket() {
            return out(
                Part::Burst,
                format!(
                    "{} has no burst: expected token_bucket, leaky_bucket or gcra for one",
                    limit.algorithm
                ),
            );
        }
        if !(1..=MAX_UNITS).contains(&burst) {
            return out(
                Part::Burst,
                format!("a burst of {burst} is out of bounds: expected 1 to 1,000,000,000"),
            );
        }
    }
    if limit.debt > MAX_UNITS {
        return out(
            Part::Debt,
            format!(
                "a debt of {} is out of bounds: expected 0 to 1,000,000,000",
                limit.debt
            ),
        );
    }
    if limit.anchor.is_some() && limit.algorithm != Algorithm::FixedWindow {
        return out(
            Part::Anchor,
            format!(
                "{} has no anchor: expected fixed_window for one",
                limit.algorithm
            ),
        );
    }
    Ok(())
}

/// Checks the time to refill a bucket's whole burst and debt: (burst + debt) × period / limit.
fn check_refill(limit: &Limit) -> Result<(), OutOfBounds> {
    if !limit.algorithm.is_bucket() {
        return Ok(());
    }
    let refill_times_limit = u128::from(limit.most_counted()) * limit.rate.period.as_millis();
    let days = refill_times_limit / (u128::from(limit.rate.limit) * DAY_MS);
    if refill_times_limit > MAX_REFILL_DAYS * DAY_MS * u128::from(limit.rate.limit) {
        return out(
            limit.refill_part(),
            format!(
                "refilling the whole burst{} would take {days} days: expected at most 36,600 days",
                if limit.debt > 0 { " and debt" } else { "" }
            ),
        );
    }
    Ok(())
}
