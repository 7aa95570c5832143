//! Records that do not fit in a slot: logs, large counters, and the states of policies with a log or
//! more than four limits.
//!
//! Records are stored by group, and their bytes are counted by group, so that the table can keep
//! them within a budget in which each group has a share. A record is only found by the fingerprint
//! that it was stored for.

use std::collections::HashSet;
use std::sync::OnceLock;

use arrayvec::ArrayVec;
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use slab::Slab;

use super::fingerprint::{Fingerprint, Group};
use super::groups::GROUPS;
use crate::record::Record;
use crate::sync::{AtomicU64, Ordering};

/// The number of shards, a power of two, so that threads on different keys rarely contend.
const SHARDS: usize = 16;

/// The size of a record beyond its heap bytes: its place in a shard.
const OVERHEAD: usize = size_of::<StoredRecord>() + size_of::<usize>();

/// Records by group and number. A record belongs to one slot and is used under the lock of that
/// slot's line.
pub(super) struct Arena {
    groups: Box<[OnceLock<Box<Records>>]>,
    records: AtomicU64,
    bytes: AtomicU64,
}

/// The records of one group.
struct Records {
    shards: [Mutex<Shard>; SHARDS],
    /// The fingerprints of large records, of which there are few.
    large: Mutex<HashSet<Fingerprint>>,
    bytes: AtomicU64,
}

/// The size in bytes from which a record is large: a few of them weigh as much as thousands of
/// others.
pub(super) const LARGE: usize = 64 * 1024;

#[derive(Default)]
struct Shard {
    records: Slab<StoredRecord>,
    /// One past the highest index ever used.
    end: usize,
}

/// The maximum number of indexes inspected in a shard for a sample.
const PLACES_LOOKED_AT: usize = 1_024;

/// A record, and the fingerprint that it belongs to.
struct StoredRecord {
    record: Record,
    fingerprint: Fingerprint,
}

impl Arena {
    pub(super) fn new() -> Self {
        Self {
            groups: (0..GROUPS).map(|_| OnceLock::new()).collect(),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Returns the number of records.
    pub(super) fn len(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Returns the bytes of all records.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the records of one group.
    pub(super) fn bytes_of(&self, group: Group) -> u64 {
        self.records_of(group)
            .map_or(0, |records| records.bytes.load(Ordering::Relaxed))
    }

    /// Returns the group whose records take the most bytes.
    pub(super) fn largest_group(&self) -> Group {
        (0..=u8::MAX)
            .map(Group)
            .max_by_key(|group| self.bytes_of(*group))
            .unwrap_or(Group(0))
    }

    /// Stores a record and returns its number, which is never 0.
    pub(super) fn insert(&self, record: Record, fingerprint: Fingerprint) -> u64 {
        let group = fingerprint.group();
        let records = self.groups[usize::from(group.0)].get_or_init(Box::default);
        let number = fingerprint.low as usize % SHARDS;
        self.count(records, fingerprint, 0, size(&record));
        self.records.fetch_add(1, Ordering::Relaxed);
        let mut shard = records.shards[number].lock();
        let at = shard.records.insert(StoredRecord {
            record,
            fingerprint,
        });
        shard.end = shard.end.max(at + 1);
        (at * SHARDS + number) as u64 + 1
    }

    /// Deletes a record.
    pub(super) fn remove(&self, number: u64, fingerprint: Fingerprint) {
        let (Some(records), (shard, at)) = (self.records_of(fingerprint.group()), place(number))
        else {
            return;
        };
        let mut shard = records.shards[shard].lock();
        if shard
            .records
            .get(at)
            .is_some_and(|stored| stored.fingerprint == fingerprint)
        {
            let stored = shard.records.remove(at);
            self.count(records, fingerprint, size(&stored.record), 0);
            self.records.fetch_sub(1, Ordering::Relaxed);
        }
        // A shard that became empty releases its memory.
        if shard.records.is_empty() {
            *shard = Shard::default();
        }
    }

    /// Returns the record of a number, if it belongs to `fingerprint`.
    pub(super) fn get(
        &self,
        number: u64,
        fingerprint: Fingerprint,
    ) -> Option<MappedMutexGuard<'_, Record>> {
        let (records, (shard, at)) = (self.records_of(fingerprint.group())?, place(number));
        let own = |shard: &mut Shard| {
            shard
                .records
                .get(at)
                .is_some_and(|stored| stored.fingerprint == fingerprint)
        };
        let mut shard = records.shards[shard].lock();
        own(&mut shard).then(|| MutexGuard::map(shard, |shard| &mut shard.records[at].record))
    }

    /// Runs `work` on a record and accounts for its change in size. Returns `None` if there is no
    /// such record.
    pub(super) fn with<T>(
        &self,
        number: u64,
        fingerprint: Fingerprint,
        work: impl FnOnce(&mut Record) -> T,
    ) -> Option<T> {
        let mut record = self.get(number, fingerprint)?;
        let before = size(&record);
        let result = work(&mut record);
        self.count(
            self.records_of(fingerprint.group())?,
            fingerprint,
            before,
            size(&record),
        );
        Some(result)
    }

    /// Returns the fingerprints of up to `N` records of a group, starting at an index chosen by
    /// `spread`.
    pub(super) fn sample<const N: usize>(
        &self,
        group: Group,
        spread: u64,
    ) -> ArrayVec<Fingerprint, N> {
        let mut found = ArrayVec::new();
        let Some(records) = self.records_of(group) else {
            return found;
        };
        for shard in 0..SHARDS {
            let shard = records.shards[(spread as usize).wrapping_add(shard) % SHARDS].lock();
            let start = ((u128::from(spread) * shard.end as u128) >> 64) as usize;
            let places = (start..shard.end).chain(0..start).take(PLACES_LOOKED_AT);
            let stored = places.filter_map(|at| Some(shard.records.get(at)?.fingerprint));
            found.extend(stored.take(found.remaining_capacity()));
            if found.is_full() {
                break;
            }
        }
        found
    }

    /// Returns the fingerprints of up to `N` large records of a group.
    pub(super) fn large<const N: usize>(&self, group: Group) -> ArrayVec<Fingerprint, N> {
        let Some(records) = self.records_of(group) else {
            return ArrayVec::new();
        };
        records.large.lock().iter().copied().take(N).collect()
    }

    fn records_of(&self, group: Group) -> Option<&Records> {
        self.groups[usize::from(group.0)]
            .get()
            .map(|records| &**records)
    }

    fn count(&self, records: &Records, fingerprint: Fingerprint, before: usize, after: usize) {
        match (before >= LARGE, after >= LARGE) {
            (false, true) => drop(records.large.lock().insert(fingerprint)),
            (true, false) => drop(records.large.lock().remove(&fingerprint)),
            _ => {}
        }
        if before != after {
            let change = (after as u64).wrapping_sub(before as u64);
            self.bytes.fetch_add(change, Ordering::Relaxed);
            records.bytes.fetch_add(change, Ordering::Relaxed);
        }
    }
}

impl Default for Records {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            large: Mutex::default(),
            bytes: AtomicU64::new(0),
        }
    }
}

fn size(record: &Record) -> usize {
    OVERHEAD + record.heap_bytes()
}

fn place(number: u64) -> (usize, usize) {
    let number = (number as usize).wrapping_sub(1);
    (number % SHARDS, number / SHARDS)
}
