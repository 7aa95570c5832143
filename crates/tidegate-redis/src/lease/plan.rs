//! Which policies can be leased, and the registry of their slices.

use std::time::Duration;

use tidegate_core::{ANY_RATE, Algorithm, Cost, Limit, Policy};

use crate::plan::RedisPlan;
use crate::settings::LeaseSettings;

/// The smallest share worth leasing, in units. With less, every check is decided by Redis.
const MIN_SHARE: u64 = 2;

/// How the quota of a policy is leased.
#[derive(Debug)]
pub(crate) struct LeasePlan {
    /// Counts the slices of a key that are held by any process.
    pub(super) registry: RedisPlan,
    /// The most that all processes hold, in thousandths: the registry's limit.
    pub(super) max_held: u64,
    /// The time in which a slice should be spent.
    pub(super) lifetime: Duration,
    /// Set if a limit is a bucket, so that unspent quota is of use after the slice has ended.
    pub(super) has_bucket: bool,
    /// The time between two units of the slowest leaky bucket.
    leak: Option<Leak>,
}

/// The rate of a leaky bucket.
#[derive(Clone, Copy, Debug)]
struct Leak {
    period: Duration,
    limit: u64,
}

/// Returns why a policy cannot be leased, if it is not for the size of its limits.
pub(crate) fn cannot_be_leased(policy: &Policy) -> Option<String> {
    let sliding = policy
        .limits()
        .iter()
        .find(|limit| !is_window(limit) && !limit.algorithm().is_bucket())?;
    Some(format!(
        "`{sliding}` cannot be leased: expected a fixed_window, token_bucket, leaky_bucket or gcra"
    ))
}

fn is_window(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::FixedWindow
}

impl LeasePlan {
    /// Returns `None` if the policy cannot be leased, or if its limits are too small.
    pub(crate) fn new(
        stem: &[u8],
        namespace: &str,
        policy: &Policy,
        settings: &LeaseSettings,
    ) -> Option<Self> {
        if namespace == ANY_RATE || cannot_be_leased(policy).is_some() {
            return None;
        }
        let capacity = policy.limits().iter().map(Limit::capacity).min()?;
        let share = capacity * settings.share / 100;
        if share < MIN_SHARE {
            return None;
        }
        let has_bucket = policy.limits().iter().any(|limit| !is_window(limit));
        let (period, anchor) = if has_bucket {
            (settings.lifetime, "first_hit")
        } else {
            let shortest = policy.limits().iter().min_by_key(|limit| limit.period())?;
            let anchor = if shortest.opens_with_first_hit() {
                "first_hit"
            } else {
                "clock"
            };
            (shortest.period(), anchor)
        };
        let period = period.as_millis();
        let registry = format!("fixed_window {share}/{period}ms anchor={anchor}");
        let stem = [
            &stem[..stem.len() - 1],
            format!("/lease{period}:").as_bytes(),
        ]
        .concat();
        Some(Self {
            registry: RedisPlan::with_stem(stem, namespace, &registry.parse().ok()?, None),
            max_held: share * 1_000,
            lifetime: settings.lifetime,
            has_bucket,
            leak: Leak::slowest(policy),
        })
    }

    /// Returns the time until the first limit of a slice ends, from the decisions that granted it.
    pub(super) fn life(
        policy: &Policy,
        granted: &tidegate_core::Admission,
        registered: &tidegate_core::Admission,
    ) -> Duration {
        let windows = policy
            .limits()
            .iter()
            .enumerate()
            .filter(|(_, limit)| is_window(limit))
            .map(|(index, _)| match granted.limits.get(index) {
                Some(figures) => figures.reset_after(),
                None => granted.decision.limit_reset_after(),
            });
        let life = windows.fold(registered.decision.reset_after(), Duration::min);
        // Durations are rounded up to a microsecond. The rest allows for clocks that differ by 0.1 %.
        let life = life.saturating_sub(Duration::from_micros(1));
        life - life / 1_024
    }

    /// Returns the time that `amount` takes in the queue of the slowest leaky bucket.
    pub(super) fn queue_time(&self, amount: u64) -> Duration {
        self.leak.map_or(Duration::ZERO, |leak| {
            let thousandths = u128::from(leak.limit) * 1_000;
            let nanos = leak.period.as_nanos() * u128::from(amount) / thousandths;
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        })
    }

    pub(super) fn has_queue(&self) -> bool {
        self.leak.is_some()
    }
}

impl Leak {
    fn slowest(policy: &Policy) -> Option<Self> {
        let leaky = policy
            .limits()
            .iter()
            .filter(|limit| limit.algorithm() == Algorithm::LeakyBucket)
            .map(|limit| Self {
                period: limit.period(),
                limit: limit.limit(),
            });
        leaky.max_by_key(|leak| leak.period.as_nanos() / u128::from(leak.limit))
    }
}

/// Returns a cost, which a slice never exceeds.
pub(super) fn cost(thousandths: u64) -> Cost {
    Cost::from_thousandths(thousandths).unwrap_or(Cost::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(policy: &str) -> Option<RedisPlan> {
        let policy = policy.parse().unwrap();
        let plan = RedisPlan::new("tg", "api", &policy, Some(&LeaseSettings::default()));
        plan.lease().map(|lease| lease.registry.clone())
    }

    fn registry(policy: &str) -> Option<(String, String)> {
        let registry = plan(policy)?;
        let name = registry.name(tidegate_core::Key::new(b"k").unwrap());
        let name = String::from_utf8(name).unwrap();
        Some((name, registry.policy().to_string()))
    }

    #[test]
    fn the_registry_is_a_share_of_the_smallest_limit() {
        let expected = |name: &str, policy: &str| Some((name.to_owned(), policy.to_owned()));
        assert_eq!(
            registry("fixed_window 1000/minute; fixed_window 500/hour"),
            expected(
                "tg:api:fw/1h+fw/1m/lease60000:{k}",
                "fixed_window 50/minute"
            )
        );
        assert_eq!(
            registry("token_bucket 1000/s burst=200; fixed_window 9000/m"),
            expected(
                "tg:api:fw/1m+tb/lease100:{k}",
                "fixed_window 20/100ms anchor=first_hit"
            )
        );
        assert_eq!(
            registry("fixed_window 100/day anchor=first_hit").unwrap().1,
            "fixed_window 10/day anchor=first_hit"
        );
    }

    #[test]
    fn small_limits_and_sliding_windows_are_not_leased() {
        for policy in [
            "fixed_window 19/minute",
            "sliding_window_log 1000/minute",
            "1000/s; sliding_window_counter 9000/minute",
        ] {
            assert_eq!(registry(policy), None, "{policy}");
        }
        assert_eq!(cannot_be_leased(&"19/minute".parse().unwrap()), None);
        assert_eq!(
            cannot_be_leased(&"1/s; sliding_window_log 5/hour".parse().unwrap()).unwrap(),
            "`sliding_window_log 5/hour` cannot be leased: expected a fixed_window, token_bucket, \
             leaky_bucket or gcra"
        );
    }
}
