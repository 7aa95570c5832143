//! The arithmetic of a bucket in microseconds, for the script: what does not fit a double is worked out here.

use tidegate_core::remote::greatest_common_divisor;
use tidegate_core::{Cost, Limit};

/// Longer than any bucket takes to fill, and still exact in a double when a whole bucket is added.
const NEVER_US: u64 = 1 << 52;

/// A span of whole microseconds and a part of the rate's denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) us: u64,
    pub(crate) part: u64,
}

impl Span {
    /// Longer than any other.
    pub(crate) const NEVER: Self = Self {
        us: NEVER_US,
        part: 0,
    };
}

/// How long a bucket's units take to refill: a thousandth takes `numerator / denominator` microseconds, in lowest terms.
#[derive(Clone, Debug)]
pub(crate) struct Refill {
    numerator: u64,
    pub(crate) denominator: u64,
    capacity: u64,
}

impl Refill {
    pub(crate) fn new(limit: &Limit) -> Self {
        let (period, thousandths) = (period_us(limit), limit.limit() * 1_000);
        let shared = greatest_common_divisor(period, thousandths);
        Self {
            numerator: period / shared,
            denominator: thousandths / shared,
            capacity: limit.capacity() * 1_000,
        }
    }

    /// The whole bucket's.
    pub(crate) fn full(&self) -> Span {
        self.exact(self.capacity)
    }

    /// A cost's; of one that never fits, a span that never does.
    pub(crate) fn span(&self, cost: Cost) -> Span {
        if cost.thousandths() > self.capacity {
            return Span::NEVER;
        }
        self.exact(cost.thousandths())
    }

    /// A cost's, and no more than the whole bucket's.
    pub(crate) fn span_at_most_full(&self, cost: Cost) -> Span {
        self.exact(cost.thousandths().min(self.capacity))
    }

    fn exact(&self, thousandths: u64) -> Span {
        let parts = u128::from(thousandths) * u128::from(self.numerator);
        let denominator = u128::from(self.denominator);
        // A whole bucket refills within 36,600 days: it fits.
        Span {
            us: (parts / denominator) as u64,
            part: (parts % denominator) as u64,
        }
    }
}

/// A limit's period, which is whole milliseconds of at most 366 days.
pub(crate) fn period_us(limit: &Limit) -> u64 {
    limit.period().as_micros() as u64
}
