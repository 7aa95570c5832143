//! The health of a remote store, as seen from this process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The health of a remote store, as seen from this process.
///
/// This is a snapshot. Counts are since the store was created.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreHealth {
    /// The state of the circuit breaker.
    pub breaker: Breaker,
    /// The number of times that the breaker has opened.
    pub breaker_openings: u64,
    /// The number of connections established after one was lost.
    pub reconnects: u64,
    /// The number of failed attempts to connect.
    pub failed_connects: u64,
    /// The number of round trips answered. Checks that wait at the same moment share one.
    pub round_trips: u64,
    /// The number of checks carried by those round trips.
    pub checks_sent: u64,
    /// The number of round trips in flight.
    pub in_flight: u64,
    /// The number of checks waiting for a round trip.
    pub waiting: u64,
    /// The duration of the round trips.
    pub latency: Latency,
    /// The last error, as text.
    pub last_error: Option<String>,
    /// The quota that this process has leased. All zero without leases.
    pub leases: LeaseHealth,
}

impl StoreHealth {
    /// Creates the health of a store that has not been used yet.
    #[must_use]
    pub fn new(breaker: Breaker, latency: Latency) -> Self {
        Self {
            breaker,
            breaker_openings: 0,
            reconnects: 0,
            failed_connects: 0,
            round_trips: 0,
            checks_sent: 0,
            in_flight: 0,
            waiting: 0,
            latency,
            last_error: None,
            leases: LeaseHealth::default(),
        }
    }
}

/// The quota that a process has leased from a store. Amounts are in thousandths of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseHealth {
    /// The number of keys with a lease.
    pub keys: u64,
    /// The leased quota that is not spent yet. Other processes cannot use it.
    pub held: u64,
    /// The quota leased so far.
    pub granted: u64,
    /// The quota given back unspent.
    pub returned: u64,
    /// The quota that was neither spent nor given back: the lease lapsed, or its reply was lost.
    pub lapsed: u64,
}

/// The state of a store's circuit breaker. With several nodes, the worst of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Breaker {
    /// Checks are sent.
    Closed,
    /// A connection is being established or a probe is in flight; checks wait for it.
    HalfOpen,
    /// No checks are sent until a probe succeeds. Also reported if the store answers but refuses to
    /// write, for lack of memory, replicas or permission.
    Open,
}

impl Breaker {
    /// Returns the name used in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

/// The upper bounds of the buckets of [`Latency::buckets`]. Longer durations are in a last bucket.
pub const LATENCY_BOUNDS: [Duration; 16] = [
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
];

/// Quantiles of a duration, accurate to one eighth, and a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// The median.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The 99.9th percentile.
    pub p999: Duration,
    /// The maximum.
    pub max: Duration,
    /// The number of durations in each bucket of [`LATENCY_BOUNDS`], and beyond the last bound. They
    /// are not cumulative.
    pub buckets: [u64; LATENCY_BOUNDS.len() + 1],
    /// The sum of all durations.
    pub sum: Duration,
}

/// The number of buckets between two powers of two.
const STEPS: u64 = 8;
/// The number of buckets: up to 2^42 µs. Longer durations are counted in the last one.
const BUCKETS: usize = 40 * STEPS as usize;

/// The longest duration that is added to the sum: a day, so that the sum does not overflow.
const MAX_SUMMED_US: u64 = 86_400_000_000;

/// A histogram of durations that many threads can record into at once.
#[doc(hidden)] // For Tidegate's own stores.
#[derive(Debug)]
pub struct Histogram {
    counts: Box<[AtomicU64]>,
    buckets: [AtomicU64; LATENCY_BOUNDS.len() + 1],
    sum_us: AtomicU64,
    max_us: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            sum_us: AtomicU64::new(0),
            max_us: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Records one duration.
    pub fn record(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get(bucket(us).min(BUCKETS - 1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let bucket = LATENCY_BOUNDS.partition_point(|bound| *bound < duration);
        if let Some(count) = self.buckets.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_us
            .fetch_add(us.min(MAX_SUMMED_US), Ordering::Relaxed);
        self.max_us.fetch_max(us, Ordering::Relaxed);
    }

    /// Returns the quantiles of the durations recorded so far.
    #[must_use]
    pub fn latency(&self) -> Latency {
        let counts: Vec<u64> = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        let max = self.max_us.load(Ordering::Relaxed);
        let quantile = |thousandths: u64| {
            let rank = (counts.iter().sum::<u64>() * thousandths).div_ceil(1_000);
            let mut seen = 0;
            let found = counts.iter().position(|count| {
                seen += count;
                seen >= rank && rank > 0
            });
            Duration::from_micros(found.map_or(0, |bucket| largest(bucket).min(max)))
        };
        Latency {
            p50: quantile(500),
            p99: quantile(990),
            p999: quantile(999),
            max: Duration::from_micros(max),
            buckets: self
                .buckets
                .each_ref()
                .map(|count| count.load(Ordering::Relaxed)),
            sum: Duration::from_micros(self.sum_us.load(Ordering::Relaxed)),
        }
    }
}

/// Returns the bucket of a duration: exact below 8 µs, then 8 buckets for each power of two.
fn bucket(us: u64) -> usize {
    if us < STEPS {
        return us as usize;
    }
    let power = u64::from(us.ilog2());
    let step = (us >> (power - 3)) & (STEPS - 1);
    ((power - 2) * STEPS + step) as usize
}

/// Returns the longest duration that falls into a bucket.
fn largest(bucket: usize) -> u64 {
    let (power, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    if power == 0 {
        step
    } else {
        ((STEPS + step + 1) << (power - 1)) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_an_eighth() {
        for us in (0..100_000).chain([1 << 30, (1 << 40) - 1]) {
            assert!(
                largest(bucket(us)) >= us && largest(bucket(us)) <= us + us / 8,
                "{us}"
            );
        }
        let histogram = Histogram::default();
        assert_eq!(histogram.latency(), Latency::default());
        for us in 1..=1_000 {
            histogram.record(Duration::from_micros(us));
        }
        histogram.record(Duration::MAX);
        let latency = histogram.latency();
        assert!(
            (500..=562).contains(&latency.p50.as_micros()),
            "{latency:?}"
        );
        assert!(
            (990..=1_114).contains(&latency.p99.as_micros()),
            "{latency:?}"
        );
        assert!(latency.max > Duration::from_secs(1_000));
        // 1 to 50 µs, 51 to 100, 101 to 250, 251 to 500, 501 to 1,000, and one that is very long.
        assert_eq!(latency.buckets[..6], [50, 50, 150, 250, 500, 0]);
        assert_eq!(latency.buckets.iter().sum::<u64>(), 1_001);
        assert_eq!(latency.buckets.last(), Some(&1));
    }
}
