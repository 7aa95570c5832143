//! One limit: an algorithm, a rate and its options.

use std::fmt;
use std::time::Duration;

use super::bounds::{self, OutOfBounds, Part};

/// How requests are counted. `docs/choosing-an-algorithm.md` says which to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Counts in windows of the clock, or from the first request on ([`Anchor`]).
    FixedWindow,
    /// Remembers every request for one period: exact in any window.
    SlidingWindowLog,
    /// This window's count, and the last one's by the share of it that is still in sight.
    SlidingWindowCounter,
    /// Holds a burst of tokens, refilled without pause.
    TokenBucket,
    /// A queue drained at the rate: what is admitted also learns how long to wait.
    LeakyBucket,
    /// The same decisions as a token bucket: the name that people know it by.
    Gcra,
}

impl Algorithm {
    /// Every algorithm there is.
    pub const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingWindowLog,
        Self::SlidingWindowCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Gcra,
    ];

    /// The name it has in a policy's text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindowLog => "sliding_window_log",
            Self::SlidingWindowCounter => "sliding_window_counter",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::Gcra => "gcra",
        }
    }

    /// Whether it has a burst of its own.
    #[must_use]
    pub const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket | Self::Gcra)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the windows of a fixed_window begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// At whole periods of the Unix epoch: the same for every key.
    #[default]
    Clock,
    /// With the first admitted request.
    FirstHit,
}

impl Anchor {
    /// The name it has in a policy's text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::FirstHit => "first_hit",
        }
    }
}

/// So many units in so much time. It reads as it acts: `Rate::per_second(100)` is 100 a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    pub(crate) limit: u64,
    pub(crate) period: Duration,
}

impl Rate {
    /// `limit` units in every `period`, which is a whole number of milliseconds.
    #[must_use]
    pub const fn new(limit: u64, period: Duration) -> Self {
        Self { limit, period }
    }

    /// `limit` units a second.
    #[must_use]
    pub const fn per_second(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(1))
    }

    /// `limit` units a minute.
    #[must_use]
    pub const fn per_minute(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(60))
    }

    /// `limit` units an hour.
    #[must_use]
    pub const fn per_hour(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(3_600))
    }

    /// `limit` units a day of 24 hours.
    #[must_use]
    pub const fn per_day(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(86_400))
    }
}

/// One limit of a policy. Its numbers are checked when a [`Policy`](crate::Policy) is made of it.
///
/// ```
/// use tidegate_core::{Limit, Policy, Rate};
///
/// let policy = Policy::new([Limit::token_bucket(Rate::per_minute(100)).burst(200)])?;
/// assert_eq!(policy.to_string(), "token_bucket 100/minute burst=200");
/// assert!(Policy::new([Limit::gcra(Rate::per_second(0))]).is_err());
/// # Ok::<(), tidegate_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    pub(crate) algorithm: Algorithm,
    pub(crate) rate: Rate,
    pub(crate) burst: Option<u64>,
    pub(crate) anchor: Option<Anchor>,
}

impl Limit {
    /// A limit of any algorithm.
    #[must_use]
    pub const fn new(algorithm: Algorithm, rate: Rate) -> Self {
        Self {
            algorithm,
            rate,
            burst: None,
            anchor: None,
        }
    }

    /// See [`Algorithm::FixedWindow`].
    #[must_use]
    pub const fn fixed_window(rate: Rate) -> Self {
        Self::new(Algorithm::FixedWindow, rate)
    }

    /// See [`Algorithm::SlidingWindowLog`].
    #[must_use]
    pub const fn sliding_window_log(rate: Rate) -> Self {
        Self::new(Algorithm::SlidingWindowLog, rate)
    }

    /// See [`Algorithm::SlidingWindowCounter`].
    #[must_use]
    pub const fn sliding_window_counter(rate: Rate) -> Self {
        Self::new(Algorithm::SlidingWindowCounter, rate)
    }

    /// See [`Algorithm::TokenBucket`].
    #[must_use]
    pub const fn token_bucket(rate: Rate) -> Self {
        Self::new(Algorithm::TokenBucket, rate)
    }

    /// See [`Algorithm::LeakyBucket`].
    #[must_use]
    pub const fn leaky_bucket(rate: Rate) -> Self {
        Self::new(Algorithm::LeakyBucket, rate)
    }

    /// See [`Algorithm::Gcra`].
    #[must_use]
    pub const fn gcra(rate: Rate) -> Self {
        Self::new(Algorithm::Gcra, rate)
    }

    /// The most units at once, for the bucket algorithms; the rate's limit where not given.
    #[must_use]
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Where the windows begin, for fixed_window; [`Anchor::Clock`] where not given.
    #[must_use]
    pub const fn anchor(mut self, anchor: Anchor) -> Self {
        self.anchor = Some(anchor);
        self
    }

    /// How requests are counted.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The units of its rate.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.rate.limit
    }

    /// The period of its rate.
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.rate.period
    }

    /// The most units at once: the burst of a bucket, the limit of a window.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self.burst {
            Some(burst) => burst,
            None => self.rate.limit,
        }
    }

    /// Whether its windows open with the first admitted request.
    #[must_use]
    pub const fn opens_with_first_hit(&self) -> bool {
        matches!(self.anchor, Some(Anchor::FirstHit))
    }

    /// The period in nanoseconds. Only of a checked limit, where it fits.
    pub(crate) const fn period_ns(&self) -> u64 {
        self.rate.period.as_nanos() as u64
    }

    /// What says nothing beyond the default is left out, so that equal limits are equal however they were written.
    pub(crate) fn checked(mut self) -> Result<Self, OutOfBounds> {
        bounds::check(&self)?;
        self.burst = self.burst.filter(|burst| *burst != self.rate.limit);
        self.anchor = self.anchor.filter(|anchor| *anchor != Anchor::Clock);
        Ok(self)
    }

    /// Sorts the limits of a policy for storage: limits of one algorithm are next to each other.
    pub(crate) const fn stored_rank(&self) -> (u8, bool, Duration, u64, u64) {
        (
            self.algorithm as u8,
            self.opens_with_first_hit(),
            self.rate.period,
            self.rate.limit,
            self.capacity(),
        )
    }

    /// The part of the limit's text that a bound on the refill time is about.
    pub(crate) const fn refill_part(&self) -> Part {
        match self.burst {
            Some(_) => Part::Burst,
            None => Part::Period,
        }
    }
}
