//! The in-memory store.

mod arena;
mod budget;
mod builder;
mod evict;
mod fingerprint;
mod groups;
mod keep;
mod line;
#[cfg(all(test, tidegate_loom))]
mod loom_tests;
mod packed;
mod plan;
mod probe;
mod receipts;
mod snapshot;
mod sweep;
mod table;
#[cfg(all(test, not(tidegate_loom)))]
mod tests;
mod together;
mod work;

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use arrayvec::ArrayVec;
pub use builder::{MemoryStats, MemoryStoreBuilder, MemoryStoreError};
pub use plan::Plan;
use smallvec::SmallVec;
pub use snapshot::RestoreError;

use crate::algorithm::Claims;
use crate::blocking;
use crate::clock::Timestamp;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::Policy;
use crate::record::Settlement;
use crate::store::{Admission, BlockingError, Store, StoreError};
use fingerprint::{Fingerprint, Fingerprinter, Secret};
use keep::{
    Admitting, Checking, InRecord, InSlot, InSlotOrRecord, Operation, Probing, Refunding, Settling,
};
use line::Slot;
use plan::Kept;
use receipts::Receipts;
use table::{Place, Table};
use together::Locked;
use work::{Change, Job, Work};

/// How many keys are hashed and brought near before the first of them is decided on.
const BATCH: usize = 32;

/// Keeps records in this process's memory: sized for millions of keys, for keys that an attacker chooses, and for
/// many threads.
///
/// A key is kept as a keyed 128-bit fingerprint with its state beside it: 46 bytes a key at `max_keys`, whatever the
/// key's length, in a table that is reserved at once and never grows; the system hands out its pages as they are first
/// used. A `sliding_window_log`, a policy of several limits and a `sliding_window_counter` above 8,589,934 do not fit the
/// table and are kept in records beside it, within a budget of bytes ([`MemoryStoreBuilder::max_record_bytes`]).
///
/// A full store evicts one key for each new one, from a sample of a few dozen. Keys of a policy that has more than its
/// share of the store go first. Among these, a key that was asked for once or twice goes before one that keeps being
/// denied, and one that has not been asked for lately goes before one that has. So flooding the store with new keys does
/// not free a limited client, and flooding one policy does not evict the keys of another. What has expired is deleted a
/// little at each check; no thread is started.
pub struct MemoryStore {
    table: Table,
    /// What the fingerprints hang on.
    secret: Secret,
    fingerprinter: Fingerprinter,
    receipts: Receipts,
}

impl MemoryStore {
    /// The most keys that a store keeps where nothing else is said.
    pub const DEFAULT_MAX_KEYS: u64 = 1_000_000;

