//! Limits: an algorithm, a rate and its options.

use std::fmt;
use std::time::Duration;

use super::bounds::{self, OutOfBounds, Part};

/// The algorithm that counts requests. The guide compares them in `tidegate::guide::choosing_an_algorithm`.
///
/// # Examples
///
/// ```
/// use tidegate::Algorithm;
///
/// assert_eq!(Algorithm::Gcra.name(), "gcra");
/// assert!(Algorithm::Gcra.is_bucket());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts requests in fixed windows, aligned to the clock or to the first request ([`Anchor`]).
    FixedWindow,
    /// Remembers every request for one period, so no window ever exceeds the limit.
    SlidingWindowLog,
    /// Counts the current window, plus the previous window weighted by its overlap with the last
    /// period.
    SlidingWindowCounter,
    /// Holds a burst of tokens that refills continuously.
    TokenBucket,
    /// A queue drained at the rate. An admitted request also gets the time that it waits.
    LeakyBucket,
    /// The same decisions as a token bucket, under the name that many people know.
    Gcra,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingWindowLog,
        Self::SlidingWindowCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Gcra,
    ];

    /// Returns the name used in policy text.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Algorithm;
    ///
    /// assert_eq!(Algorithm::TokenBucket.name(), "token_bucket");
    /// ```
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

    /// Returns `true` if the algorithm has a burst.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Algorithm;
    ///
    /// assert!(Algorithm::Gcra.is_bucket() && !Algorithm::FixedWindow.is_bucket());
    /// ```
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

/// The start of a fixed window.
///
/// # Examples
///
/// ```
/// use tidegate::{Anchor, Limit, Policy, Rate};
///
/// let limit = Limit::fixed_window(Rate::per_day(5)).anchor(Anchor::FirstHit);
/// assert_eq!(Policy::new([limit])?, "fixed_window 5/day anchor=first_hit".parse()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Anchor {
    /// Windows start at multiples of the period since the Unix epoch, for every key.
    #[default]
    Clock,
    /// A window starts with the first admitted request.
    FirstHit,
}

impl Anchor {
    /// Returns the name used in policy text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::FirstHit => "first_hit",
        }
    }
}

/// A number of units per period. `Rate::per_second(100)` is 100 per second.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::Rate;
///
/// assert_eq!(Rate::per_minute(5), Rate::new(5, Duration::from_secs(60)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    pub(crate) limit: u64,
    pub(crate) period: Duration,
}

impl Rate {
    /// Creates a rate of `limit` units per `period`, a whole number of milliseconds.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limit, Policy, Rate};
    ///
    /// let rate = Rate::new(5, Duration::from_secs(600));
    /// assert_eq!(Policy::new([Limit::token_bucket(rate)])?, "5/10 minutes".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn new(limit: u64, period: Duration) -> Self {
        Self { limit, period }
    }

    /// Creates a rate of `limit` units per second.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limit, Policy, Rate};
    ///
    /// assert_eq!(Policy::new([Limit::gcra(Rate::per_second(10))])?, "gcra 10/second".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn per_second(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(1))
    }

    /// Creates a rate of `limit` units per minute.
    #[must_use]
    pub const fn per_minute(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(60))
    }

    /// Creates a rate of `limit` units per hour.
    #[must_use]
    pub const fn per_hour(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(3_600))
    }

    /// Creates a rate of `limit` units per day of 24 hours.
    #[must_use]
    pub const fn per_day(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(86_400))
    }
}

/// One limit of a policy. [`Policy::new`](crate::Policy::new) checks its numbers.
///
/// # Examples
///
/// ```
/// use tidegate::{Limit, Policy, Rate};
///
/// let policy = Policy::new([Limit::token_bucket(Rate::per_minute(100)).burst(200)])?;
/// assert_eq!(policy.to_string(), "token_bucket 100/minute burst=200");
/// assert!(Policy::new([Limit::gcra(Rate::per_second(0))]).is_err());
/// # Ok::<(), tidegate::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    pub(crate) algorithm: Algorithm,
    pub(crate) rate: Rate,
    pub(crate) burst: Option<u64>,
    pub(crate) anchor: Option<Anchor>,
    pub(crate) debt: u64,
}

impl Limit {
    /// Creates a limit of any algorithm.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Algorithm, Limit, Rate};
    ///
    /// let limit = Limit::new(Algorithm::Gcra, Rate::per_second(10));
    /// assert_eq!(limit, Limit::gcra(Rate::per_second(10)));
    /// ```
    #[must_use]
    pub const fn new(algorithm: Algorithm, rate: Rate) -> Self {
        Self {
            algorithm,
            rate,
            burst: None,
            anchor: None,
            debt: 0,
        }
    }

