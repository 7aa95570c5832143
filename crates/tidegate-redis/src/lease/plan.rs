//! The leasing of a policy: whether it is possible, and the registry of its slices.

use std::time::Duration;

use tidegate_core::remote::KeyHasher;
use tidegate_core::{ANY_RATE, Admission, Algorithm, Cost, Limit, Policy, Timestamp};

use crate::plan::RedisPlan;
use crate::settings::LeaseSettings;

/// The smallest slice worth leasing, in units. With less, every check is decided by Redis.
const MIN_SLICE: u64 = 2;

/// The numbers by which the quota of a policy is leased.
#[derive(Debug)]
pub(crate) struct LeasePlan {
    /// Counts the slices of a key that any process holds.
    pub(super) registry: RedisPlan,
    /// The largest slice, in thousandths: the registry's capacity.
    pub(super) max_slice: u64,
    /// The time in which a slice should be spent.
    pub(super) lifetime: Duration,
    /// Set if a limit is a bucket, so that a slice must be spent within `lifetime`.
    pub(super) has_bucket: bool,
    /// Set if unspent quota may be of use to others after its slice has ended.
    pub(super) returns_late: bool,
    /// The rate of the slowest leaky bucket.
    leak: Option<Leak>,
    hasher: KeyHasher,
}

#[derive(Clone, Copy, Debug)]
struct Leak {
    period: Duration,
    limit: u64,
}

/// Returns why a policy cannot be leased, if it is not for the size of its limits.
pub(crate) fn cannot_be_leased(policy: &Policy) -> Option<String> {
    let is_sliding = |limit: &&Limit| !is_window(limit) && !limit.algorithm().is_bucket();
    let sliding = policy.limits().iter().find(is_sliding)?;
    Some(format!(
        "`{sliding}` cannot be leased: expected a fixed_window, token_bucket, leaky_bucket or gcra"
    ))
}

fn is_window(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::FixedWindow
}

impl LeasePlan {
    /// Returns `None` if leases are off, if the policy cannot be leased, or if its limits are too
    /// small.
    pub(crate) fn new(
        stem: &[u8],
        namespace: &str,
        policy: &Policy,
        settings: LeaseSettings,
        hasher: &KeyHasher,
    ) -> Option<Self> {
        if !settings.is_on || namespace == ANY_RATE || cannot_be_leased(policy).is_some() {
            return None;
        }
        let limits = policy.limits();
        let share = limits.iter().map(Limit::capacity).min()? * settings.share / 100;
        let has_bucket = limits.iter().any(|limit| !is_window(limit));
        let registry = if has_bucket {
            bucket_registry(share, settings.lifetime)
        } else {
            window_registry(share, limits)
        }?;
        let capacity = registry.limits().first().map(Limit::capacity)?;
        // Lifetimes have registries of their own, see `docs/redis.md`.
        let suffix = match has_bucket {
            true => format!("/lease{}:", settings.lifetime.as_millis()),
            false => "/lease:".to_owned(),
        };
        let registry_stem = [&stem[..stem.len() - 1], suffix.as_bytes()].concat();
        let domain = [stem, b"\0", policy.to_string().as_bytes()].concat();
        Some(Self {
            registry: RedisPlan::with_stem(registry_stem, namespace, &registry, None),
            max_slice: capacity * 1_000,
            lifetime: settings.lifetime,
            has_bucket,
            returns_late: has_bucket
                || limits.len() > 1
                || limits.iter().any(Limit::opens_with_first_hit),
            leak: Leak::slowest(policy),
            hasher: hasher.for_domain(&domain),
        })
    }

    /// Returns the hash of a key under this policy.
    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u128 {
        self.hasher.hash(key)
    }

    /// Returns the time until a slice ends, from the decisions that granted it.
    pub(super) fn life(
        &self,
        policy: &Policy,
        granted: &Admission,
        registered: &Admission,
    ) -> Duration {
        let limits = policy.limits().iter().enumerate();
        let windows = limits
            .filter(|(_, limit)| is_window(limit))
            .map(|(index, _)| match granted.limits.get(index) {
                Some(figures) => figures.reset_after(),
                None => granted.decision.limit_reset_after(),
            });
        let longest = if self.has_bucket {
            self.lifetime
        } else {
            registered.decision.reset_after()
        };
        let life = windows.fold(longest, Duration::min);
        // Durations are rounded up to a microsecond. The rest is for clocks that differ by 0.1 %.
        let life = life.saturating_sub(Duration::from_micros(1));
        life - life / 1_024
    }

