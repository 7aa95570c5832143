//! Exact durations: whole nanoseconds where they suffice, nanoseconds with a fraction where they do
//! not.

/// An exact duration with a denominator that the bucket knows. Spans of the same denominator
/// compare like the durations.
pub(crate) trait Span: Copy + Default + Ord + std::fmt::Debug {
    /// Set if this type of span has a fraction.
    const HAS_PARTS: bool;

    /// Creates a span of `parts`, of which `denominator` make a nanosecond.
    fn of_parts(parts: u128, denominator: u64) -> Self;

    /// Returns the whole nanoseconds, and the rest in parts.
    fn split(self) -> (u64, u64);

    /// Creates a span from the output of [`split`](Self::split).
    fn join(ns: u64, part: u64) -> Self;

    /// Adds two spans of at most one refill each. A refill takes at most 36,600 days, so the sum
    /// fits.
    fn plus(self, other: Self, denominator: u64) -> Self;

    /// Subtracts `other`, or returns zero if it is longer.
    fn minus(self, other: Self, denominator: u64) -> Self;

    /// Rounds up to whole nanoseconds.
    #[inline]
    fn ceil(self) -> u64 {
        let (ns, part) = self.split();
        ns.saturating_add(u64::from(part > 0))
    }
}

/// Whole nanoseconds: the denominator is 1, as for most rates in use.
pub(crate) type Whole = u64;

impl Span for Whole {
    const HAS_PARTS: bool = false;

    fn of_parts(parts: u128, denominator: u64) -> Self {
        u64::try_from(parts / u128::from(denominator)).unwrap_or(u64::MAX)
    }

    #[inline]
    fn split(self) -> (u64, u64) {
        (self, 0)
    }

    #[inline]
    fn join(ns: u64, _part: u64) -> Self {
        ns
    }

    #[inline]
    fn plus(self, other: Self, _denominator: u64) -> Self {
        self + other
    }

    #[inline]
    fn minus(self, other: Self, _denominator: u64) -> Self {
        self.saturating_sub(other)
    }
}

/// `ns` + `part` / denominator nanoseconds, with `part` below the denominator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fractional {
    ns: u64,
    part: u64,
}

impl Span for Fractional {
    const HAS_PARTS: bool = true;

    fn of_parts(parts: u128, denominator: u64) -> Self {
        let denominator = u128::from(denominator);
        let ns = u64::try_from(parts / denominator).unwrap_or(u64::MAX);
        Self {
            ns,
            part: (parts % denominator) as u64,
        }
    }

    #[inline]
    fn split(self) -> (u64, u64) {
        (self.ns, self.part)
    }

    #[inline]
    fn join(ns: u64, part: u64) -> Self {
        Self { ns, part }
    }

    #[inline]
    fn plus(self, other: Self, denominator: u64) -> Self {
        // Parts are below 10^12, so their sum fits.
        let part = self.part + other.part;
        if part >= denominator {
            return Self {
                ns: self.ns + other.ns + 1,
                part: part - denominator,
            };
        }
        Self {
            ns: self.ns + other.ns,
            part,
        }
    }

    #[inline]
    fn minus(self, other: Self, denominator: u64) -> Self {
        if self <= other {
            return Self::default();
        }
        if self.part >= other.part {
            return Self {
                ns: self.ns - other.ns,
                part: self.part - other.part,
            };
        }
        // Longer with the smaller part, so `self` has at least one more whole nanosecond.
        Self {
            ns: self.ns - other.ns - 1,
            part: self.part + denominator - other.part,
        }
    }
}
