//! The heart of Tidegate: exact rate limit [policies](Policy), [decisions](Decision) and the in-memory
//! [store](MemoryStore). Users add the `tidegate` crate, which re-exports all of this.
//!
//! No async runtime, no I/O, no floats in a decision, no clock read outside the clock module.
#![cfg_attr(not(test), warn(clippy::float_arithmetic))]

mod algorithm;
mod blocking;
mod clock;
mod cost;
mod decision;
mod hardware;
mod health;
mod key;
mod limiter;
mod memory;
mod policy;
mod record;
#[doc(hidden)] // For Tidegate's own stores.
pub mod remote;
mod store;
mod sync;

pub use clock::{Clock, ManualClock, Timestamp};
pub use cost::{Cost, CostError};
pub use decision::{Decision, Degraded, Outcome};
#[doc(hidden)]
pub use health::Histogram;
pub use health::{Breaker, Latency, StoreHealth};
pub use key::{EmptyKey, Key};
pub use limiter::{
    Answer, Check, CheckError, CheckMany, Counters, FailurePolicy, Limiter, LimiterBuilder, Refund, Reset,
};
pub use memory::{MemoryStats, MemoryStore, MemoryStoreBuilder, MemoryStoreError, Plan};
pub use policy::{Algorithm, Anchor, Limit, Policy, PolicyError, Rate};
pub use record::Record;
pub use store::{BlockingError, Store, StoreError};