    /// Returns the time at which the next slice is taken, although this one has quota left.
    pub(super) fn renewal(&self, granted_at: Timestamp, lapses_at: Timestamp) -> Timestamp {
        if self.has_bucket {
            let life = lapses_at.saturating_since(granted_at);
            granted_at.saturating_add(life - life / 4)
        } else {
            Timestamp::from_nanos(u64::MAX)
        }
    }

    /// Returns the time until which the rest of a slice may be given back.
    pub(super) fn last_return(&self, lapses_at: Timestamp) -> Timestamp {
        if self.has_bucket {
            lapses_at.saturating_add(self.lifetime)
        } else {
            Timestamp::from_nanos(u64::MAX)
        }
    }

    /// Returns the time that `amount` takes in the queue of the slowest leaky bucket.
    pub(super) fn queue_time(&self, amount: u64) -> Duration {
        self.leak.map_or(Duration::ZERO, |leak| {
            let thousandths = u128::from(leak.limit) * 1_000;
            let nanos = leak.period.as_nanos() * u128::from(amount) / thousandths;
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        })
    }

    #[inline]
    pub(super) fn has_queue(&self) -> bool {
        self.leak.is_some()
    }
}

/// Returns the registry of a policy with a bucket: a window of one lifetime.
///
/// A slice that is granted in one window lapses in the next one at the latest, and the rest of it is
/// given back by the end of the window after that. So at any time the slices of three windows may
/// count, and each window grants a third of the share.
fn bucket_registry(share: u64, lifetime: Duration) -> Option<Policy> {
    let third = share / 3;
    let registry = format!("fixed_window {third}/{}ms", lifetime.as_millis());
    (third >= MIN_SLICE).then(|| registry.parse().ok())?
}

/// Returns the registry of a policy of fixed windows: a window like the shortest.
fn window_registry(share: u64, limits: &[Limit]) -> Option<Policy> {
    let shortest = limits.iter().min_by_key(|limit| limit.period())?;
    let anchor = if shortest.opens_with_first_hit() {
        "first_hit"
    } else {
        "clock"
    };
    let period = shortest.period().as_millis();
    let registry = format!("fixed_window {share}/{period}ms anchor={anchor}");
    (share >= MIN_SLICE).then(|| registry.parse().ok())?
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

/// Returns the cost of a slice, or `None` if it is none.
pub(super) fn cost(thousandths: u64) -> Option<Cost> {
    let cost = Cost::from_thousandths(thousandths).ok()?;
    (cost > Cost::ZERO).then_some(cost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;

    fn registry(policy: &str) -> Option<(String, String)> {
        let policy = policy.parse().unwrap();
        let settings = LeaseSettings {
            is_on: true,
            ..LeaseSettings::default()
        };
        let hasher = KeyHasher::random();
        let stem = key::stem("tg", "api", &policy);
        let plan = LeasePlan::new(&stem, "api", &policy, settings, &hasher)?;
        let name = plan.registry.name(tidegate_core::Key::new(b"k").unwrap());
        let name = String::from_utf8(name).unwrap();
        Some((name, plan.registry.policy().to_string()))
    }

    #[test]
    fn the_registry_is_a_share_of_the_smallest_limit() {
        let expected = |name: &str, policy: &str| Some((name.to_owned(), policy.to_owned()));
        assert_eq!(
            registry("fixed_window 1000/minute; fixed_window 500/hour"),
            expected("tg:api:fw/1m+fw/1h/lease:{k}", "fixed_window 50/minute")
        );
        assert_eq!(
            registry("token_bucket 1000/s burst=200; fixed_window 9000/m"),
            expected("tg:api:fw/1m+tb/lease100:{k}", "fixed_window 6/100 ms")
        );
        assert_eq!(
            registry("fixed_window 100/day anchor=first_hit"),
            expected(
                "tg:api:ff/1d/lease:{k}",
                "fixed_window 10/day anchor=first_hit"
            )
        );
    }

    #[test]
    fn small_limits_and_sliding_windows_are_not_leased() {
        for policy in [
            "fixed_window 19/minute",
            "59/minute",
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
