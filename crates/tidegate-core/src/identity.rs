//! Identities: the text that names a policy's counters in every store.
//!
//! Two plans share the counters of a key exactly if they have the same namespace and the same
//! identity. The text contains no `:` and no brace, so that a store can embed it in a longer name.

use crate::policy::{Algorithm, Limit, Policy};
use crate::store::ANY_RATE;

/// Returns the identity of a policy's counters in a namespace.
///
/// - Without a namespace the identity is the whole policy: `fw/5/1m`, `tb/100/1m/20/d50` (rate,
///   burst, debt). The order of limits does not matter.
/// - In a namespace, windows and logs are identified by algorithm, anchor and period (`fw/1m`), so
///   that a changed limit keeps the counts. A single bucket is identified by all of its numbers.
/// - A bucket beside other limits is `tb`. Its numbers are stored with its state, see
///   [`BucketNumbers`], so that the other limits keep their counts when its numbers change.
/// - In [`ANY_RATE`] a key has one bucket, whatever its numbers.
#[doc(hidden)] // For Tidegate's own stores.
#[must_use]
pub fn identity(policy: &Policy, namespace: &str) -> String {
    let limits = policy.limits();
    let in_order = |index: usize| {
        policy
            .stored_order()
            .map_or(index, |order| usize::from(order[index]))
    };
    let parts: Vec<String> = (0..limits.len())
        .map(|index| limit_identity(&limits[in_order(index)], namespace, limits.len()))
        .collect();
    parts.join("+")
}

fn limit_identity(limit: &Limit, namespace: &str, limit_count: usize) -> String {
    let name = match (limit.algorithm(), limit.opens_with_first_hit()) {
        (Algorithm::FixedWindow, false) => "fw",
        (Algorithm::FixedWindow, true) => "ff",
        (Algorithm::SlidingWindowLog, _) => "sl",
        (Algorithm::SlidingWindowCounter, _) => "sc",
        (Algorithm::TokenBucket, _) => "tb",
        (Algorithm::LeakyBucket, _) => "lb",
        (Algorithm::Gcra, _) => "gc",
    };
    let is_bucket = limit.algorithm().is_bucket();
    let period = period(limit.period().as_millis());
    if namespace == ANY_RATE || (is_bucket && !namespace.is_empty() && limit_count > 1) {
        name.to_owned()
    } else if !namespace.is_empty() && !is_bucket {
        format!("{name}/{period}")
    } else {
        let mut text = format!("{name}/{}/{period}", limit.limit());
        if limit.capacity() != limit.limit() {
            text += &format!("/{}", limit.capacity());
        }
        if limit.max_debt() > 0 {
            text += &format!("/d{}", limit.max_debt());
        }
        text
    }
}

/// Formats a period in the largest unit that divides it.
fn period(ms: u128) -> String {
    const UNITS: [(u128, &str); 4] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
    ];
    match UNITS.into_iter().find(|(unit, _)| ms.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", ms / unit),
        None => format!("{ms}ms"),
    }
}

/// The numbers that identify a bucket beside other limits of a named policy. A bucket with other
/// numbers is another bucket.
#[doc(hidden)] // For Tidegate's own stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketNumbers {
    limit: u32,
    burst: u32,
    debt: u32,
    period_ms: u64,
}

/// Limits, bursts and debts are at most 10^9, so they fit in 30 bits. A period takes at most 35.
const UNIT_BITS: u32 = 30;
const PERIOD_BITS: u32 = 38;

impl BucketNumbers {
    /// Returns the numbers of a limit.
    #[must_use]
    pub const fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.limit() as u32,
            burst: limit.capacity() as u32,
            debt: limit.max_debt() as u32,
            period_ms: limit.period().as_millis() as u64,
        }
    }

    /// Returns the numbers as bytes, most significant first.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        let mut number = self.limit as u128;
        number = number << UNIT_BITS | self.burst as u128;
        number = number << UNIT_BITS | self.debt as u128;
        number = number << PERIOD_BITS | self.period_ms as u128;
        number.to_be_bytes()
    }

    /// Creates the numbers from the output of [`to_bytes`](Self::to_bytes).
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_be_bytes(bytes);
        let units = |shift: u32| (number >> shift) as u32 & ((1 << UNIT_BITS) - 1);
        Self {
            limit: units(PERIOD_BITS + 2 * UNIT_BITS),
            burst: units(PERIOD_BITS + UNIT_BITS),
            debt: units(PERIOD_BITS),
            period_ms: number as u64 & ((1 << PERIOD_BITS) - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(policy: &str, namespace: &str) -> String {
        identity(&policy.parse().unwrap(), namespace)
    }

    #[test]
    fn unnamed_limits_are_identified_by_their_whole_text() {
        assert_eq!(id("100/minute", ""), "tb/100/1m");
        assert_eq!(id("100/minute burst=100", ""), "tb/100/1m");
        assert_eq!(id("100/minute burst=20", ""), "tb/100/1m/20");
        assert_eq!(id("fixed_window 5/minute", ""), "fw/5/1m");
        assert_eq!(id("fixed_window 1/day anchor=first_hit", ""), "ff/1/1d");
        assert_eq!(
            id("gcra 1/s; sliding_window_log 5 per 90 s", ""),
            "sl/5/90s+gc/1/1s"
        );
        assert_eq!(
            id("sliding_window_log 5 per 90 s; gcra 1/s", ""),
            "sl/5/90s+gc/1/1s"
        );
    }

    #[test]
    fn debt_is_part_of_the_identity_of_unnamed_limits_and_of_buckets() {
        assert_eq!(id("100/minute debt=50", ""), "tb/100/1m/d50");
        assert_eq!(id("100/minute burst=20 debt=50", "api"), "tb/100/1m/20/d50");
        assert_eq!(id("fixed_window 5/minute debt=9", ""), "fw/5/1m/d9");
        assert_eq!(id("fixed_window 5/minute debt=9", "api"), "fw/1m");
    }

    #[test]
    fn bucket_numbers_survive_their_bytes() {
        let largest =
            "token_bucket 1_000_000_000 per 366 days burst=999_999_999 debt=1_000_000_000";
        for text in [largest, "1/ms", "gcra 3/min burst=6 debt=3"] {
            let policy: Policy = text.parse().unwrap();
            let numbers = BucketNumbers::new(&policy.limits()[0]);
            assert_eq!(
                BucketNumbers::from_bytes(numbers.to_bytes()),
                numbers,
                "{text}"
            );
        }
    }

    #[test]
    fn a_named_window_keeps_its_identity_when_its_limit_changes_and_a_bucket_does_not() {
        assert_eq!(id("fixed_window 5/minute", "api"), "fw/1m");
        assert_eq!(id("100/minute burst=20", "api"), "tb/100/1m/20");
        assert_eq!(
            id("10/s; fixed_window 5 per 1500 ms", "api"),
            "fw/1500ms+tb"
        );
        assert_eq!(id("gcra 7/s", ANY_RATE), "gc");
    }
}
