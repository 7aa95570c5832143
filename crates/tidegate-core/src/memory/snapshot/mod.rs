//! Snapshots: the content of a store as bytes, so that a restart resets no limit.
//!
//! The format: a header (magic, version, whether short keys are hashed with AES, the secret, the
//! clock, the names of policies), the entries, an end byte with their number, and a checksum over
//! everything. Numbers are little-endian.
//!
//! A snapshot contains the store's secret, so only its owner may read it. The checksum detects
//! damage, not forgery: `decode.rs` accepts nothing that a store could not have written.

mod decode;
mod encode;
#[cfg(all(test, not(tidegate_loom)))]
mod tests;

use std::io::{self, Write};

use decode::Reader;
use encode::ChecksumWriter;
use siphasher::sip128::Hasher128;

use super::cache_line::Kind;
use super::fingerprint::Secret;
use super::packed::counter_shifted;
use super::table::Entry;
use super::{MemoryStore, MemoryStoreBuilder, MemoryStoreError};
use crate::algorithm::{
    BucketState, BucketVersions, CounterState, LogState, StepState, WindowState,
};
use crate::record::Record;

const MAGIC: &[u8; 8] = b"tidegate";
const VERSION: u32 = 4;
/// The end byte, in place of an entry's kind.
const END: u8 = 0xff;
/// The bit of the first byte from which on the denials are stored; the kind is below.
const DENIALS_AT: u32 = 4;
const CHECKSUM_BYTES: usize = 16;

/// The largest difference in nanoseconds between two clocks that were never set.
const MIN_SHIFT: u64 = 1_000_000_000;

/// The error for a snapshot that cannot be restored. Nothing was restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The data is not a snapshot, or is damaged.
    #[error("not a snapshot, or a damaged one: {0}")]
    Damaged(&'static str),
    /// The snapshot has another version.
    #[error("snapshot version {0}: expected {VERSION}")]
    Version(u32),
    /// The snapshot is from another type of processor, on which keys have other fingerprints.
    #[error(
        "the snapshot was written on a processor of another kind, where keys have other fingerprints"
    )]
    OtherProcessor,
    /// The store could not be created.
    #[error(transparent)]
    Memory(#[from] MemoryStoreError),
}

impl MemoryStore {
    /// Writes the content of the store, for [`MemoryStoreBuilder::restore`]. Returns the number of
    /// keys.
    ///
    /// Checks continue during the write, and each key is written as of some time in between. The
    /// snapshot contains the store's secret.
    ///
    /// # Errors
    ///
    /// Returns an error if writing fails.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Limiter, MemoryStore};
    ///
    /// let limiter = Limiter::memory("fixed_window 5/day".parse()?);
    /// limiter.check("user:42").cost(5).now()?;
    /// let mut snapshot = Vec::new();
    /// limiter.store().write_snapshot(&mut snapshot)?;
    ///
    /// let restored = MemoryStore::builder().restore(&snapshot)?;
    /// let limiter = Limiter::new(restored, limiter.policy().clone());
    /// assert!(limiter.check("user:42").now()?.is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_snapshot(&self, to: impl Write) -> io::Result<u64> {
        self.write_snapshot_at(to, self.table.clock().wall_is_ahead_by())
    }

    fn write_snapshot_at(&self, to: impl Write, wall_is_ahead_by: i64) -> io::Result<u64> {
        let mut out = ChecksumWriter::new(to);
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&[u8::from(self.fingerprinter.has_cipher())])?;
        self.secret
            .0
            .iter()
            .try_for_each(|half| out.number(*half))?;
        // The reader converts the times to the wall clock.
        out.number(wall_is_ahead_by.cast_unsigned())?;
        out.names(&self.table.groups.names())?;
        let mut count = 0;
        for line in 0..self.table.lines.len() {
            for entry in self.table.entries(line) {
                out.entry(&entry)?;
                count += 1;
            }
        }
        out.write_all(&[END])?;
        out.number(count)?;
        let sum = out.sum.finish128().as_bytes();
        out.to.write_all(&sum)?;
        out.to.flush()?;
        Ok(count)
    }
}

impl MemoryStoreBuilder {
    /// Creates a store from a snapshot. Expired entries are skipped, and `max_keys` and
    /// `max_record_bytes` apply as usual.
    ///
    /// # Errors
    ///
    /// Returns an error if the data is not a complete snapshot, or if the store cannot be created.
    /// Nothing is restored then.
    pub fn restore(self, snapshot: &[u8]) -> Result<MemoryStore, RestoreError> {
        let mut reader = Reader::checked(snapshot)?;
        let has_cipher = reader.byte()? != 0;
        let store = self.build_with(Secret([reader.number()?, reader.number()?]))?;
        if store.fingerprinter.has_cipher() != has_cipher {
            return Err(RestoreError::OtherProcessor);
        }
        let now = store.table.clock().now().as_nanos();
        let shift =
            Some(reader.number()?.cast_signed()).filter(|by_ns| by_ns.unsigned_abs() >= MIN_SHIFT);
        let names = reader.names()?;
        let group_count = names.len() + 1;
        store.table.groups.set_names(names);
        let mut count = 0;
        while let Some(mut entry) = reader.entry(group_count)? {
            if let Some(by_ns) = shift {
                entry.shift(by_ns);
            }
            store.table.restore(entry, now);
            count += 1;
        }
        if reader.number()? != count || !reader.is_empty() {
            return Err(RestoreError::Damaged("entries are missing"));
        }
        Ok(store)
    }
}

impl Entry {
    /// Moves the entry to another clock.
    fn shift(&mut self, by_ns: i64) {
        self.slot.time = match self.slot.kind {
            Kind::Counter => counter_shifted(self.slot.time, by_ns),
            _ => self.slot.time.saturating_add_signed(by_ns),
        };
        if let Some(record) = &mut self.record {
            *record =
                Record::of_states(record.as_states().iter().map(|state| shifted(state, by_ns)));
        }
    }
}

fn shifted(state: &StepState, by_ns: i64) -> StepState {
    let later = |time: u64| time.saturating_add_signed(by_ns);
    match state {
        StepState::Fresh => StepState::Fresh,
        StepState::Bucket(versions) => {
            let shift = |state: BucketState| BucketState {
                free_at: later(state.free_at),
                ..state
            };
            let others = versions.others.as_ref().map(|others| {
                Box::new(
                    others
                        .iter()
                        .map(|(numbers, state)| (*numbers, shift(*state)))
                        .collect(),
                )
            });
            StepState::Bucket(BucketVersions {
                numbers: versions.numbers,
                state: shift(versions.state),
                others,
            })
        }
        StepState::Window(state) => StepState::Window(WindowState {
            end: later(state.end),
            ..*state
        }),
        StepState::Counter(state) => StepState::Counter(CounterState {
            end: later(state.end),
            ..*state
        }),
        StepState::Log(state) => {
            let (base, entries) = state.parts();
            StepState::Log(LogState::of_parts(
                base,
                entries.map(|(at, total)| (later(at), total)),
            ))
        }
    }
}

/// Encodes a record on its own.
pub(crate) fn encode_record(record: &Record) -> Vec<u8> {
    let mut writer = ChecksumWriter::new(Vec::new());
    // Writing to a vector does not fail.
    let _ = writer.alone(record);
    writer.to
}

/// Decodes a record that [`encode_record`] has written.
pub(crate) fn decode_record(bytes: &[u8]) -> Result<Record, RestoreError> {
    Reader::alone(bytes)
}
