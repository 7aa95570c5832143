//! The memory of one key, in memory and in Redis. docs/sizing.md has the measurements.

use serde::Serialize;
use tidegate_core::{Algorithm, Limit, Policy};

/// Resident bytes of a key in the memory store at `max_keys`: a slot, and the free ones beside it.
const SLOT: u64 = 46;
/// The same for a policy whose state is a record: a log beside other limits, or more than four.
const RECORD: u64 = 250;
/// The most limits with a slot each.
const MOST_SLOTS: usize = 4;
/// The same for a log without entries.
const LOG: u64 = 330;
/// The largest size of one log entry in memory.
const LOG_ENTRY: u64 = 32;
/// The largest sliding_window_counter whose state fits a slot.
const LARGEST_PACKED_COUNTER: u64 = 8_589_934;
/// Bytes of a key in Redis: a bucket as an integer, any other state, an empty log and its entries.
const REDIS_INTEGER: u64 = 133;
const REDIS_STRING: u64 = 148;
/// A second limit of a policy, and each further one.
const REDIS_SECOND: u64 = 50;
const REDIS_MORE: u64 = 18;
const REDIS_LOG: u64 = 248;
const REDIS_LOG_ENTRY: u64 = 16;

/// Bytes of one key, from measurements with short keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Bytes in the memory store, without the entries of a log.
    pub memory: u64,
    /// Bytes in the memory store if all logs are full.
    pub memory_full: u64,
    /// Bytes in Redis, without the entries of a log.
    pub redis: u64,
    /// Bytes in Redis if all logs are full.
    pub redis_full: u64,
}

impl Footprint {
    pub(super) fn of(policy: &Policy) -> Self {
        let limits = policy.limits();
        let logged: u64 = limits
            .iter()
            .filter(|limit| is_log(limit))
            .map(entries)
            .sum();
        let has_log = limits.iter().any(is_log);
        let memory = match limits {
            [limit] if is_log(limit) => LOG,
            [limit] if fits_slot(limit) => SLOT,
            _ if has_log => RECORD + LOG - SLOT,
            [_] => RECORD,
            _ if limits.len() > MOST_SLOTS => RECORD,
            _ => SLOT * limits.len() as u64,
        };
        let more = REDIS_SECOND + REDIS_MORE * (limits.len() as u64).saturating_sub(2);
        let redis = match limits {
            [limit] if is_log(limit) => REDIS_LOG,
            [limit] if is_integer_in_redis(limit) => REDIS_INTEGER,
            [_] => REDIS_STRING,
            _ if has_log => REDIS_LOG + more,
            _ => REDIS_STRING + more,
        };
        Self {
            memory,
            memory_full: memory + logged * LOG_ENTRY,
            redis,
            redis_full: redis + logged * REDIS_LOG_ENTRY,
        }
    }
}

fn is_log(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::SlidingWindowLog
}

/// Returns the most entries of a log.
fn entries(limit: &Limit) -> u64 {
    limit.limit().min(1_000_000)
}

fn fits_slot(limit: &Limit) -> bool {
    limit.algorithm() != Algorithm::SlidingWindowCounter || limit.limit() <= LARGEST_PACKED_COUNTER
}

/// Returns `true` for a bucket whose unit is a whole number of microseconds.
fn is_integer_in_redis(limit: &Limit) -> bool {
    limit.algorithm().is_bucket()
        && limit
            .period()
            .as_micros()
            .is_multiple_of(u128::from(limit.limit()))
}
