//! The builder of a memory store, its errors and its statistics.

use super::MemoryStore;
use super::fingerprint::{Fingerprinter, Secret};
use super::receipts::Receipts;
use super::table::Table;
use crate::clock::Clock;

/// The default record budget: bytes per key of `max_keys`, and the minimum in total.
const RECORD_BYTES_PER_KEY: u64 = 256;
const MIN_RECORD_BYTES: u64 = 64 << 20;

/// Statistics of a memory store.
///
/// # Examples
///
/// ```
/// use tidegate::Limiter;
///
/// let limiter = Limiter::memory("100/minute".parse()?);
/// limiter.check("user:42").now()?;
/// let stats = limiter.store().stats();
/// assert_eq!((stats.keys, stats.evictions), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Stored keys, including expired ones that have not been swept yet. A key under a policy of two
    /// to four limits counts once for each limit.
    pub keys: u64,
    /// The maximum number of keys.
    pub max_keys: u64,
    /// Bytes reserved for the table.
    pub table_bytes: usize,
    /// Bytes of the records beside the table.
    pub record_bytes: u64,
    /// The maximum bytes of records.
    pub max_record_bytes: u64,
    /// Keys that were evicted before they expired, to make room for others.
    pub evictions: u64,
    /// Evicted keys that were being denied, because all candidates were. Their limits are reset.
    pub denied_evictions: u64,
    /// Evictions that kept the records within their budget.
    pub record_evictions: u64,
    /// Keys that were deleted after they expired.
    pub expiries: u64,
}

/// A builder for [`MemoryStore`].
///
/// # Examples
///
/// ```
/// use tidegate::{ManualClock, MemoryStore};
///
/// let store = MemoryStore::builder().max_keys(50_000).clock(ManualClock::new()).build()?;
/// assert_eq!(store.stats().max_keys, 50_000);
/// # Ok::<(), tidegate::MemoryStoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStoreBuilder {
    max_keys: u64,
    max_record_bytes: Option<u64>,
    clock: Clock,
}

/// The error for a [`MemoryStore`] that cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryStoreError {
    /// `max_keys` is 0.
    #[error("max_keys is 0: expected at least 1")]
    NoKeys,
    /// There is not enough memory.
    #[error(
        "not enough memory for max_keys = {max_keys}: expected fewer (46 bytes are reserved per key)"
    )]
    OutOfMemory {
        /// The number of keys requested.
        max_keys: u64,
    },
    /// The system has no random source, which the secret of the fingerprints needs.
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

    /// Sets the maximum number of keys, a hard bound on memory. The default is 1,000,000. A key under
    /// a policy of two to four limits counts once for each limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::MemoryStore;
    ///
    /// let store = MemoryStore::builder().max_keys(10_000).build()?;
    /// assert_eq!(store.stats().max_keys, 10_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn max_keys(mut self, max_keys: u64) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// Sets the maximum bytes of records beside the table.
    ///
    /// A log takes about 16 bytes for each instant at which a request was admitted. A policy of more
    /// than four limits takes about 60 bytes per limit. The default is 256 bytes per key of
    /// `max_keys`, and at least 64 MiB. A full budget evicts records like a full table evicts keys.
    /// A single record may exceed it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::MemoryStore;
    ///
    /// let store = MemoryStore::builder().max_keys(10_000).max_record_bytes(1 << 20).build()?;
    /// assert_eq!(store.stats().max_record_bytes, 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn max_record_bytes(mut self, bytes: u64) -> Self {
        self.max_record_bytes = Some(bytes);
        self
    }

    /// Sets the clock. The default is the system's; tests use a
    /// [`ManualClock`](crate::ManualClock).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, MemoryStore};
    ///
    /// let store = MemoryStore::builder().clock(ManualClock::new()).build()?;
    /// assert_eq!(store.stats().keys, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Creates the store.
    ///
    /// # Errors
    ///
    /// Returns an error if `max_keys` is 0, if there is not enough memory, or if the system has no
    /// random source.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::MemoryStore;
    ///
    /// assert!(MemoryStore::builder().max_keys(1_000).build().is_ok());
    /// assert!(MemoryStore::builder().max_keys(0).build().is_err());
    /// ```
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
            .saturating_mul(RECORD_BYTES_PER_KEY)
            .max(MIN_RECORD_BYTES);
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
