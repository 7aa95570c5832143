//! Records that do not fit a slot: logs, and the states of several limits.
//!
//! The bytes of all records are counted, in all and by group, so that the table can keep them within a budget.

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use slab::Slab;

use super::fingerprint::{Fingerprint, Group};
use crate::record::Record;
use crate::sync::{AtomicU64, Ordering};

/// So that threads on different keys seldom meet. A power of two.
const SHARDS: usize = 16;

/// The bytes of a record beside those that it counts itself: its place in a shard.
const OVERHEAD: usize = size_of::<Kept>() + size_of::<usize>();

/// Records by number. A record belongs to one slot and is used under the lock of that slot's line: its number is valid for
/// as long as the entry is there.
pub(super) struct Arena {
    shards: [Mutex<Shard>; SHARDS],
    records: AtomicU64,
    bytes: AtomicU64,
    group_bytes: Box<[AtomicU64]>,
}

#[derive(Default)]
struct Shard {
    records: Slab<Kept>,
    /// Above all places that were ever used.
    end: usize,
}

/// Places that are looked at in a shard for a sample.
const PLACES_LOOKED_AT: usize = 1_024;

/// A record, and the entry that it belongs to.
pub(super) struct Kept {
    pub(super) record: Record,
    fingerprint: Fingerprint,
}

impl Arena {
    pub(super) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            group_bytes: (0..256).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The number of records.
    pub(super) fn len(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// The bytes of all records.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The bytes of the records of one group.
    pub(super) fn bytes_of(&self, group: Group) -> u64 {
        self.group_bytes[usize::from(group.0)].load(Ordering::Relaxed)
    }

    /// Stores a record and returns its number.
    pub(super) fn insert(&self, record: Record, fingerprint: Fingerprint) -> u64 {
        let number = fingerprint.low as usize % SHARDS;
        self.count(fingerprint.group(), 0, size(&record));
        self.records.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.shards[number].lock();
        let at = shard.records.insert(Kept { record, fingerprint });
        shard.end = shard.end.max(at + 1);
        (at * SHARDS + number) as u64
    }

    /// Deletes a record.
    pub(super) fn remove(&self, number: u64) {
        let (shard, at) = place(number);
        let mut shard = self.shards[shard].lock();
        if let Some(kept) = shard.records.try_remove(at) {
            self.count(kept.fingerprint.group(), size(&kept.record), 0);
            self.records.fetch_sub(1, Ordering::Relaxed);
        }
        // A crowd that has gone leaves nothing behind.
        if shard.records.is_empty() {
            *shard = Shard::default();
        }
    }

    /// Returns the record of a number.
    pub(super) fn get(&self, number: u64) -> MappedMutexGuard<'_, Record> {
        let (shard, at) = place(number);
        MutexGuard::map(self.shards[shard].lock(), |shard| &mut shard.records[at].record)
    }

    /// Runs `work` on the record of a number, and counts what it changes in size.
    pub(super) fn with<T>(&self, number: u64, group: Group, work: impl FnOnce(&mut Record) -> T) -> T {
        let mut record = self.get(number);
        let before = size(&record);
        let result = work(&mut record);
        self.count(group, before, size(&record));
        result
    }

    /// The entries of up to `N` records from a place on that `spread` chooses.
    pub(super) fn sample<const N: usize>(&self, spread: u64) -> arrayvec::ArrayVec<Fingerprint, N> {
        let mut found = arrayvec::ArrayVec::new();
        for shard in 0..SHARDS {
            let shard = self.shards[(spread as usize + shard) % SHARDS].lock();
            let start = ((u128::from(spread) * shard.end as u128) >> 64) as usize;
            let places = (start..shard.end).chain(0..start).take(PLACES_LOOKED_AT);
            let kept = places.filter_map(|at| Some(shard.records.get(at)?.fingerprint));
            found.extend(kept.take(found.remaining_capacity()));
            if found.is_full() {
                break;
            }
        }
        found
    }

    fn count(&self, group: Group, before: usize, after: usize) {
        if before != after {
            let change = (after as u64).wrapping_sub(before as u64);
            self.bytes.fetch_add(change, Ordering::Relaxed);
            self.group_bytes[usize::from(group.0)].fetch_add(change, Ordering::Relaxed);
        }
    }
}

fn size(record: &Record) -> usize {
    OVERHEAD + record.heap_bytes()
}

fn place(number: u64) -> (usize, usize) {
    (number as usize % SHARDS, number as usize / SHARDS)
}
