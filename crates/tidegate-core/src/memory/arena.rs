//! Records that do not fit a slot: logs, and the states of several limits.

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use slab::Slab;

use crate::record::Record;

/// So that threads on different keys seldom meet. A power of two.
const SHARDS: usize = 16;

/// Records by number. A record belongs to one slot and is used under the lock of that slot's line: its number is good
/// for as long as it stands there.
pub(super) struct Arena {
    shards: [Mutex<Slab<Record>>; SHARDS],
}

impl Arena {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::new(Slab::new())) }
    }

    /// Keeps a record and answers its number. `spread` chooses the shard.
    pub(super) fn insert(&self, record: Record, spread: u64) -> u64 {
        let shard = spread as usize % SHARDS;
        (self.shards[shard].lock().insert(record) * SHARDS + shard) as u64
    }

    pub(super) fn take(&self, number: u64) -> Record {
        let (shard, at) = place(number);
        let mut records = self.shards[shard].lock();
        let record = records.try_remove(at).unwrap_or_default();
        // A crowd that has gone leaves nothing behind.
        if records.is_empty() && records.capacity() > 1_024 {
            *records = Slab::new();
        }
        record
    }

    /// The record of that number.
    pub(super) fn get(&self, number: u64) -> MappedMutexGuard<'_, Record> {
        let (shard, at) = place(number);
        MutexGuard::map(self.shards[shard].lock(), |records| &mut records[at])
    }
}

fn place(number: u64) -> (usize, usize) {
    (number as usize % SHARDS, number as usize / SHARDS)
}
