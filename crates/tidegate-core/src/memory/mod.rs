//! The in-memory store.

mod arena;
mod evict;
mod fingerprint;
mod keep;
mod line;
#[cfg(all(test, tidegate_loom))]
mod loom_tests;
mod packed;
mod plan;
mod probe;
mod snapshot;
mod table;
#[cfg(all(test, not(tidegate_loom)))]
mod tests;
mod turns;

use std::fmt;

use arrayvec::ArrayVec;
pub use plan::Plan;
use smallvec::SmallVec;
pub use snapshot::RestoreError;

use crate::blocking;
use crate::clock::{Clock, Timestamp};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::Policy;
use crate::store::{BlockingError, Store, StoreError};
use fingerprint::{Fingerprinter, Secret};
use keep::{Checking, InRecord, InSlot, InSlotOrRecord, Operation, Probing, Refunding};
use plan::Kept;
use table::{Place, Table};
use turns::Turns;

/// How many keys are hashed and brought near before the first of them is decided on.
const BATCH: usize = 32;

/// Keeps records in this process's memory: sized for millions of keys, for keys that an attacker chooses, and for
/// many threads.
///
/// A key is kept as a keyed 128-bit fingerprint with its state beside it: 46 bytes a key at `max_keys`, whatever the
/// key's length, in a table that is reserved at once and never grows; the system hands out its pages as they are first
/// used. What does not fit a slot of the table is kept beside it, for at most `max_keys` keys: a `sliding_window_log`,
/// which takes 16 bytes or so for each instant at which something was admitted, a policy of several limits, and a
/// `sliding_window_counter` above 8,589,934. `docs/choosing-an-algorithm.md` has the figures.
///
/// A full store drops a key for each new one: of those near it and of those in another place, some 30 together, the one
/// that resets soonest; one that is being denied goes only if all of them are. (Of 44 keys or fewer, it is of all.) What
/// has expired is forgotten a little at each check; no thread is started.
pub struct MemoryStore {
    table: Table,
    /// What the fingerprints hang on.
    secret: Secret,
    fingerprinter: Fingerprinter,
    turns: Turns,
}

/// What a memory store holds and has let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Keys that are kept, among them those that have expired and were not met yet.
    pub keys: u64,
    /// The most keys it keeps.
    pub max_keys: u64,
    /// Bytes reserved for the table.
    pub table_bytes: usize,
    /// Keys that were dropped, before they had expired, for others to have a place.
    pub evictions: u64,
    /// Keys that were forgotten because they had expired.
    pub expiries: u64,
}

/// How a [`MemoryStore`] is to be.
#[derive(Clone, Debug)]
pub struct MemoryStoreBuilder {
    max_keys: u64,
    clock: Clock,
}

/// Why a [`MemoryStore`] could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryStoreError {
    /// A store for no key limits nobody.
    #[error("max_keys is 0: expected at least 1")]
    NoKeys,
    /// The system does not hand out so much memory.
    #[error("no memory for max_keys = {max_keys}: expected fewer (46 bytes a key are reserved)")]
    OutOfMemory {
        /// What was asked for.
        max_keys: u64,
    },
}

impl MemoryStoreBuilder {
    /// The most keys to keep: a hard bound on memory from the start. 1,000,000 where not given.
    #[must_use]
    pub fn max_keys(mut self, max_keys: u64) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// Where time comes from: the system where not given, a [`ManualClock`](crate::ManualClock) in tests.
    #[must_use]
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Makes the store.
    ///
    /// # Errors
    /// If `max_keys` is 0 or more than there is memory for.
    pub fn build(self) -> Result<MemoryStore, MemoryStoreError> {
        self.build_with(Secret::random())
    }

    fn build_with(self, secret: Secret) -> Result<MemoryStore, MemoryStoreError> {
        let Self { max_keys, clock } = self;
        if max_keys == 0 {
            return Err(MemoryStoreError::NoKeys);
        }
        let table = Table::new(max_keys, clock).ok_or(MemoryStoreError::OutOfMemory { max_keys })?;
        Ok(MemoryStore { table, secret, fingerprinter: Fingerprinter::new(secret), turns: Turns::default() })
    }
}

impl MemoryStore {
    /// The most keys that a store keeps where nothing else is said.
    pub const DEFAULT_MAX_KEYS: u64 = 1_000_000;

