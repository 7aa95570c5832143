//! token_bucket, gcra and leaky_bucket: one arithmetic, the time at which the bucket is free again.
//!
//! A thousandth of a unit takes period / (1000 × limit) to refill: in lowest terms `numerator / denominator`
//! nanoseconds. Times are kept as whole nanoseconds and a part of the denominator, so nothing is ever rounded.

use super::Algorithm;
use super::span::Span;
use crate::cost::THOUSANDTHS;
use crate::policy::{self, Limit};

/// When the bucket is free again: `free_at` + `part` / denominator. From then on it equals a fresh one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BucketState {
    pub(crate) free_at: u64,
    pub(crate) part: u64,
    /// Tells the denominator that `part` was written under from others: [`Bucket::mark`].
    pub(crate) mark: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    numerator: u64,
    denominator: u64,
    mark: u8,
    /// The time to refill one unit, and the whole bucket.
    unit: Span,
    full: Span,
    capacity: u64,
    queues: bool,
    /// Whether the whole bucket, counted in parts of the denominator, fits 64 bits.
    is_narrow: bool,
}

impl Bucket {
    pub(crate) fn new(limit: &Limit) -> Self {
        let thousandths = limit.limit() * THOUSANDTHS;
        let shared = gcd(limit.period_ns(), thousandths);
        let (numerator, denominator) = (limit.period_ns() / shared, thousandths / shared);
        let capacity = limit.capacity();
        let full = span(capacity * THOUSANDTHS, numerator, denominator);
        let parts = (u128::from(full.ns) + 1) * u128::from(denominator);
        let unit_parts = u128::from(numerator) * u128::from(THOUSANDTHS);
        Self {
            numerator,
            denominator,
            mark: mark(denominator),
            unit: span(THOUSANDTHS, numerator, denominator),
            full,
            capacity,
            queues: limit.algorithm() == policy::Algorithm::LeakyBucket,
            is_narrow: parts.max(unit_parts) <= u128::from(u64::MAX),
        }
    }

    fn span_of(&self, cost: u64) -> Span {
        if cost == THOUSANDTHS {
            return self.unit;
        }
        span(cost, self.numerator, self.denominator)
    }

    /// The time until the bucket is free again.
    fn ahead(&self, state: &BucketState, now: u64) -> Span {
        if state.free_at < now {
            return Span::default();
        }
        Span { ns: state.free_at - now, part: state.part }
    }

    fn set_ahead(&self, state: &mut BucketState, now: u64, ahead: Span) {
        *state = BucketState { free_at: now.saturating_add(ahead.ns), part: ahead.part, mark: self.mark };
    }
}

impl Algorithm for Bucket {
    type State = BucketState;

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn bring_back(&self, state: &mut BucketState, now: u64) -> bool {
        // A part of another limit's denominator says nothing here: up to the next nanosecond, which gives nothing away.
        let is_foreign = state.part != 0 && (state.mark != self.mark || state.part >= self.denominator);
        if is_foreign {
            *state = BucketState { free_at: state.free_at.saturating_add(1), part: 0, mark: self.mark };
        }
        let is_ahead_of_full = self.ahead(state, now) > self.full;
        if is_ahead_of_full {
            self.set_ahead(state, now, self.full);
        }
        is_foreign || is_ahead_of_full
    }

    fn wait(&self, state: &BucketState, now: u64, cost: u64) -> Option<u64> {
        let wanted = self.ahead(state, now).plus(self.span_of(cost), self.denominator);
        (wanted > self.full).then(|| wanted.minus(self.full, self.denominator).ceil())
    }

    fn delay(&self, state: &BucketState, now: u64) -> u64 {
        if self.queues { self.ahead(state, now).ceil() } else { 0 }
    }

    fn take(&self, state: &mut BucketState, now: u64, cost: u64) {
        let ahead = self.ahead(state, now).plus(self.span_of(cost), self.denominator);
        self.set_ahead(state, now, ahead);
    }

    fn give_back(&self, state: &mut BucketState, now: u64, cost: u64) {
        let cost = cost.min(self.capacity * THOUSANDTHS);
        let ahead = self.ahead(state, now).minus(self.span_of(cost), self.denominator);
        self.set_ahead(state, now, ahead);
    }

    fn remaining(&self, state: &BucketState, now: u64) -> u64 {
        let free = self.full.minus(self.ahead(state, now), self.denominator);
        if self.is_narrow {
            return (free.ns * self.denominator + free.part) / (self.numerator * THOUSANDTHS);
        }
        let parts = u128::from(free.ns) * u128::from(self.denominator) + u128::from(free.part);
        // At most the capacity: it fits.
        (parts / (u128::from(self.numerator) * u128::from(THOUSANDTHS))) as u64
    }

    fn reset_after(&self, state: &BucketState, now: u64) -> u64 {
        self.ahead(state, now).ceil()
    }
}

/// The time that `cost` takes to refill. At most 36,600 days for what is within a capacity, so it fits.
fn span(cost: u64, numerator: u64, denominator: u64) -> Span {
    if denominator == 1 {
        return Span { ns: cost.saturating_mul(numerator), part: 0 };
    }
    let parts = u128::from(cost) * u128::from(numerator);
    let denominator = u128::from(denominator);
    Span { ns: u64::try_from(parts / denominator).unwrap_or(u64::MAX), part: (parts % denominator) as u64 }
}

/// Eight bits of a denominator, mixed, so that two limits in turn on one key are told apart nearly always. Where they
/// are not, a time is wrong by less than a nanosecond.
fn mark(denominator: u64) -> u8 {
    (denominator.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
