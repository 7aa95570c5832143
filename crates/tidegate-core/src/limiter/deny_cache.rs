//! The deny cache: repeats a denial without asking the store again while it still holds.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::clock::{Clock, Timestamp};
use crate::cost::Cost;
use crate::decision::{Decision, OutcomeKind};
use crate::key::Key;
use crate::policy::Policy;
use parking_lot::Mutex;

/// The maximum time that a denial is cached, so that a refund or reset by another process takes
/// effect within a second.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The number of entries per set. A set shares a lock; when it is full, the entry that ends first
/// is replaced.
const WAYS: usize = 4;

/// Denials by the store that still hold, in bounded memory.
pub(super) struct DenyCache {
    /// The number of sets. They are allocated on the first denial: most limiters never deny.
    set_count: usize,
    sets: OnceLock<Box<[Set]>>,
    /// The time of the last refund or reset. A denial requested before it is not cached.
    invalidated_at: AtomicU64,
    hashers: [RandomState; 2],
    clock: Clock,
}

type Set = Mutex<[Option<CachedDenial>; WAYS]>;

#[derive(Clone, Copy)]
struct CachedDenial {
    tag: PolicyTag,
    fingerprint: u128,
    cost: Cost,
    decision: Decision,
    /// The time until which the store denies the request for certain, counted from when it was
    /// sent.
    until: Timestamp,
    /// The time of the store's answer, from which the remaining wait is computed.
    answered_at: Timestamp,
}

/// Distinguishes the policies that share a cache.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PolicyTag {
    policy: u64,
    /// The same for all policies of one namespace, which may share counters.
    namespace: u64,
}

/// The caches of limiters with the same settings, by namespace.
///
/// Limiters of one namespace may share counters, so an admission or refund by one invalidates what
/// another one has cached.
#[derive(Default)]
pub(super) struct DenyCaches(Mutex<HashMap<Arc<str>, Weak<DenyCache>>>);

impl DenyCaches {
    /// Returns the cache of a namespace. Limits without a name share no counters, so each gets a
    /// new cache.
    pub(super) fn of_namespace(
        &self,
        namespace: &Arc<str>,
        keys: usize,
        clock: &Clock,
    ) -> Arc<DenyCache> {
        let new = || Arc::new(DenyCache::new(keys, clock.clone()));
        if namespace.is_empty() {
            return new();
        }
        let mut caches = self.0.lock();
        if let Some(cache) = caches.get(namespace).and_then(Weak::upgrade) {
            return cache;
        }
        caches.retain(|_, cache| cache.strong_count() > 0);
        let cache = new();
        caches.insert(Arc::clone(namespace), Arc::downgrade(&cache));
        cache
    }
}

