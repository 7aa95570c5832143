//! How a remote store is, as seen from this process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How a remote store is, as seen from this process. A snapshot: counts are since the store was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreHealth {
    /// Whether it is being asked.
    pub breaker: Breaker,
    /// How often the breaker has opened.
    pub breaker_openings: u64,
    /// Connections made after one was lost.
    pub reconnects: u64,
    /// Connections that could not be made.
    pub failed_connects: u64,
    /// Trips to the store that were answered. Checks that wait at the same moment share one.
    pub trips: u64,
    /// Checks on those trips.
    pub carried: u64,
    /// Trips under way now.
    pub in_flight: u64,
    /// Checks waiting for a trip now.
    pub waiting: u64,
    /// How long the trips took.
    pub latency: Latency,
    /// What went wrong last, for people to read.
    pub last_error: Option<String>,
}

impl StoreHealth {
    /// A store that nothing has been asked of.
    #[must_use]
    pub fn new(breaker: Breaker, latency: Latency) -> Self {
        Self {
            breaker,
            breaker_openings: 0,
            reconnects: 0,
            failed_connects: 0,
            trips: 0,
            carried: 0,
            in_flight: 0,
            waiting: 0,
            latency,
            last_error: None,
        }
    }
}

/// Whether a store is being asked. Where a store has many nodes, the worst of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Breaker {
    /// It is.
    Closed,
    /// A connection is being made, or a probe is on its way; checks wait for it.
    HalfOpen,
    /// It is not, until it answers a probe; or it answers and refuses to write, for want of memory, replicas or rights.
    Open,
}

impl Breaker {
    /// Its name, as metrics and logs write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

/// How long something took: quantiles, right to an eighth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// Half took no longer.
    pub p50: Duration,
    /// 99 of 100 took no longer.
    pub p99: Duration,
    /// 999 of 1,000 took no longer.
    pub p999: Duration,
    /// None took longer.
    pub max: Duration,
}

/// How many steps there are between one power of two and the next.
const STEPS: u64 = 8;
/// Up to 2^42 µs; what takes longer counts as that.
const BUCKETS: usize = 40 * STEPS as usize;

/// Counts durations. Many threads may at once.
#[doc(hidden)] // For Tidegate's own stores.
#[derive(Debug)]
pub struct Histogram {
    counts: Box<[AtomicU64]>,
    max_us: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            max_us: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts one.
    pub fn record(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get(bucket(us).min(BUCKETS - 1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.max_us.fetch_max(us, Ordering::Relaxed);
    }

    /// What has been counted so far.
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
        }
    }
}

/// Exact below 8; from there on each power of two is cut into 8.
fn bucket(us: u64) -> usize {
    if us < STEPS {
        return us as usize;
    }
    let power = u64::from(us.ilog2());
    let step = (us >> (power - 3)) & (STEPS - 1);
    ((power - 2) * STEPS + step) as usize
}

/// The longest duration of a bucket.
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
    }
}
