//! Generated traffic: `steady:5/s`, `poisson:5/s`, `burst:20/10s` and `boundary`.

use std::str::FromStr;

use tidegate_core::{Limit, Policy, PolicyError};

/// Requests of one client, described by a short text.
///
/// # Examples
///
/// ```
/// use tidegate_insight::Traffic;
///
/// let traffic: Traffic = "burst:2/10s".parse()?;
/// let times: Vec<u64> = traffic.arrivals(0, 1).take(3).collect();
/// assert_eq!(times, [0, 0, 10_000_000_000]);
/// # Ok::<(), tidegate_insight::TrafficError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    shape: Shape,
    /// Requests per period. Zero until a policy is known, see [`Traffic::for_policy`].
    count: u64,
    period_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Even intervals.
    Steady,
    /// Independent arrivals with exponential intervals.
    Poisson,
    /// All requests of a period at its start.
    Burst,
    /// The whole limit just before the edge of a window, and again just after it.
    Boundary,
}

/// A description of traffic that is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrafficError {
    /// The shape is unknown.
    #[error(
        "unknown traffic `{0}`: expected steady:5/s, poisson:5/s, burst:20/10s or boundary[:100/minute]"
    )]
    UnknownShape(String),
    /// The rate is missing.
    #[error("{0} without a rate: expected a count per time such as {0}:5/s")]
    NoRate(&'static str),
    /// The rate is invalid.
    #[error(transparent)]
    Rate(#[from] PolicyError),
    /// The rate has an algorithm, an option or several limits.
    #[error("rate `{0}`: expected only a count per time such as 5/s")]
    NotOnlyRate(String),
}

impl Shape {
    const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Poisson => "poisson",
            Self::Burst => "burst",
            Self::Boundary => "boundary",
        }
    }
}

impl FromStr for Traffic {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<Self, TrafficError> {
        let (name, rate) = match text.split_once(':') {
            Some((name, rate)) => (name, Some(rate)),
            None => (text, None),
        };
        let shapes = [Shape::Steady, Shape::Poisson, Shape::Burst, Shape::Boundary];
        let shape = shapes.into_iter().find(|shape| shape.name() == name.trim());
        let shape = shape.ok_or_else(|| TrafficError::UnknownShape(text.to_owned()))?;
        let (count, period_ns) = match rate {
            Some(rate) => counted(rate)?,
            None if shape == Shape::Boundary => (0, 0),
            None => return Err(TrafficError::NoRate(shape.name())),
        };
        Ok(Self {
            shape,
            count,
            period_ns,
        })
    }
}

/// Parses a count per time, as in a policy.
fn counted(rate: &str) -> Result<(u64, u64), TrafficError> {
    let policy: Policy = rate.parse()?;
    let [limit] = policy.limits() else {
        return Err(TrafficError::NotOnlyRate(rate.to_owned()));
    };
    let plain = Limit::token_bucket(tidegate_core::Rate::new(limit.limit(), limit.period()));
    if *limit != plain || rate.trim().starts_with(|first: char| first.is_alphabetic()) {
        return Err(TrafficError::NotOnlyRate(rate.to_owned()));
    }
    Ok((limit.limit(), limit.period().as_nanos() as u64))
}

impl Traffic {
    /// Returns the name of the client that sends this traffic.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.shape.name()
    }

    /// Returns the period of the rate in nanoseconds.
    #[must_use]
    pub const fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Fills in the rate of `boundary` without one: the policy's limit with the longest period.
    #[must_use]
    pub fn for_policy(mut self, policy: &Policy) -> Self {
        let longest = policy.limits().iter().max_by_key(|limit| limit.period());
        if let (0, Some(limit)) = (self.count, longest) {
            self.count = limit.limit();
            self.period_ns = limit.period().as_nanos() as u64;
        }
        self
    }

    /// Returns the times of the requests in nanoseconds, without an end. `start` is the edge of a
    /// window.
    pub fn arrivals(&self, start: u64, seed: u64) -> impl Iterator<Item = u64> + use<> {
        let traffic = *self;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut poisson_ns = 0.0_f64;
        (0_u64..).map(move |index| {
            let offset = match traffic.shape {
                Shape::Poisson => {
                    let mean = traffic.period_ns as f64 / traffic.count.max(1) as f64;
                    poisson_ns += -mean * (1.0 - random.f64()).ln();
                    poisson_ns as u64
                }
                _ => traffic.offset(index),
            };
            start.saturating_add(offset)
        })
    }

    /// Returns the time of a request after the start.
    fn offset(&self, index: u64) -> u64 {
        let count = self.count.max(1);
        let scaled = |index: u64, period: u64| {
            let time = u128::from(index) * u128::from(period) / u128::from(count);
            u64::try_from(time).unwrap_or(u64::MAX)
        };
        let period_of = |index: u64| (index / count).saturating_mul(self.period_ns);
        match self.shape {
            Shape::Steady | Shape::Poisson => scaled(index, self.period_ns),
            Shape::Burst => period_of(index),
            // In every second period, the last and the next twentieth of a period.
            Shape::Boundary => {
                let part = self.period_ns / 20;
                let around = period_of(index).saturating_add(scaled(index % count, part));
                let is_before = (index / count).is_multiple_of(2);
                if is_before {
                    around.saturating_add(self.period_ns - part)
                } else {
                    around
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn times(text: &str, count: usize) -> Vec<u64> {
        let policy = "fixed_window 2/minute".parse().unwrap();
        let traffic = text.parse::<Traffic>().unwrap().for_policy(&policy);
        traffic.arrivals(0, 7).take(count).collect()
    }

    #[test]
    fn shapes_have_their_times() {
        assert_eq!(times("steady:2/s", 3), [0, SECOND / 2, SECOND]);
        assert_eq!(times("burst:2/10s", 3), [0, 0, 10 * SECOND]);
        let boundary = times("boundary", 6);
        let seconds: Vec<u64> = boundary.iter().map(|at| at / 100_000_000).collect();
        assert_eq!(seconds, [570, 585, 600, 615, 1770, 1785]);
        let poisson = times("poisson:5/s", 50_000);
        assert!(poisson.is_sorted());
        let mean = *poisson.last().unwrap() / 50_000;
        assert!((198_000_000..202_000_000).contains(&mean), "{mean}");
        assert_eq!(poisson, times("poisson:5/s", 50_000), "the same seed");
    }

    #[test]
    fn invalid_descriptions_say_what_is_expected() {
        for (text, expected) in [
            ("flood", "unknown traffic `flood`: expected steady"),
            ("steady", "steady without a rate"),
            ("steady:5/fortnight", "unknown unit"),
            ("steady:5/s burst=3", "expected only a count"),
            ("steady:gcra 5/s", "expected only a count"),
            ("burst:5/s; 6/s", "expected only a count"),
            ("poisson:0/s", "expected 1 to"),
        ] {
            let error = text.parse::<Traffic>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
