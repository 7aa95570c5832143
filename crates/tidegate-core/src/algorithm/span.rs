//! A duration that is exact: whole nanoseconds and a fraction of one.

/// `ns` + `part` / denominator nanoseconds, with `part` below the denominator, which its bucket knows.
/// Spans of one denominator compare as the durations do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) ns: u64,
    pub(super) part: u64,
}

impl Span {
    pub(super) fn plus(self, other: Self, denominator: u64) -> Self {
        // Parts are below 10^12: their sum fits.
        let part = self.part + other.part;
        if part >= denominator {
            return Self { ns: self.ns.saturating_add(other.ns).saturating_add(1), part: part - denominator };
        }
        Self { ns: self.ns.saturating_add(other.ns), part }
    }

    /// Zero where `other` is the longer.
    pub(super) fn minus(self, other: Self, denominator: u64) -> Self {
        if self <= other {
            return Self::default();
        }
        if self.part >= other.part {
            return Self { ns: self.ns - other.ns, part: self.part - other.part };
        }
        // Longer with the smaller part: at least one whole nanosecond more.
        Self { ns: self.ns - other.ns - 1, part: self.part + denominator - other.part }
    }

    /// Rounded up to whole nanoseconds.
    pub(super) fn ceil(self) -> u64 {
        self.ns.saturating_add(u64::from(self.part > 0))
    }
}
