//! The heart of Tidegate: exact rate limit [policies](Policy), [decisions](Decision) and the in-memory
//! [store](MemoryStore). Users add the `tidegate` crate, which re-exports all of this.
//!
//! No async runtime, no I/O, no floats in a decision, no clock read outside the clock module.
#![cfg_attr(not(test), warn(clippy::float_arithmetic))]

mod algorithm;
mod clock;
mod cost;
mod decision;
mod hardware;
mod key;
mod limiter;
mod memory;
mod policy;
mod record;
mod store;
mod sync;

pub use clock::{Clock, ManualClock, Timestamp};
pub use cost::{Cost, CostError};
pub use decision::{Decision, Outcome};
pub use key::{EmptyKey, Key};
pub use limiter::{Check, CheckError, CheckMany, Limiter, Refund, Reset};
pub use memory::{MemoryStats, MemoryStore, MemoryStoreBuilder, MemoryStoreError, Plan};
pub use policy::{Algorithm, Anchor, Limit, Policy, PolicyError, Rate};
pub use record::Record;
pub use store::{Store, StoreError};
