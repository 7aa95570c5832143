//! The builder of a memory store, its errors and its statistics.

use super::MemoryStore;
use super::fingerprint::{Fingerprinter, Secret};
use super::receipts::Receipts;
use super::table::Table;
use crate::clock::Clock;

/// The budget of records where none is given: bytes for each of `max_keys`, and at least so many in all.
const RECORD_BYTES_A_KEY: u64 = 256;
const LEAST_RECORD_BYTES: u64 = 64 << 20;

/// Statistics of a memory store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Keys that are kept, among them those that have expired and were not met yet.
    pub keys: u64,
    /// The most keys it keeps.
    pub max_keys: u64,
    /// Bytes reserved for the table.
    pub table_bytes: usize,
    /// Bytes of the records beside the table.
    pub record_bytes: u64,
    /// The most bytes of records that it keeps.
    pub max_record_bytes: u64,
    /// Keys that were dropped, before they had expired, for others to have a place.
    pub evictions: u64,
    /// Evicted keys that were being denied, since all candidates were. Their clients start afresh.
    pub denied_evictions: u64,
    /// Evictions that kept the records within their budget.
    pub record_evictions: u64,
    /// Keys that were forgotten because they had expired.
    pub expiries: u64,
}

/// A builder for [`MemoryStore`].
#[derive(Clone, Debug)]
pub struct MemoryStoreBuilder {
    max_keys: u64,
    max_record_bytes: Option<u64>,
    clock: Clock,
}

/// An error in making a [`MemoryStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryStoreError {
    /// `max_keys` is 0.
    #[error("max_keys is 0: expected at least 1")]
    NoKeys,
    /// The system does not hand out so much memory.
    #[error("no memory for max_keys = {max_keys}: expected fewer (46 bytes a key are reserved)")]
    OutOfMemory {
        /// The number of keys that was asked for.
        max_keys: u64,
    },
    /// The fingerprints of keys need a secret.
    #[error("the system's random source is not available")]
    NoRandomness,
}

impl MemoryStoreBuilder {
    pub(super) fn new() -> Self {
        Self {
            max_keys: MemoryStore::DEFAULT_MAX_KEYS,
            max_record_bytes: None,
            clock: Clock::system(),
        }
    }

    /// The most keys to keep: a hard bound on memory from the start. 1,000,000 where not given.
    #[must_use]
    pub fn max_keys(mut self, max_keys: u64) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// The most bytes of records beside the table: logs, which take 16 bytes or so for each instant at which something was
    /// admitted, and policies of several limits, which take about 60 bytes a limit. Where not given, 256 bytes for each of
    /// `max_keys`, but at least 64 MiB. A full budget evicts records as a full table evicts keys. One record may exceed it.
    #[must_use]
    pub fn max_record_bytes(mut self, bytes: u64) -> Self {
        self.max_record_bytes = Some(bytes);
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
        let secret = Secret::random().ok_or(MemoryStoreError::NoRandomness)?;
        self.build_with(secret)
    }

    pub(super) fn build_with(self, secret: Secret) -> Result<MemoryStore, MemoryStoreError> {
        let Self {
            max_keys,
            max_record_bytes,
            clock,
        } = self;
        if max_keys == 0 {
            return Err(MemoryStoreError::NoKeys);
        }
        let by_keys = max_keys
            .saturating_mul(RECORD_BYTES_A_KEY)
            .max(LEAST_RECORD_BYTES);
        let max_record_bytes = max_record_bytes.unwrap_or(by_keys);
        let table = Table::new(max_keys, max_record_bytes, clock)
            .ok_or(MemoryStoreError::OutOfMemory { max_keys })?;
        Ok(MemoryStore {
            table,
            secret,
            fingerprinter: Fingerprinter::new(secret),
            receipts: Receipts::default(),
        })
    }
}
