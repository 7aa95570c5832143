//! Durations that are exact: whole nanoseconds where these are enough, and with a fraction where they are not.

/// An exact duration, of a denominator that its bucket knows. Spans of one denominator compare as the durations do.
pub(crate) trait Span: Copy + Default + Ord + std::fmt::Debug {
    /// Of so many parts, of which `denominator` make a nanosecond.
    fn of_parts(parts: u128, denominator: u64) -> Self;

    /// The whole nanoseconds, and what is left in parts.
    fn split(self) -> (u64, u64);

    /// The same in whole nanoseconds, if this kind of span has nothing else.
    fn whole(self) -> Option<u64>;

    /// The inverse of [`split`](Self::split).
    fn join(ns: u64, part: u64) -> Self;

    /// Of two that are each at most a whole bucket's, which is at most 36,600 days: the sum fits.
    fn plus(self, other: Self, denominator: u64) -> Self;

    /// Zero where `other` is the longer.
    fn minus(self, other: Self, denominator: u64) -> Self;

    /// Rounded up to whole nanoseconds.
    #[inline]
    fn ceil(self) -> u64 {
        let (ns, part) = self.split();
        ns.saturating_add(u64::from(part > 0))
    }
}

/// Whole nanoseconds: the denominator is 1, as it is for most rates that people choose.
pub(crate) type Whole = u64;

impl Span for Whole {
    fn of_parts(parts: u128, denominator: u64) -> Self {
        u64::try_from(parts / u128::from(denominator)).unwrap_or(u64::MAX)
    }

    #[inline]
    fn split(self) -> (u64, u64) {
        (self, 0)
    }

    #[inline]
    fn whole(self) -> Option<u64> {
        Some(self)
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
    fn whole(self) -> Option<u64> {
        None
    }

    #[inline]
    fn join(ns: u64, part: u64) -> Self {
        Self { ns, part }
    }

    #[inline]
    fn plus(self, other: Self, denominator: u64) -> Self {
        // Parts are below 10^12: their sum fits.
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
        // Longer with the smaller part: at least one whole nanosecond more.
        Self {
            ns: self.ns - other.ns - 1,
            part: self.part + denominator - other.part,
        }
    }
}