impl DenyCache {
    /// Creates a cache for `keys` keys, rounded up to a power of two. With 0 it caches nothing.
    pub(super) fn new(keys: usize, clock: Clock) -> Self {
        let set_count = if keys == 0 {
            0
        } else {
            keys.div_ceil(WAYS).next_power_of_two()
        };
        let hashers = [RandomState::new(), RandomState::new()];
        Self {
            set_count,
            sets: OnceLock::new(),
            invalidated_at: AtomicU64::new(0),
            hashers,
            clock,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns a keyed 128-bit hash, so that collisions are neither likely nor forgeable.
    fn fingerprint(&self, key: Key<'_>) -> u128 {
        let [high, low] = self
            .hashers
            .each_ref()
            .map(|hasher| u128::from(hasher.hash_one(key.as_bytes())));
        high << 64 | low
    }

    /// Returns the tag of a policy in a namespace.
    pub(super) fn tag(&self, policy: &Policy, namespace: &str) -> PolicyTag {
        let policy = self.hashers[0].hash_one((namespace, policy.to_string()));
        let namespace = if namespace.is_empty() {
            policy
        } else {
            self.hashers[0].hash_one(namespace)
        };
        PolicyTag { policy, namespace }
    }

    fn set(sets: &[Set], fingerprint: u128) -> Option<&Set> {
        sets.get(fingerprint as usize & sets.len().wrapping_sub(1))
    }

    /// Returns the cached denial of the same request, if it still holds. A request of another cost
    /// may fit, or may have to wait longer, so nothing is known about it.
    pub(super) fn find(&self, tag: PolicyTag, key: Key<'_>, cost: Cost) -> Option<Decision> {
        let sets = self.sets.get()?;
        let fingerprint = self.fingerprint(key);
        let denied = {
            let set = Self::set(sets, fingerprint)?.lock();
            *set.iter()
                .flatten()
                .find(|denied| denied.is_of(tag, fingerprint))?
        };
        let now = self.now();
        (denied.cost == cost && now < denied.until).then(|| denied.at(now))
    }

    /// Caches a denial by the store of a request sent at `asked_at`. An admission removes cached
    /// denials, because their figures are no longer true.
    pub(super) fn record(
        &self,
        tag: PolicyTag,
        key: Key<'_>,
        cost: Cost,
        asked_at: Timestamp,
        decision: &Decision,
    ) {
        if decision.is_allowed() && cost > Cost::ZERO {
            return self.remove_if(key, |denied| denied.tag.namespace == tag.namespace);
        }
        let is_remembered = decision.kind == OutcomeKind::Denied
            && decision.degraded.is_none()
            && self.set_count > 0;
        if !is_remembered || asked_at.as_nanos() < self.invalidated_at.load(Ordering::Acquire) {
            return;
        }
        let fingerprint = self.fingerprint(key);
        let sets = self.sets.get_or_init(|| {
            (0..self.set_count)
                .map(|_| Mutex::new([None; WAYS]))
                .collect()
        });
        let Some(set) = Self::set(sets, fingerprint) else {
            return;
        };
        let wait = Duration::from_nanos(decision.wait).min(MAX_AGE);
        let denied = CachedDenial {
            tag,
            fingerprint,
            cost,
            decision: *decision,
            until: asked_at.saturating_add(wait),
            answered_at: self.now(),
        };
        let mut set = set.lock();
        let place = set
            .iter()
            .position(|old| old.is_some_and(|old| old.is_of(tag, fingerprint)));
        let soonest = || {
            (0..WAYS)
                .min_by_key(|way| set[*way].map(|old| old.until))
                .unwrap_or(0)
        };
        let place = place.unwrap_or_else(soonest);
        set[place] = Some(denied);
    }

    /// Removes a key under every policy.
    pub(super) fn invalidate(&self, key: Key<'_>) {
        self.invalidated_at
            .fetch_max(self.now().as_nanos(), Ordering::AcqRel);
        self.remove_if(key, |_| true);
    }

    fn remove_if(&self, key: Key<'_>, is_meant: impl Fn(&CachedDenial) -> bool) {
        let Some(sets) = self.sets.get() else { return };
        let fingerprint = self.fingerprint(key);
        if let Some(set) = Self::set(sets, fingerprint) {
            for way in set.lock().iter_mut() {
                if way.is_some_and(|denied| denied.fingerprint == fingerprint && is_meant(&denied))
                {
                    *way = None;
                }
            }
        }
    }
}

impl CachedDenial {
    fn is_of(&self, tag: PolicyTag, fingerprint: u128) -> bool {
        self.tag == tag && self.fingerprint == fingerprint
    }

    /// Returns the denial with its durations at `now`, never shorter than the true ones.
    fn at(&self, now: Timestamp) -> Decision {
        let passed = now.as_nanos().saturating_sub(self.answered_at.as_nanos());
        let mut decision = self.decision;
        decision.wait = decision.wait.saturating_sub(passed);
        decision.reset_after = decision.reset_after.saturating_sub(passed);
        decision.limit_reset_after = decision.limit_reset_after.saturating_sub(passed);
        decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn decided(kind: OutcomeKind) -> Decision {
        let wait = if kind == OutcomeKind::Denied {
            500_000_000
        } else {
            0
        };
        Decision {
            kind,
            wait,
            reset_after: 9,
            limit_reset_after: 9,
            limit: 5,
            remaining: 3,
            limit_index: 0,
            degraded: None,
            is_leased: false,
        }
    }

    #[test]
    fn c2_an_admission_a_refund_and_a_reset_clear_cached_denials() {
        let clock = ManualClock::new();
        let cache = DenyCache::new(16, clock.clone().into());
        let key = Key::new(b"k").unwrap();
        let (five, one) = (Cost::try_from(5).unwrap(), Cost::ONE);
        let [one_policy, other_tier, other_policy] =
            [(1, 1), (2, 1), (3, 3)].map(|(policy, namespace)| PolicyTag { policy, namespace });
        let deny = || {
            cache.record(
                one_policy,
                key,
                five,
                cache.now(),
                &decided(OutcomeKind::Denied),
            )
        };
        deny();
        assert!(cache.find(one_policy, key, five).is_some());
        // An admission makes the cached figures wrong.
        for tag in [one_policy, other_tier] {
            cache.record(tag, key, one, cache.now(), &decided(OutcomeKind::Allowed));
            assert!(cache.find(one_policy, key, five).is_none());
            deny();
        }
        assert!(
            cache.find(other_tier, key, five).is_none(),
            "another tier may allow it"
        );
        cache.record(
            other_policy,
            key,
            one,
            cache.now(),
            &decided(OutcomeKind::Allowed),
        );
        assert!(
            cache.find(one_policy, key, five).is_some(),
            "an admission under another policy says nothing"
        );
        cache.invalidate(key);
        assert!(cache.find(one_policy, key, five).is_none());
        clock.advance(Duration::from_millis(1));
        deny();
        clock.advance(Duration::from_millis(500));
        assert!(
            cache.find(one_policy, key, five).is_none(),
            "not for longer than it was denied"
        );
    }
}
