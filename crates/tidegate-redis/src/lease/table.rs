//! The leased keys of a process, in bounded memory.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tidegate_core::{Clock, Cost, Decision, Key, LeaseHealth, Timestamp};

use super::plan::LeasePlan;
use super::slice::{Granted, KeyReturn, LeasedKey, Moment, Order, Swept};
use crate::health::Health;
use crate::plan::RedisPlan;

/// The number of sets, each with its own lock.
const SETS: usize = 4_096;

/// The number of keys per set. When all of them hold slices, other keys of the set are not leased.
const WAYS: usize = 4;

type Set = Mutex<[Option<Box<LeasedKey>>; WAYS]>;

/// The keys that this process has leased, or may lease soon.
pub(crate) struct Leases {
    /// Allocated with the first check of a policy that can be leased.
    sets: OnceLock<Box<[Set]>>,
    hasher: RandomState,
    clock: Clock,
    health: Arc<Health>,
    /// Set while the task that ends idle slices runs.
    pub(super) is_sweeping: AtomicBool,
    pub(super) totals: Totals,
}

/// Amounts since the start, in thousandths.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) granted: AtomicU64,
    pub(super) returned: AtomicU64,
    pub(super) lapsed: AtomicU64,
}

impl Leases {
    pub(crate) fn new(clock: Clock, health: Arc<Health>) -> Self {
        Self {
            sets: OnceLock::new(),
            hasher: RandomState::new(),
            clock,
            health,
            is_sweeping: AtomicBool::new(false),
            totals: Totals::default(),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn moment(&self) -> Moment {
        Moment {
            epoch: self.health.epoch(),
            now: self.now(),
        }
    }

    fn hash(&self, plan: &RedisPlan, key: &[u8]) -> u64 {
        self.hasher.hash_one(key) ^ plan.seed()
    }

    fn set(&self, hash: u64) -> &Set {
        let sets = self.sets.get_or_init(|| {
            let empty = || Mutex::new([const { None }; WAYS]);
            std::iter::repeat_with(empty).take(SETS).collect()
        });
        &sets[hash as usize % SETS]
    }

    /// Runs `change` on a key, if it is in the table.
    fn with_key<T>(
        &self,
        hash: u64,
        plan: &RedisPlan,
        key: &[u8],
        change: impl FnOnce(&mut LeasedKey) -> Option<T>,
    ) -> Option<T> {
        let mut set = self.set(hash).lock();
        let is_it = |known: &&mut Box<LeasedKey>| {
            known.hash == hash && *known.key == *key && known.plan.is_equal(plan)
        };
        change(set.iter_mut().flatten().find(is_it)?)
    }

    /// Admits a request from a slice. May also return a call for the next one.
    #[inline]
    pub(super) fn take(
        &self,
        plan: &RedisPlan,
        lease: &LeasePlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Option<(Decision, Option<Order>)> {
        let (key, cost) = (key.as_bytes(), cost.thousandths());
        let moment = self.moment();
        self.with_key(self.hash(plan, key), plan, key, |known| {
            known.take(lease, moment, cost)
        })
    }

    /// Returns a call for a slice of a key whose slice has ended.
    pub(super) fn order_again(
        &self,
        plan: &RedisPlan,
        lease: &LeasePlan,
        key: Key<'_>,
        cost: Cost,
    ) -> Option<Order> {
        let (key, cost) = (key.as_bytes(), cost.thousandths());
        let moment = self.moment();
        self.with_key(self.hash(plan, key), plan, key, |known| {
            known.order_again(lease, moment, cost)
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
    ) -> Option<Order> {
        let (key, cost) = (key.as_bytes(), cost.thousandths());
        let (hash, moment) = (self.hash(plan, key), self.moment());
        let mut set = self.set(hash).lock();
        let is_it = |known: &Option<Box<LeasedKey>>| {
            known.as_ref().is_some_and(|known| {
                known.hash == hash && *known.key == *key && known.plan.is_equal(plan)
            })
        };
        let place = set.iter().position(is_it).or_else(|| free_place(&set))?;
        let way = set.get_mut(place)?;
        if !is_it(way) {
            *way = Some(Box::new(LeasedKey::new(hash, plan, key, moment.now)));
        }
        way.as_mut()?.observe(lease, moment, cost, decision)
    }

    /// Adds a granted slice. A key with a call in flight is never removed from the table.
    pub(super) fn granted(&self, order: &Order, granted: Granted) {
        let moment = self.moment();
        let lapsed = self.with_key(order.hash, &order.plan, &order.key, |known| {
            Some(known.granted(moment, granted))
        });
        self.totals.add_lapsed(lapsed.unwrap_or(0));
    }

    /// Records that no slice was granted, with the remaining quota if Redis reported it.
    pub(super) fn not_granted(&self, order: &Order, until: Timestamp, remaining: Option<u64>) {
        self.with_key(order.hash, &order.plan, &order.key, |known| {
            known.not_granted(until, remaining);
            Some(())
        });
    }

    /// Forgets the slice of a key.
    pub(crate) fn forget(&self, plan: &RedisPlan, key: Key<'_>) {
        let key = key.as_bytes();
        self.with_key(self.hash(plan, key), plan, key, |known| {
            known.drop_slice();
            Some(())
        });
    }

    /// Ends slices that have lapsed or are idle. Returns `false` if no key is left.
    pub(super) fn sweep(&self, returned: &mut Vec<KeyReturn>) -> bool {
        let mut has_keys = false;
        for set in self.sets.get().into_iter().flatten() {
            for way in set.lock().iter_mut() {
                let Some(known) = way else { continue };
                match known.sweep(self.moment()) {
                    Swept::Kept => has_keys = true,
                    Swept::Unused => *way = None,
                    Swept::Ended { rest, lapsed } => {
                        has_keys = true;
                        self.totals.add_lapsed(lapsed);
                        returned.extend(rest.map(|rest| known.returned(rest)));
                    }
                }
            }
        }
        has_keys
    }

    /// Ends all slices.
    pub(super) fn end_all(&self) -> Vec<KeyReturn> {
        let mut returned = Vec::new();
        for set in self.sets.get().into_iter().flatten() {
            for known in set.lock().iter_mut().flatten() {
                let rest = known.end();
                returned.extend(rest.map(|rest| known.returned(rest)));
            }
        }
        returned
    }

    pub(crate) fn health(&self) -> LeaseHealth {
        let mut health = LeaseHealth::default();
        for set in self.sets.get().into_iter().flatten() {
            for held in set.lock().iter().flatten().filter_map(|known| known.held()) {
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

/// Returns a place for a new key: an empty one, or that of the key without a slice that was used
/// least recently.
fn free_place(set: &[Option<Box<LeasedKey>>; WAYS]) -> Option<usize> {
    let oldest = |(place, known): (usize, &Option<Box<LeasedKey>>)| match known {
        None => Some((Timestamp::default(), place)),
        Some(known) => known.is_replaceable().then_some((known.last_used, place)),
    };
    let place = set.iter().enumerate().filter_map(oldest).min();
    place.map(|(_, place)| place)
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
