//! The leased keys of a process, in bounded memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tidegate_core::remote::KeyHasher;
use tidegate_core::{Clock, Cost, Decision, Key, LeaseHealth, Timestamp};

use super::leased_key::{KeyReturn, LONGEST_KEY, LeasedKey, Order};
use super::plan::LeasePlan;
use super::slice::{Granted, Moment};
use crate::health::Health;
use crate::plan::RedisPlan;

/// The number of sets, each with its own lock.
const SETS: usize = 4_096;

/// The number of keys per set. When all of them hold slices, other keys of the set are not leased.
const WAYS: usize = 4;

/// A few keys under one lock. The hash of a key identifies it and its policy.
#[derive(Default)]
struct Set {
    hashes: [u128; WAYS],
    keys: [Option<Box<LeasedKey>>; WAYS],
}

/// The keys that this process has leased, or may lease soon.
pub(crate) struct Leases {
    /// Allocated with the first decision about a policy that can be leased.
    sets: OnceLock<Box<[Mutex<Set>]>>,
    hasher: KeyHasher,
    clock: Clock,
    health: Arc<Health>,
    /// Set while the task that ends idle slices runs.
    pub(super) is_sweeping: AtomicBool,
    pub(super) totals: Totals,
}

/// Amounts since the start, in thousandths.
#[derive(Default)]
pub(super) struct Totals {
    granted: AtomicU64,
    returned: AtomicU64,
    lapsed: AtomicU64,
}

impl Leases {
    pub(crate) fn new(clock: Clock, health: Arc<Health>) -> Self {
        Self {
            sets: OnceLock::new(),
            hasher: KeyHasher::random(),
            clock,
            health,
            is_sweeping: AtomicBool::new(false),
            totals: Totals::default(),
        }
    }

    /// The hasher from which those of the policies are derived.
    pub(crate) fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    #[inline]
    pub(super) fn moment(&self) -> Moment {
        Moment {
            epoch: self.health.epoch(),
            now: self.now(),
        }
    }

    /// Runs `change` on a key, if it is in the table.
    #[inline]
    fn with_key<T>(
        &self,
        hash: u128,
        change: impl FnOnce(&mut LeasedKey) -> Option<T>,
    ) -> Option<T> {
        let mut set = set_of(self.sets.get()?, hash)?.lock();
        let way = set.hashes.iter().position(|known| *known == hash)?;
        change(set.keys.get_mut(way)?.as_mut()?)
    }

