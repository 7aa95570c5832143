//! The in-memory store.
//!
//! `table` and `cache_line` hold the entries, `arena` the records that do not fit. `several` handles
//! policies of several limits, with an entry for each. `evict` and `budget` bound both. `operation`
//! runs the algorithms on the entries. `snapshot` writes and reads everything.

mod arena;
mod budget;
mod builder;
mod cache_line;
mod entry_update;
mod evict;
mod fingerprint;
mod groups;
mod key_hasher;
#[cfg(all(test, tidegate_loom))]
mod loom_tests;
mod multi_key;
mod operation;
mod packed;
mod plan;
mod probe;
mod receipts;
mod several;
mod snapshot;
mod sweep;
mod table;
#[cfg(all(test, not(tidegate_loom)))]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use arrayvec::ArrayVec;
pub use builder::{MemoryStats, MemoryStoreBuilder, MemoryStoreError};
pub use key_hasher::KeyHasher;
pub use plan::Plan;
use smallvec::SmallVec;
pub use snapshot::RestoreError;
pub(crate) use snapshot::{decode_record, encode_record};

use crate::algorithm::Answer;
use crate::blocking;
use crate::clock::{Clock, Timestamp};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::Policy;
use crate::record::Settlement;
use crate::store::{Admission, BlockingError, Charged, Store, StoreError};
use cache_line::{LockedLine, SLOTS, Slot};
use entry_update::{EntryUpdate, UpdateContext};
use fingerprint::{Fingerprint, Fingerprinter, Secret};
use multi_key::LockedLines;
use operation::{
    AdmissionCell, Admitting, Charging, Checking, InRecord, InSlot, InSlotOrRecord, Operation,
    Peeking, Probing, Refunding, Settling, decision_of,
};
use plan::Layout;
use receipts::Receipts;
use several::run_several;
use table::{KeyLocation, Table};

/// The number of keys that are hashed and prefetched before the first is decided.
const BATCH: usize = 32;

/// A store in this process's memory, for millions of keys, untrusted keys and many threads.
///
/// **Memory.** A key is stored as a keyed 128-bit fingerprint with its state: 46 bytes per key of
/// `max_keys`, whatever its length. The table is reserved at once and never grows; the system maps
/// its pages on first use. Under a policy of two to four limits, a key has an entry for each, and
/// counts as that many keys.
///
/// A `sliding_window_log`, a policy that contains one, a policy of more than four limits and a
/// `sliding_window_counter` above 8,589,934 do not fit in the table. They are stored as records
/// beside it, within a byte budget ([`MemoryStoreBuilder::max_record_bytes`]).
///
/// **Eviction.** A full store evicts one key for each new one, from a sample of a few dozen. Keys
/// of a policy above its share of the store go first. Among these, a key that was used once or
/// twice goes before one that keeps being denied, and an unused key goes before a recently used
/// one. Flooding the store with new keys therefore does not free a limited client, and flooding one
/// policy does not evict the keys of another.
///
/// **Expiry.** Expired keys are deleted a few at each check. No thread is started.
///
/// # Examples
///
/// ```
/// use tidegate::{Limiter, MemoryStore};
///
/// let store = MemoryStore::builder().max_keys(10_000).build()?;
/// let limiter = Limiter::new(store, "100/minute".parse()?);
/// limiter.check("user:42").now()?;
/// assert_eq!(limiter.store().stats().keys, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryStore {
    table: Table,
    /// The secret of the fingerprints.
    secret: Secret,
    fingerprinter: Fingerprinter,
    receipts: Receipts,
}

impl MemoryStore {
    /// The default of [`MemoryStoreBuilder::max_keys`].
    pub const DEFAULT_MAX_KEYS: u64 = 1_000_000;