    /// Creates a limit that uses [`Algorithm::FixedWindow`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limit, Policy, Rate};
    ///
    /// let limit = Limit::fixed_window(Rate::per_day(1_000));
    /// assert_eq!(Policy::new([limit])?, "fixed_window 1_000/day".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn fixed_window(rate: Rate) -> Self {
        Self::new(Algorithm::FixedWindow, rate)
    }

    /// Creates a limit that uses [`Algorithm::SlidingWindowLog`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limit, Policy, Rate};
    ///
    /// let limit = Limit::sliding_window_log(Rate::per_minute(5));
    /// assert_eq!(Policy::new([limit])?, "sliding_window_log 5/minute".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn sliding_window_log(rate: Rate) -> Self {
        Self::new(Algorithm::SlidingWindowLog, rate)
    }

    /// Creates a limit that uses [`Algorithm::SlidingWindowCounter`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limit, Policy, Rate};
    ///
    /// let limit = Limit::sliding_window_counter(Rate::per_hour(500));
    /// assert_eq!(Policy::new([limit])?, "sliding_window_counter 500/hour".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn sliding_window_counter(rate: Rate) -> Self {
        Self::new(Algorithm::SlidingWindowCounter, rate)
    }

    /// Creates a limit that uses [`Algorithm::TokenBucket`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limit, Policy, Rate};
    ///
    /// let limit = Limit::token_bucket(Rate::per_second(10)).burst(50);
    /// assert_eq!(Policy::new([limit])?, "token_bucket 10/second burst=50".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn token_bucket(rate: Rate) -> Self {
        Self::new(Algorithm::TokenBucket, rate)
    }

    /// Creates a limit that uses [`Algorithm::LeakyBucket`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limit, Policy, Rate};
    ///
    /// let limit = Limit::leaky_bucket(Rate::per_second(10)).burst(30);
    /// assert_eq!(Policy::new([limit])?, "leaky_bucket 10/second burst=30".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn leaky_bucket(rate: Rate) -> Self {
        Self::new(Algorithm::LeakyBucket, rate)
    }

    /// Creates a limit that uses [`Algorithm::Gcra`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limit, Policy, Rate};
    ///
    /// let limit = Limit::gcra(Rate::per_second(10)).burst(5);
    /// assert_eq!(Policy::new([limit])?, "gcra 10/second burst=5".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn gcra(rate: Rate) -> Self {
        Self::new(Algorithm::Gcra, rate)
    }

    /// Sets the burst, the most units at once, for the bucket algorithms. The default is the rate's
    /// limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limit, Rate};
    ///
    /// assert_eq!(Limit::token_bucket(Rate::per_second(10)).burst(50).capacity(), 50);
    /// ```
    #[must_use]
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Sets the start of the windows, for fixed_window. The default is [`Anchor::Clock`].
    #[must_use]
    pub const fn anchor(mut self, anchor: Anchor) -> Self {
        self.anchor = Some(anchor);
        self
    }

    /// Sets how far a [charge](crate::Limiter::charge) may push usage beyond the capacity. The
    /// default is 0. While usage exceeds the capacity, requests are denied.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limit, Policy, Rate};
    ///
    /// let limit = Limit::token_bucket(Rate::per_minute(1_000)).debt(5_000);
    /// assert_eq!(Policy::new([limit])?, "1_000/minute debt=5_000".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn debt(mut self, debt: u64) -> Self {
        self.debt = debt;
        self
    }

    /// Returns the algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the units per period.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.rate.limit
    }

    /// Returns the period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.rate.period
    }

    /// Returns the most units at once: the burst of a bucket, the limit of a window.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limit, Rate};
    ///
    /// // The burst of a bucket defaults to the count of the rate.
    /// assert_eq!(Limit::token_bucket(Rate::per_second(10)).capacity(), 10);
    /// assert_eq!(Limit::fixed_window(Rate::per_day(1_000)).capacity(), 1_000);
    /// ```
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self.burst {
            Some(burst) => burst,
            None => self.rate.limit,
        }
    }

    /// Returns how far a charge may push usage beyond the capacity.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limit, Rate};
    ///
    /// assert_eq!(Limit::token_bucket(Rate::per_minute(1_000)).debt(500).max_debt(), 500);
    /// ```
    #[must_use]
    pub const fn max_debt(&self) -> u64 {
        self.debt
    }

    /// Returns the most units that can ever be counted at once: the capacity and the debt.
    #[doc(hidden)] // For Tidegate's own stores.
    #[must_use]
    pub const fn most_counted(&self) -> u64 {
        self.capacity() + self.debt
    }

    /// Returns `true` if a window opens with the first admitted request.
    #[must_use]
    pub const fn opens_with_first_hit(&self) -> bool {
        matches!(self.anchor, Some(Anchor::FirstHit))
    }

    /// Returns the period in nanoseconds. It fits if the limit has been checked.
    pub(crate) const fn period_ns(&self) -> u64 {
        self.rate.period.as_nanos() as u64
    }

    /// Checks the bounds, and removes options that equal the default, so that equal limits compare
    /// equal.
    pub(crate) fn checked(mut self) -> Result<Self, OutOfBounds> {
        bounds::check(&self)?;
        self.burst = self.burst.filter(|burst| *burst != self.rate.limit);
        self.anchor = self.anchor.filter(|anchor| *anchor != Anchor::Clock);
        Ok(self)
    }

    /// Returns the sort key for storage order: limits of one algorithm are adjacent.
    pub(crate) const fn stored_rank(&self) -> (u8, bool, Duration, u64, u64, u64) {
        (
            self.algorithm as u8,
            self.opens_with_first_hit(),
            self.rate.period,
            self.rate.limit,
            self.capacity(),
            self.debt,
        )
    }

    /// Returns the part of the text that a violated bound on the refill time is about.
    pub(crate) const fn refill_part(&self) -> Part {
        match self.burst {
            _ if self.debt > 0 => Part::Debt,
            Some(_) => Part::Burst,
            None => Part::Period,
        }
    }
}
