//! A denied client costs nothing: who was denied until then is denied here until then.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::clock::{Clock, Timestamp};
use crate::cost::Cost;
use crate::decision::{Decision, Verdict};
use crate::key::Key;
use crate::policy::Policy;
use parking_lot::Mutex;

/// What another process gives back or forgets is seen here at the latest after so long.
const LONGEST: Duration = Duration::from_secs(1);

/// Entries that share a lock, and a place: when all are taken, the one that ends first goes.
const WAYS: usize = 4;

/// Denials by the store that still hold. Never more than it was made for.
pub(super) struct DenyCache {
    /// How many sets there are to be, and they, made when the first is needed: most limiters deny nobody.
    set_count: usize,
    sets: OnceLock<Box<[Set]>>,
    /// When something was last given back or forgotten: what was asked before says nothing any more.
    forgotten_at: AtomicU64,
    hashers: [RandomState; 2],
    clock: Clock,
}

type Set = Mutex<[Option<Denied>; WAYS]>;

#[derive(Clone, Copy)]
struct Denied {
    mark: Mark,
    fingerprint: u128,
    cost: Cost,
    decision: Decision,
    /// Until when the store would deny it for certain: counted from when it was asked.
    until: Timestamp,
    /// From when on it would allow it for certain: counted from when it had answered.
    answered_at: Timestamp,
}

/// Tells the policies apart that share a cache.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mark {
    policy: u64,
    /// The same for policies that may share counters: those of one namespace.
    family: u64,
}

/// The caches of limiters that have the same settings, by namespace. Limiters of one namespace may share counters, so that
/// what one of them admits or gives back ends what another one remembers.
#[derive(Default)]
pub(super) struct Caches(Mutex<HashMap<Arc<str>, Weak<DenyCache>>>);

impl Caches {
    /// The cache of a namespace; a new one for limits without a name, which share counters with no others.
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
    /// A cache of so many keys, rounded up to a power of two; none with 0.
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
            forgotten_at: AtomicU64::new(0),
            hashers,
            clock,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Keyed, of 128 bits: no two keys meet, and nobody can make them.
    fn fingerprint(&self, key: Key<'_>) -> u128 {
        let [high, low] = self
            .hashers
            .each_ref()
            .map(|hasher| u128::from(hasher.hash_one(key.as_bytes())));
        high << 64 | low
    }

    /// The mark of a policy in a namespace.
    pub(super) fn mark(&self, policy: &Policy, namespace: &str) -> Mark {
        let policy = self.hashers[0].hash_one((namespace, policy.to_string()));
        let family = if namespace.is_empty() {
            policy
        } else {
            self.hashers[0].hash_one(namespace)
        };
        Mark { policy, family }
    }

    fn set(sets: &[Set], fingerprint: u128) -> Option<&Set> {
        sets.get(fingerprint as usize & sets.len().wrapping_sub(1))
    }

    /// The denial of this very request, if the store's still holds. Of another cost nothing is known: it may fit, or have
    /// to wait for longer.
    pub(super) fn find(&self, mark: Mark, key: Key<'_>, cost: Cost) -> Option<Decision> {
        let sets = self.sets.get()?;
        let fingerprint = self.fingerprint(key);
        let denied = {
            let set = Self::set(sets, fingerprint)?.lock();
            *set.iter()
                .flatten()
                .find(|denied| denied.is_of(mark, fingerprint))?
        };
        let now = self.now();
        (denied.cost == cost && now < denied.until).then(|| denied.at(now))
    }

    /// Remembers a denial by the store of a request that was made at `asked_at`. An admission ends what was remembered: its
    /// figures are not true any more.
    pub(super) fn learn(
        &self,
        mark: Mark,
        key: Key<'_>,
        cost: Cost,
        asked_at: Timestamp,
        decision: &Decision,
    ) {
        if decision.is_allowed() && cost > Cost::ZERO {
            return self.forget_if(key, |denied| denied.mark.family == mark.family);
        }
        let is_remembered = decision.verdict == Verdict::Denied
            && decision.degraded.is_none()
            && self.set_count > 0;
        if !is_remembered || asked_at.as_nanos() < self.forgotten_at.load(Ordering::Acquire) {
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
        let wait = Duration::from_nanos(decision.wait).min(LONGEST);
        let denied = Denied {
            mark,
            fingerprint,
            cost,
            decision: *decision,
            until: asked_at.saturating_add(wait),
            answered_at: self.now(),
        };
        let mut set = set.lock();
        let place = set
            .iter()
            .position(|old| old.is_some_and(|old| old.is_of(mark, fingerprint)));
        let soonest = || {
            (0..WAYS)
                .min_by_key(|way| set[*way].map(|old| old.until))
                .unwrap_or(0)
        };
        let place = place.unwrap_or_else(soonest);
        set[place] = Some(denied);
    }

    /// Forgets a key under every policy.
    pub(super) fn forget(&self, key: Key<'_>) {
        self.forgotten_at
            .fetch_max(self.now().as_nanos(), Ordering::AcqRel);
        self.forget_if(key, |_| true);
    }

    fn forget_if(&self, key: Key<'_>, is_meant: impl Fn(&Denied) -> bool) {
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

impl Denied {
    fn is_of(&self, mark: Mark, fingerprint: u128) -> bool {
        self.mark == mark && self.fingerprint == fingerprint
    }

    /// The denial as it stands now. Who waits as long as it says has waited long enough.
    fn at(&self, now: Timestamp) -> Decision {
        let passed = now.as_nanos().saturating_sub(self.answered_at.as_nanos());
        let mut decision = self.decision;
        decision.wait = decision.wait.saturating_sub(passed);
        decision.reset_after = decision.reset_after.saturating_sub(passed);
        decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn decided(verdict: Verdict) -> Decision {
        let wait = if verdict == Verdict::Denied {
            500_000_000
        } else {
            0
        };
        Decision {
            verdict,
            wait,
            reset_after: 9,
            limit: 5,
            remaining: 3,
            limit_index: 0,
            degraded: None,
        }
    }

    #[test]
    fn c2_an_admission_a_refund_and_a_reset_end_what_is_remembered() {
        let clock = ManualClock::new();
        let cache = DenyCache::new(16, clock.clone().into());
        let key = Key::new(b"k").unwrap();
        let (five, one) = (Cost::try_from(5).unwrap(), Cost::ONE);
        let [one_policy, other_tier, other_policy] =
            [(1, 1), (2, 1), (3, 3)].map(|(policy, family)| Mark { policy, family });
        let deny = || {
            cache.learn(
                one_policy,
                key,
                five,
                cache.now(),
                &decided(Verdict::Denied),
            )
        };
        deny();
        assert!(cache.find(one_policy, key, five).is_some());
        // Its figures are not true any more.
        for mark in [one_policy, other_tier] {
            cache.learn(mark, key, one, cache.now(), &decided(Verdict::Allowed));
            assert!(cache.find(one_policy, key, five).is_none());
            deny();
        }
        assert!(
            cache.find(other_tier, key, five).is_none(),
            "another tier may allow it"
        );
        cache.learn(
            other_policy,
            key,
            one,
            cache.now(),
            &decided(Verdict::Allowed),
        );
        assert!(
            cache.find(one_policy, key, five).is_some(),
            "an admission under another policy says nothing"
        );
        cache.forget(key);
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