    /// A store with settings of its own.
    #[must_use]
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder { max_keys: Self::DEFAULT_MAX_KEYS, clock: Clock::system() }
    }

    /// What it holds and has let go.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        let counted = self.table.counted();
        MemoryStats {
            keys: counted.keys,
            max_keys: self.table.max_keys(),
            table_bytes: self.table.bytes(),
            evictions: counted.evictions,
            expiries: counted.expiries,
        }
    }

    /// Works out a policy. In different namespaces the same key is counted apart.
    #[must_use]
    pub fn plan(&self, policy: &Policy, namespace: &str) -> Plan {
        Plan::new(policy, self.fingerprinter.for_shape(policy, namespace))
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
        self.check_each(requests.into_iter().map(|(key, cost)| (plan, key, cost)), decisions);
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
            batch.iter().for_each(|(_, place, _)| self.table.prefetch_beyond(*place));
            decisions.extend(batch.into_iter().map(|(plan, place, cost)| self.run::<Checking>(plan, place, now, cost)));
        }
    }

    /// Decides on one request that several keys must all meet: if all allow it, all are taken from, else none. Requests
    /// that share a key come one after the other. One answer a key; of a request that is denied, the keys that would have
    /// allowed it answer like one of cost 0.
    pub fn check_together(&self, requests: &[(&Plan, Key<'_>, Cost)]) -> Vec<Decision> {
        let places: SmallVec<[(&Plan, Place<'_>, Cost); 4]> =
            requests.iter().map(|(plan, key, cost)| (*plan, self.place(plan, *key), *cost)).collect();
        let _turn = self.turns.take(places.iter().map(|(_, place, _)| place.fingerprint));
        let now = self.table.clock().now().as_nanos();
        let probe = |(plan, place, cost): &(&Plan, Place<'_>, Cost)| self.run::<Probing>(plan, *place, now, *cost);
        let probed: Vec<Decision> = places.iter().map(probe).collect();
        if probed.iter().any(Decision::is_denied) {
            return self.none_taken(&places, probed, now);
        }
        let taken: Vec<Decision> =
            places.iter().map(|(plan, place, cost)| self.run::<Checking>(plan, *place, now, *cost)).collect();
        if taken.iter().all(Decision::is_allowed) {
            return taken;
        }
        // Somebody came in between with one of the keys alone, or one of them is there twice.
        for ((plan, place, cost), decision) in places.iter().zip(&taken) {
            if decision.is_allowed() {
                self.run::<Refunding>(plan, *place, now, *cost);
            }
        }
        self.none_taken(&places, taken, now)
    }

    /// The answers to a request that was denied.
    fn none_taken(&self, places: &[(&Plan, Place<'_>, Cost)], mut decisions: Vec<Decision>, now: u64) -> Vec<Decision> {
        for ((plan, place, _), decision) in places.iter().zip(&mut decisions) {
            if decision.is_allowed() {
                *decision = self.run::<Checking>(plan, *place, now, Cost::ZERO);
            }
        }
        decisions
    }

    /// Gives back what a request took, and answers like one of cost 0 made right after.
    pub fn refund(&self, plan: &Plan, key: Key<'_>, cost: Cost) -> Decision {
        self.run::<Refunding>(plan, self.place(plan, key), self.table.clock().now().as_nanos(), cost)
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
    fn run<O: Operation>(&self, plan: &Plan, place: Place<'_>, now: u64, cost: Cost) -> Decision {
        let cost = cost.thousandths();
        // What most policies are runs in the caller's frame.
        if let Kept::WholeBucket(step) = plan.kept() {
            return self.table.update::<InSlot<_, O>>(place, step, now, cost);
        }
        self.run_any::<O>(plan, place, now, cost)
    }

    #[inline(never)]
    fn run_any<O: Operation>(&self, plan: &Plan, place: Place<'_>, now: u64, cost: u64) -> Decision {
        match plan.kept() {
            Kept::WholeBucket(step) => self.table.update::<InSlot<_, O>>(place, step, now, cost),
            Kept::Bucket(step) => self.table.update::<InSlot<_, O>>(place, step, now, cost),
            Kept::FixedWindow(step) => self.table.update::<InSlot<_, O>>(place, step, now, cost),
            Kept::Counter(step) => self.table.update::<InSlotOrRecord<O>>(place, step, now, cost),
            Kept::Record(steps) => self.table.update::<InRecord<O>>(place, steps, now, cost),
        }
    }
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

    async fn check_many(&self, plan: &Plan, requests: &[(Key<'_>, Cost)]) -> Vec<Result<Decision, StoreError>> {
        let mut decisions = Vec::new();
        self.check_many(plan, requests.iter().copied(), &mut decisions);
        decisions.into_iter().map(Ok).collect()
    }

    async fn check_each(&self, requests: &[(&Plan, Key<'_>, Cost)]) -> Vec<Result<Decision, StoreError>> {
        let mut decisions = Vec::with_capacity(requests.len());
        self.check_each(requests.iter().copied(), &mut decisions);
        decisions.into_iter().map(Ok).collect()
    }

    async fn check_together(&self, requests: &[(&Plan, Key<'_>, Cost)]) -> Result<Vec<Option<Decision>>, StoreError> {
        Ok(self.check_together(requests).into_iter().map(Some).collect())
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