    /// Admits a request from a slice. May also return a call for the next one.
    #[inline]
    pub(super) fn take(
        &self,
        lease: &LeasePlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Option<(Decision, Option<Box<Order>>)> {
        let hash = lease.hash(key.as_bytes());
        let moment = self.moment();
        self.with_key(hash, |known| known.take(lease, moment, cost.thousandths()))
    }

    /// Returns a call for a slice of a key whose slice has ended.
    pub(super) fn order_again(
        &self,
        lease: &LeasePlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Option<Box<Order>> {
        let hash = lease.hash(key.as_bytes());
        let moment = self.moment();
        self.with_key(hash, |known| {
            known.order_again(lease, moment, cost.thousandths())
        })
    }

    /// Records a decision by Redis. Returns a call for a slice if the key is in demand.
    pub(super) fn observe(
        &self,
        plan: &RedisPlan,
        lease: &LeasePlan,
        key: Key<'_>,
        cost: Cost,
        decision: &Decision,
    ) -> Option<Box<Order>> {
        if key.as_bytes().len() > LONGEST_KEY {
            return None;
        }
        let sets = self.sets.get_or_init(|| {
            let empty = || Mutex::new(Set::default());
            std::iter::repeat_with(empty).take(SETS).collect()
        });
        let (hash, moment) = (lease.hash(key.as_bytes()), self.moment());
        let mut set = set_of(sets, hash)?.lock();
        let new = || Box::new(LeasedKey::new(plan, hash, key.as_bytes(), moment.now));
        let known = set.find_or_add(hash, new)?;
        known.observe(lease, moment, cost.thousandths(), decision)
    }

    /// Adds a granted slice. A key with a call in flight is never removed from the table.
    pub(super) fn granted(&self, lease: &LeasePlan, hash: u128, granted: Granted, resets: u32) {
        let moment = self.moment();
        self.with_key(hash, |known| {
            known.granted(lease, moment, granted, resets);
            Some(())
        });
    }

    /// Records that it is unknown whether a slice was granted.
    pub(super) fn not_granted(&self, hash: u128, until: Timestamp) {
        self.with_key(hash, |known| {
            known.not_granted(until);
            Some(())
        });
    }

    /// Records that Redis denied a slice, and what remains of the quota and of the registry.
    pub(super) fn denied(&self, hash: u128, until: Timestamp, remaining: u64, room: u64) {
        self.with_key(hash, |known| {
            known.denied(until, remaining, room);
            Some(())
        });
    }

    /// Forgets the slices of a key.
    pub(crate) fn forget(&self, plan: &RedisPlan, key: Key<'_>) {
        if let Some(lease) = plan.lease() {
            self.with_key(lease.hash(key.as_bytes()), |known| {
                known.forget();
                Some(())
            });
        }
    }

    /// Ends the slices of a key.
    pub(super) fn end(&self, lease: &LeasePlan, key: Key<'_>) -> Option<KeyReturn> {
        let moment = self.moment();
        self.with_key(lease.hash(key.as_bytes()), |known| {
            known.end_all(lease, moment);
            let unsent = known.take_unsent();
            (!unsent.is_empty()).then(|| known.give_back(unsent))
        })
    }

    /// Ends slices that have lapsed or are idle, and removes unused keys. Returns `false` if no key
    /// is left.
    pub(super) fn sweep(&self, returned: &mut Vec<KeyReturn>) -> bool {
        let mut has_keys = false;
        for set in self.sets.get().into_iter().flatten() {
            for way in &mut set.lock().keys {
                let Some(known) = way else { continue };
                let (plan, moment) = (known.plan().clone(), self.moment());
                let Some(lease) = plan.lease() else { continue };
                let unsent = known.sweep(lease, moment);
                if !unsent.is_empty() {
                    returned.push(known.give_back(unsent));
                }
                if known.is_unused(lease, moment.now) {
                    *way = None;
                } else {
                    has_keys = true;
                }
            }
        }
        has_keys
    }

    /// Ends all slices.
    pub(super) fn end_all(&self) -> Vec<KeyReturn> {
        let mut returned = Vec::new();
        for set in self.sets.get().into_iter().flatten() {
            for known in set.lock().keys.iter_mut().flatten() {
                let plan = known.plan().clone();
                let Some(lease) = plan.lease() else { continue };
                known.end_all(lease, self.moment());
                let unsent = known.take_unsent();
                if !unsent.is_empty() {
                    returned.push(known.give_back(unsent));
                }
            }
        }
        returned
    }

    pub(crate) fn health(&self) -> LeaseHealth {
        let mut health = LeaseHealth::default();
        for set in self.sets.get().into_iter().flatten() {
            let set = set.lock();
            for held in set.keys.iter().flatten().filter_map(|known| known.held()) {
                health.keys += 1;
                health.held += held;
            }
        }
        let read = |total: &AtomicU64| total.load(Ordering::Relaxed);
        health.granted = read(&self.totals.granted);
        health.returned = read(&self.totals.returned);
        health.lapsed = read(&self.totals.lapsed);
        health
    }
}

#[inline]
fn set_of(sets: &[Mutex<Set>], hash: u128) -> Option<&Mutex<Set>> {
    sets.get(hash as usize % SETS)
}

impl Set {
    /// Returns a key of this set. A new one takes an empty place, or that of the key without a
    /// slice that was used least recently.
    fn find_or_add(
        &mut self,
        hash: u128,
        new: impl FnOnce() -> Box<LeasedKey>,
    ) -> Option<&mut LeasedKey> {
        let is_it =
            |(known, key): (&u128, &Option<Box<LeasedKey>>)| *known == hash && key.is_some();
        let place = self.hashes.iter().zip(&self.keys).position(is_it);
        if let Some(place) = place {
            return self.keys.get_mut(place)?.as_deref_mut();
        }
        let age = |key: &Option<Box<LeasedKey>>| match key {
            None => Some(Timestamp::default()),
            Some(key) => key.replaceable_since(),
        };
        let ages = self.keys.iter().enumerate();
        let (_, place) = ages
            .filter_map(|(place, key)| Some((age(key)?, place)))
            .min()?;
        *self.hashes.get_mut(place)? = hash;
        let key = self.keys.get_mut(place)?;
        Some(key.insert(new()))
    }
}

impl Totals {
    pub(super) fn add_granted(&self, amount: u64) {
        self.granted.fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn add_returned(&self, amount: u64) {
        self.returned.fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn add_lapsed(&self, amount: u64) {
        self.lapsed.fetch_add(amount, Ordering::Relaxed);
    }
}