    /// A store with settings of its own.
    #[must_use]
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::new()
    }

    /// What it holds and has let go.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        let counted = self.table.counted();
        MemoryStats {
            keys: counted.keys,
            max_keys: self.table.max_keys(),
            table_bytes: self.table.bytes(),
            record_bytes: self.table.arena.bytes(),
            max_record_bytes: self.table.max_record_bytes,
            evictions: counted.evictions,
            denied_evictions: counted.denied_evictions,
            record_evictions: counted.record_evictions,
            expiries: counted.expiries,
        }
    }

    /// Works out a policy. In different namespaces the same key is counted apart.
    #[must_use]
    pub fn plan(&self, policy: &Policy, namespace: &str) -> Plan {
        let group = self.table.groups.of_namespace(namespace);
        Plan::new(
            policy,
            self.fingerprinter.for_policy(policy, namespace, group),
        )
    }

    /// Decides on one request, and takes what it costs if it is allowed.
    pub fn check(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Decision {
        let place = self.place(plan, key);
        // Brought near while the clock is read.
        place.prefetch();
        self.run::<Checking>(plan, place, self.table.clock().now().as_nanos(), cost)
    }

    /// Decides on several requests in order, at one time, each for itself; the decisions are added to `decisions`.
    pub fn check_many<'k>(
        &self,
        plan: &Plan,
        requests: impl IntoIterator<Item = (Key<'k>, Cost)>,
        decisions: &mut Vec<Decision>,
    ) {
        self.check_each(
            requests.into_iter().map(|(key, cost)| (plan, key, cost)),
            decisions,
        );
    }

    /// The same, each request under a plan of its own.
    #[inline]
    pub fn check_each<'k, 'p>(
        &self,
        requests: impl IntoIterator<Item = (&'p Plan, Key<'k>, Cost)>,
        decisions: &mut Vec<Decision>,
    ) {
        let now = self.table.clock().now().as_nanos();
        let mut requests = requests.into_iter();
        loop {
            let mut batch = ArrayVec::<(&Plan, Place<'_>, Cost), BATCH>::new();
            for (plan, key, cost) in requests.by_ref().take(BATCH) {
                let place = self.place(plan, key);
                place.prefetch();
                batch.push((plan, place, cost));
            }
            if batch.is_empty() {
                return;
            }
            batch
                .iter()
                .for_each(|(_, place, _)| self.table.prefetch_beyond(*place));
            decisions.extend(
                batch
                    .into_iter()
                    .map(|(plan, place, cost)| self.run::<Checking>(plan, place, now, cost)),
            );
        }
    }

    /// Decides on one request that several keys must all meet: if all allow it, all are taken from, else none. No other
    /// request comes in between. One answer a key, with where the request is counted if it was admitted; of a request
    /// that is denied, the keys that would have allowed it answer like one of cost 0.
    ///
    /// A plan and key that occur twice count as one request of the summed cost.
    #[doc(hidden)] // Claims are for Tidegate's own receipts.
    pub fn admit(&self, requests: &[(&Plan, Key<'_>, Cost)]) -> Vec<(Decision, Claims)> {
        let (merged, places_of) = self.merged(requests);
        let places: SmallVec<[Place<'_>; 4]> = merged.iter().map(|(_, place, _)| *place).collect();
        let fingerprints: SmallVec<[Fingerprint; 4]> =
            places.iter().map(|place| place.fingerprint).collect();
        let now = self.table.clock().now().as_nanos();
        let mut locked = Locked::new(&self.table, &places, now);
        let mut run = |(plan, place, cost): &(&Plan, Place<'_>, Cost), step: Together<'_>| {
            let (slot, cost) = (locked.slot(place.fingerprint), cost.thousandths());
            let (decision, change) = match step {
                Together::Probe => self.run_locked::<Probing>(plan, *place, slot, now, cost),
                Together::Take(claims) => {
                    self.run_locked::<Admitting<'_>>(plan, *place, slot, now, (cost, claims))
                }
                Together::Look => self.run_locked::<Checking>(plan, *place, slot, now, 0),
            };
            locked.apply(place.fingerprint, &change, &fingerprints);
            decision
        };
        let mut decisions: SmallVec<[(Decision, Claims); 4]> = merged
            .iter()
            .map(|request| (run(request, Together::Probe), Claims::new()))
            .collect();
        let is_denied = decisions.iter().any(|(decision, _)| decision.is_denied());
        for (request, answer) in merged.iter().zip(&mut decisions) {
            if !is_denied {
                let claims = RefCell::default();
                let decision = run(request, Together::Take(&claims));
                *answer = (decision, claims.take());
            } else if answer.0.is_allowed() {
                answer.0 = run(request, Together::Look);
            }
        }
        drop(locked);
        self.table.after_together(&fingerprints, now);
        places_of
            .into_iter()
            .map(|place| decisions[place].clone())
            .collect()
    }

    /// Decides on one request like [`check`](Self::check), and returns where it is counted if it was admitted.
    #[doc(hidden)] // Claims are for Tidegate's own receipts.
    pub fn admit_one(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> (Decision, Claims) {
        let (place, now) = (self.place(plan, key), self.table.clock().now().as_nanos());
        let claims = RefCell::default();
        let decision =
            self.run_any::<Admitting<'_>>(plan, place, now, (cost.thousandths(), &claims));
        (decision, claims.take())
    }

    /// Requests that share a plan and a key as one, and for each request which one that is.
    #[allow(clippy::type_complexity)] // Two lists, used once.
    fn merged<'s, 'p>(
        &'s self,
        requests: &[(&'p Plan, Key<'_>, Cost)],
    ) -> (
        SmallVec<[(&'p Plan, Place<'s>, Cost); 4]>,
        SmallVec<[usize; 4]>,
    ) {
        let mut merged: SmallVec<[(&'p Plan, Place<'s>, Cost); 4]> = SmallVec::new();
        let mut places_of = SmallVec::new();
        for (plan, key, cost) in requests {
            let place = self.place(plan, *key);
            let same = merged
                .iter()
                .position(|(_, other, _)| other.fingerprint == place.fingerprint);
            if let Some((_, _, sum)) = same.and_then(|same| merged.get_mut(same)) {
                *sum = sum.plus(*cost);
            }
            places_of.push(same.unwrap_or(merged.len()));
            if same.is_none() {
                merged.push((plan, place, *cost));
            }
        }
        (merged, places_of)
    }

    /// Corrects an admitted request to its actual cost, and answers like one of cost 0 made right after.
    #[doc(hidden)] // For Tidegate's own receipts.
    pub fn settle(&self, plan: &Plan, key: Key<'_>, settlement: &Settlement<'_>) -> Decision {
        let (place, now) = (self.place(plan, key), self.table.clock().now().as_nanos());
        self.run_any::<Settling<'_>>(plan, place, now, settlement)
    }

    /// Gives back what a request took, and answers like one of cost 0 made right after.
    pub fn refund(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Decision {
        self.run::<Refunding>(
            plan,
            self.place(plan, key),
            self.table.clock().now().as_nanos(),
            cost,
        )
    }

    /// Forgets what the key has used.
    pub fn reset(&self, plan: &Plan, key: Key<'_>) {
        self.table.remove(plan.fingerprint(key));
    }

    #[inline]
    fn place(&self, plan: &Plan, key: Key<'_>) -> Place<'_> {
        self.table.place(plan.fingerprint(key))
    }

    #[inline(always)]
    fn run<O: Operation<Input = u64>>(
        &self,
        plan: &Plan,
        place: Place<'_>,
        now: u64,
        cost: Cost,
    ) -> Decision {
        let cost = cost.thousandths();
        // What most policies are runs in the caller's frame.
        if let Kept::WholeBucket(step) = plan.kept() {
            return self.table.update::<InSlot<_, O>>(place, step, now, cost);
        }
        self.run_any::<O>(plan, place, now, cost)
    }

    #[inline(never)]
    fn run_any<O: Operation>(
        &self,
        plan: &Plan,
        place: Place<'_>,
        now: u64,
        input: O::Input,
    ) -> Decision {
        match plan.kept() {
            Kept::WholeBucket(step) => self.table.update::<InSlot<_, O>>(place, step, now, input),
            Kept::Bucket(step) => self.table.update::<InSlot<_, O>>(place, step, now, input),
            Kept::FixedWindow(step) => self.table.update::<InSlot<_, O>>(place, step, now, input),
            Kept::Counter(step) => self
                .table
                .update::<InSlotOrRecord<O>>(place, step, now, input),
            Kept::Record(policy) => self.table.update::<InRecord<O>>(place, policy, now, input),
        }
    }

    /// Runs an operation on a slot whose line is locked; the change is left to the caller.
    fn run_locked<O: Operation>(
        &self,
        plan: &Plan,
        place: Place<'_>,
        slot: Option<Slot>,
        now: u64,
        input: O::Input,
    ) -> (Decision, Change) {
        let (table, fingerprint) = (&self.table, place.fingerprint);
        match plan.kept() {
            Kept::WholeBucket(step) => InSlot::<_, O>::run(
                &Job {
                    table,
                    step,
                    fingerprint,
                    now,
                    input,
                },
                slot,
            ),
            Kept::Bucket(step) => InSlot::<_, O>::run(
                &Job {
                    table,
                    step,
                    fingerprint,
                    now,
                    input,
                },
                slot,
            ),
            Kept::FixedWindow(step) => InSlot::<_, O>::run(
                &Job {
                    table,
                    step,
                    fingerprint,
                    now,
                    input,
                },
                slot,
            ),
            Kept::Counter(step) => InSlotOrRecord::<O>::run(
                &Job {
                    table,
                    step,
                    fingerprint,
                    now,
                    input,
                },
                slot,
            ),
            Kept::Record(step) => InRecord::<O>::run(
                &Job {
                    table,
                    step,
                    fingerprint,
                    now,
                    input,
                },
                slot,
            ),
        }
    }
}

/// An operation on one of several locked keys.
#[derive(Clone, Copy)]
enum Together<'a> {
    Probe,
    Take(&'a RefCell<Claims>),
    Look,
}

/// The same at once as later: what is ready needs no waiting for.
impl Store for MemoryStore {
    type Plan = Plan;

    fn plan(&self, policy: &Policy, namespace: &str) -> Plan {
        self.plan(policy, namespace)
    }

    async fn check(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        Ok(self.check(plan, key, cost))
    }

    async fn check_many(
        &self,
        plan: &Plan,
        requests: &[(Key<'_>, Cost)],
    ) -> Vec<Result<Decision, StoreError>> {
        let mut decisions = Vec::new();
        self.check_many(plan, requests.iter().copied(), &mut decisions);
        decisions.into_iter().map(Ok).collect()
    }

    async fn check_each(
        &self,
        requests: &[(&Plan, Key<'_>, Cost)],
    ) -> Vec<Result<Decision, StoreError>> {
        let mut decisions = Vec::with_capacity(requests.len());
        self.check_each(requests.iter().copied(), &mut decisions);
        decisions.into_iter().map(Ok).collect()
    }

    async fn admit(
        &self,
        requests: &[(&Plan, Key<'_>, Cost)],
    ) -> Result<Vec<Option<Admission>>, StoreError> {
        Ok(self.admit(requests).into_iter().map(Some).collect())
    }

    async fn admit_one(
        &self,
        plan: &Plan,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<Admission, StoreError> {
        Ok(self.admit_one(plan, key, cost))
    }

    async fn settle(
        &self,
        plan: &Plan,
        key: Key<'_>,
        settlement: &Settlement<'_>,
    ) -> Result<Decision, StoreError> {
        Ok(self.settle(plan, key, settlement))
    }

    fn now(&self) -> Timestamp {
        self.table.clock().now()
    }

    async fn refund(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        Ok(self.refund(plan, key, cost))
    }

    async fn reset(&self, plan: &Plan, key: Key<'_>) -> Result<(), StoreError> {
        self.reset(plan, key);
        Ok(())
    }

    async fn keep_receipt(
        &self,
        plan: &Plan,
        key: Key<'_>,
        id: &str,
        receipt: &[u8],
        keep_for: Duration,
    ) -> Result<(), StoreError> {
        self.receipts.keep(
            plan.fingerprint(key),
            id,
            receipt,
            keep_for,
            Store::now(self),
        );
        Ok(())
    }

    async fn take_receipt(
        &self,
        plan: &Plan,
        key: Key<'_>,
        id: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self
            .receipts
            .take(plan.fingerprint(key), id, Store::now(self)))
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn block_on<F: Future>(&self, future: F) -> Result<F::Output, BlockingError> {
        Ok(blocking::ready(future))
    }

    fn detach(&self, future: impl Future<Output = ()> + Send + 'static) {
        blocking::ready(future);
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("stats", &self.stats())
            .field("clock", self.table.clock())
            .finish_non_exhaustive()
    }
}