    /// Returns a builder.
    #[must_use]
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::new()
    }

    /// Returns the statistics of the store.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        let stats = self.table.stats();
        MemoryStats {
            keys: stats.keys,
            max_keys: self.table.max_keys(),
            table_bytes: self.table.bytes(),
            record_bytes: self.table.arena.bytes(),
            max_record_bytes: self.table.max_record_bytes,
            evictions: stats.evictions,
            denied_evictions: stats.denied_evictions,
            record_evictions: stats.record_evictions,
            expiries: stats.expiries,
        }
    }

    /// Prepares a policy. The same key in two namespaces has two counters.
    #[must_use]
    pub fn plan(&self, policy: &Policy, namespace: &str) -> Plan {
        let group = self.table.groups.of_namespace(namespace);
        Plan::new(
            policy,
            self.fingerprinter.for_policy(policy, namespace, group),
        )
    }

    /// Decides a request and, if it is allowed, takes its cost.
    pub fn check(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Decision {
        self.check_inlined(plan, key, cost)
    }

    /// Like [`check`](Self::check), without a call.
    #[inline(always)]
    pub(crate) fn check_inlined(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Decision {
        let place = self.place(plan, key);
        // The line is fetched while the clock is read.
        place.prefetch();
        let now = self.table.clock().now().as_nanos();
        self.run::<Checking>(plan, place, now, cost.thousandths())
    }

    /// Decides several requests, in order and independently, all with one timestamp. Appends the
    /// decisions to `decisions`.
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

    /// Like [`check_many`](Self::check_many), with a plan for each request.
    #[inline]
    pub fn check_each<'k, 'p>(
        &self,
        requests: impl IntoIterator<Item = (&'p Plan, Key<'k>, Cost)>,
        decisions: &mut Vec<Decision>,
    ) {
        let now = self.table.clock().now().as_nanos();
        let mut requests = requests.into_iter();
        loop {
            let mut batch = ArrayVec::<(&Plan, KeyLocation<'_>, Cost), BATCH>::new();
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
            decisions.extend(batch.into_iter().map(|(plan, place, cost)| {
                self.run::<Checking>(plan, place, now, cost.thousandths())
            }));
        }
    }

    /// Decides one request that several keys must allow: either all are taken from, or none. No
    /// other request is decided in between.
    ///
    /// Returns one decision per key, with where an admitted request is counted. If the request is
    /// denied, the keys that would have allowed it have the decision of a request of cost 0. The
    /// same plan and key given twice counts as one request of the summed cost.
    #[doc(hidden)] // Claims are for Tidegate's own receipts.
    pub fn admit(&self, requests: &[(&Plan, Key<'_>, Cost)]) -> Vec<Admission> {
        let (merged, places_of) = self.merged(requests);
        let fingerprints: SmallVec<[Fingerprint; 8]> = merged
            .iter()
            .flat_map(|(plan, place, _)| plan.fingerprints(place.fingerprint))
            .collect();
        let now = self.table.clock().now().as_nanos();
        let mut locked = LockedLines::new(&self.table, &fingerprints, now);
        let mut run = |(plan, place, cost): &(&Plan, KeyLocation<'_>, Cost),
                       step: LockedOperation<'_>| {
            let cost = cost.thousandths();
            let mut key = LockedKey {
                lines: &mut locked,
                fingerprint: place.fingerprint,
                spared: &fingerprints,
            };
            match step {
                LockedOperation::Probe => self.run_locked::<Probing>(plan, &mut key, now, cost),
                LockedOperation::Take(admitted) => {
                    self.run_locked::<Admitting<'_>>(plan, &mut key, now, (cost, admitted))
                }
                LockedOperation::Look => self.run_locked::<Checking>(plan, &mut key, now, 0),
            }
        };
        let mut admissions: SmallVec<[Admission; 4]> = merged
            .iter()
            .map(|request| Admission::look(run(request, LockedOperation::Probe)))
            .collect();
        let is_denied = admissions.iter().any(|one| one.decision.is_denied());
        for (request, admission) in merged.iter().zip(&mut admissions) {
            if !is_denied {
                let admitted = AdmissionCell::default();
                let decision = run(request, LockedOperation::Take(&admitted));
                *admission = admitted.take().unwrap_or_else(|| Admission::look(decision));
            } else if admission.decision.is_allowed() {
                admission.decision = run(request, LockedOperation::Look);
            }
        }
        drop(locked);
        self.table.after_multi_key(&fingerprints, now);
        places_of
            .into_iter()
            .map(|place| admissions[place].clone())
            .collect()
    }

    /// Takes from all keys of one request, like [`admit`](Self::admit), in the common case: every key
    /// has a slot in a home line of its own, and every one allows the request. Returns `None` in any
    /// other case; nothing is taken then.
    #[doc(hidden)] // For Tidegate's own gates.
    pub fn check_allowed(
        &self,
        requests: &[(&Plan, Key<'_>, Cost)],
    ) -> Option<SmallVec<[Decision; 4]>> {
        let mut places = ArrayVec::<(usize, &Plan, KeyLocation<'_>, Cost), SLOTS>::new();
        for (index, (plan, key, cost)) in requests.iter().enumerate() {
            let place = self.place(plan, *key);
            place.prefetch();
            places.try_push((index, plan, place, *cost)).ok()?;
        }
        // Locks are taken upwards, as everywhere.
        places.sort_unstable_by_key(|(_, _, place, _)| place.home());
        let now = self.table.clock().now().as_nanos();
        let mut asked = ArrayVec::<(LockedLine<'_>, usize, Answer<Slot>), SLOTS>::new();
        let mut last_home = None;
        for (_, plan, place, cost) in &places {
            if last_home == Some(place.home()) {
                return None;
            }
            last_home = Some(place.home());
            let line = place.lock();
            let at = line.guess(place.fingerprint)?;
            let is_here = line.is_at_tagged(at, place.fingerprint);
            let answer = is_here.then(|| plan.answer(&line, at, now, cost.thousandths()))??;
            answer.taken?;
            asked.push((line, at, answer));
        }
        let mut decisions: SmallVec<[Decision; 4]> = SmallVec::new();
        let mut sweeps = 0;
        for ((_, plan, _, _), (line, at, answer)) in places.iter().zip(&mut asked) {
            if let Some(slot) = answer.taken {
                line.write(*at, slot);
            }
            line.admit(*at);
            sweeps += u32::from(line.visit());
            decisions.push(decision_of(answer, plan.capacity()));
        }
        drop(asked);
        (0..sweeps).for_each(|_| self.table.sweep(now));
        let in_order = (0..requests.len()).map(|index| {
            let place = places.iter().position(|(own, ..)| *own == index);
            decisions.get(place?).copied()
        });
        in_order.collect()
    }

    /// Decides like [`check`](Self::check), and returns where an admitted request is counted.
    #[doc(hidden)] // Claims are for Tidegate's own receipts.
    pub fn admit_one(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Admission {
        let (place, now) = (self.place(plan, key), self.table.clock().now().as_nanos());
        let admitted = AdmissionCell::default();
        let input = (cost.thousandths(), &admitted);
        let decision = self.run_any::<Admitting<'_>>(plan, place, now, input);
        admitted.take().unwrap_or_else(|| Admission::look(decision))
    }

    /// Returns the decision that a check of this cost would get, and takes nothing.
    #[doc(hidden)] // Claims are for Tidegate's own receipts.
    pub fn peek(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Admission {
        let (place, now) = (self.place(plan, key), self.table.clock().now().as_nanos());
        let peeked = AdmissionCell::default();
        let input = (cost.thousandths(), &peeked);
        let decision = self.run_any::<Peeking<'_>>(plan, place, now, input);
        peeked.take().unwrap_or_else(|| Admission::look(decision))
    }

    /// Takes a cost whatever the limits say, as far as their debt allows.
    pub fn charge(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Charged {
        let (place, now) = (self.place(plan, key), self.table.clock().now().as_nanos());
        let dropped = Cell::new(Cost::ZERO);
        let input = (cost.thousandths(), &dropped);
        let decision = self.run_any::<Charging<'_>>(plan, place, now, input);
        Charged {
            decision,
            dropped: dropped.get(),
        }
    }

    /// Merges requests with the same plan and key. Returns the merged requests, and the index of
    /// each request's own.
    #[allow(clippy::type_complexity)] // Two lists, used once.
    fn merged<'s, 'p>(
        &'s self,
        requests: &[(&'p Plan, Key<'_>, Cost)],
    ) -> (
        SmallVec<[(&'p Plan, KeyLocation<'s>, Cost); 4]>,
        SmallVec<[usize; 4]>,
    ) {
        let mut merged: SmallVec<[(&'p Plan, KeyLocation<'s>, Cost); 4]> = SmallVec::new();
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

    /// Corrects an admitted request to its actual cost. Returns the decision of a request of cost 0
    /// made right after.
    #[doc(hidden)] // For Tidegate's own receipts.
    pub fn settle(&self, plan: &Plan, key: Key<'_>, settlement: &Settlement<'_>) -> Charged {
        let (place, now) = (self.place(plan, key), self.table.clock().now().as_nanos());
        let dropped = Cell::new(Cost::ZERO);
        let decision = self.run_any::<Settling<'_>>(plan, place, now, (settlement, &dropped));
        Charged {
            decision,
            dropped: dropped.get(),
        }
    }

    /// Gives back the cost of a request. Returns the decision of a request of cost 0 made right
    /// after.
    pub fn refund(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Decision {
        let (place, now) = (self.place(plan, key), self.table.clock().now().as_nanos());
        self.run_any::<Refunding>(plan, place, now, cost.thousandths())
    }

    /// Deletes the usage of a key. Returns `true` if there was any.
    pub fn reset(&self, plan: &Plan, key: Key<'_>) -> bool {
        let now = self.table.clock().now().as_nanos();
        let key = plan.fingerprint(key);
        self.table.remove(key, &plan.fingerprints(key), now)
    }

    #[inline]
    fn place(&self, plan: &Plan, key: Key<'_>) -> KeyLocation<'_> {
        self.table.place(plan.fingerprint(key))
    }

    /// Runs an operation, with the common case of each layout inlined: while a line is fetched, the
    /// processor runs ahead into the next check only if there are few instructions in between.
    #[inline(always)]
    fn run<O: Operation>(
        &self,
        plan: &Plan,
        place: KeyLocation<'_>,
        now: u64,
        input: O::Input,
    ) -> Decision {
        let table = &self.table;
        match plan.layout() {
            Layout::WholeBucket(step) => table.update::<InSlot<_, O>>(place, step, now, input),
            Layout::Bucket(step) => table.update::<InSlot<_, O>>(place, step, now, input),
            Layout::FixedWindow(step) => table.update::<InSlot<_, O>>(place, step, now, input),
            Layout::Counter(step) => table.update::<InSlotOrRecord<O>>(place, step, now, input),
            Layout::Several(plan) => table.update_several::<O>(place, plan, now, input),
            Layout::Record(policy) => table.update::<InRecord<O>>(place, policy, now, input),
        }
    }

    #[inline(never)]
    fn run_any<O: Operation>(
        &self,
        plan: &Plan,
        place: KeyLocation<'_>,
        now: u64,
        input: O::Input,
    ) -> Decision {
        self.run::<O>(plan, place, now, input)
    }

    /// Runs an operation on a key whose lines are locked.
    fn run_locked<O: Operation>(
        &self,
        plan: &Plan,
        key: &mut LockedKey<'_, '_>,
        now: u64,
        input: O::Input,
    ) -> Decision {
        match plan.layout() {
            Layout::WholeBucket(step) => self.update_locked::<InSlot<_, O>>(step, key, now, input),
            Layout::Bucket(step) => self.update_locked::<InSlot<_, O>>(step, key, now, input),
            Layout::FixedWindow(step) => self.update_locked::<InSlot<_, O>>(step, key, now, input),
            Layout::Counter(step) => self.update_locked::<InSlotOrRecord<O>>(step, key, now, input),
            Layout::Record(step) => self.update_locked::<InRecord<O>>(step, key, now, input),
            Layout::Several(step) => {
                let fingerprints = step.fingerprints(key.fingerprint);
                let slots: ArrayVec<_, SLOTS> = fingerprints
                    .iter()
                    .map(|fingerprint| key.lines.slot(*fingerprint))
                    .collect();
                let context = self.context(step, key.fingerprint, now, input);
                let (decision, changes) = run_several::<O>(&context, &fingerprints, &slots);
                for (fingerprint, change) in fingerprints.iter().zip(&changes) {
                    key.lines.apply(*fingerprint, change, key.spared);
                }
                decision
            }
        }
    }

    fn update_locked<W: EntryUpdate>(
        &self,
        step: &W::Step,
        key: &mut LockedKey<'_, '_>,
        now: u64,
        input: W::Input,
    ) -> Decision {
        let slot = key.lines.slot(key.fingerprint);
        let context = self.context(step, key.fingerprint, now, input);
        let (decision, change) = W::run(&context, slot);
        key.lines.apply(key.fingerprint, &change, key.spared);
        decision
    }

    fn context<'a, S: ?Sized, I>(
        &'a self,
        step: &'a S,
        fingerprint: Fingerprint,
        now: u64,
        input: I,
    ) -> UpdateContext<'a, S, I> {
        UpdateContext {
            table: &self.table,
            step,
            fingerprint,
            now,
            input,
        }
    }
}

/// A key whose lines are locked, and the entries that stay when room is made for it.
struct LockedKey<'a, 't> {
    lines: &'a mut LockedLines<'t>,
    fingerprint: Fingerprint,
    spared: &'a [Fingerprint],
}

/// An operation on one of several locked keys.
#[derive(Clone, Copy)]
enum LockedOperation<'a> {
    Probe,
    Take(&'a AdmissionCell),
    Look,
}

/// The futures are ready at once.
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

    fn check_allowed(
        &self,
        requests: &[(&Plan, Key<'_>, Cost)],
    ) -> Option<SmallVec<[Decision; 4]>> {
        self.check_allowed(requests)
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
    ) -> Result<Charged, StoreError> {
        Ok(self.settle(plan, key, settlement))
    }

    async fn peek(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Result<Admission, StoreError> {
        Ok(self.peek(plan, key, cost))
    }

    async fn charge(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Result<Charged, StoreError> {
        Ok(self.charge(plan, key, cost))
    }

    fn clock(&self) -> Clock {
        self.table.clock().clone()
    }

    fn now(&self) -> Timestamp {
        self.table.clock().now()
    }

    async fn refund(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Result<Decision, StoreError> {
        Ok(self.refund(plan, key, cost))
    }

    async fn reset(&self, plan: &Plan, key: Key<'_>) -> Result<bool, StoreError> {
        Ok(self.reset(plan, key))
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
        blocking::ensure_no_runtime()?;
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
