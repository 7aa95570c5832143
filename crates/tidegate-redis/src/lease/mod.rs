//! Quota leases: a process takes a slice of a key's limit from Redis and admits from it without a
//! round trip.
//!
//! # Guarantees
//!
//! - A slice is taken by an ordinary check, before any of it is spent. Redis therefore never counts
//!   less than what all processes have admitted.
//! - A slice ends before the window from which it was taken, so fixed windows are never exceeded.
//! - The slices that all processes hold are counted by a *registry*: one more limit in Redis beside
//!   the key's record, checked in the same call. It grants the share of the policy that may be
//!   leased. A bucket can exceed its burst by that much, and no more quota can be stranded.
//! - A slice of a bucket ends after one lifetime. What is left of it is given back.
//! - A slice ends when a connection is lost, because a failover may have lost the write.
//!
//! # Files
//!
//! - `plan.rs`: the policies that can be leased, and their registry.
//! - `slice.rs`: a slice, and the decisions made from it.
//! - `leased_key.rs`: one key: its slices, and when the next one is taken.
//! - `demand.rs`: the demand of a key, and the size of its next slice.
//! - `table.rs`: the keys of this process, in bounded memory.
//! - `refill.rs`: the calls to Redis: taking slices and giving them back.

mod demand;
mod leased_key;
mod plan;
mod refill;
mod slice;
mod table;

pub(crate) use plan::{LeasePlan, cannot_be_leased};
pub(crate) use table::Leases;
