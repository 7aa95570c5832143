//! The arithmetic of a bucket in microseconds, for the script. Products that do not fit in a double
//! are computed here.

use tidegate_core::remote::greatest_common_divisor;
use tidegate_core::{Cost, Limit};

/// Longer than any refill, and still exact in a double when a whole refill is added.
const NEVER_US: u64 = 1 << 52;

/// Whole microseconds and a part of the rate's denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefillTime {
    pub(crate) us: u64,
    pub(crate) part: u64,
}

impl RefillTime {
    /// Longer than any other.
    pub(crate) const NEVER: Self = Self {
        us: NEVER_US,
        part: 0,
    };
}

/// The refill times of a bucket. A thousandth takes `numerator / denominator` microseconds, in
/// lowest terms.
#[derive(Clone, Debug)]
pub(crate) struct Refill {
    numerator: u64,
    pub(crate) denominator: u64,
    capacity: u64,
    /// The capacity and the debt.
    most_counted: u64,
}

impl Refill {
    pub(crate) fn new(limit: &Limit) -> Self {
        let (period, thousandths) = (period_us(limit), limit.limit() * 1_000);
        let shared = greatest_common_divisor(period, thousandths);
        Self {
            numerator: period / shared,
            denominator: thousandths / shared,
            capacity: limit.capacity() * 1_000,
            most_counted: limit.most_counted() * 1_000,
        }
    }

    /// Returns the time to refill the whole bucket.
    pub(crate) fn full(&self) -> RefillTime {
        self.exact(self.capacity)
    }

    /// Returns the time to refill the whole bucket and its debt.
    pub(crate) fn longest(&self) -> RefillTime {
        self.exact(self.most_counted)
    }

    /// Returns the time to refill a cost. A cost above the capacity never fits.
    pub(crate) fn span(&self, cost: Cost) -> RefillTime {
        if cost.thousandths() > self.capacity {
            return RefillTime::NEVER;
        }
        self.exact(cost.thousandths())
    }

    /// Returns the time to refill a cost, at most that of the whole bucket and its debt.
    pub(crate) fn span_at_most_longest(&self, cost: Cost) -> RefillTime {
        self.exact(cost.thousandths().min(self.most_counted))
    }

    fn exact(&self, thousandths: u64) -> RefillTime {
        let parts = u128::from(thousandths) * u128::from(self.numerator);
        let denominator = u128::from(self.denominator);
        // A whole bucket refills within 36,600 days, so it fits.
        RefillTime {
            us: (parts / denominator) as u64,
            part: (parts % denominator) as u64,
        }
    }
}

/// Returns the period of a limit: whole milliseconds, at most 366 days.
pub(crate) fn period_us(limit: &Limit) -> u64 {
    limit.period().as_micros() as u64
}
