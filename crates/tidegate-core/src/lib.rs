//! The heart of Tidegate: exact rate limit [policies](Policy), [decisions](Decision) and the in-memory
//! [store](MemoryStore). Users add the `tidegate` crate, which re-exports all of this.
//!
//! No async runtime, no I/O, no floats in a decision, no clock read outside the clock module.
#![cfg_attr(not(test), warn(clippy::float_arithmetic))]

mod algorithm;
mod blocking;
mod book;
mod clock;
mod cost;
mod decision;
mod gate;
mod hardware;
mod health;
mod identity;
mod key;
mod limiter;
mod memory;
mod name;
mod policy;
mod record;
#[doc(hidden)] // For Tidegate's own stores.
pub mod remote;
mod store;
mod subject;
mod sync;

#[doc(hidden)]
pub use algorithm::{Claim, Claims};
pub use book::{Book, BookError, Exception, Rules};
pub use clock::{Clock, ManualClock, Timestamp};
pub use cost::{Cost, CostError};
pub use decision::{Decision, Degraded, Outcome};
pub use gate::{
    Ask, BucketLimit, Effect, Gate, GateBuilder, Label, PolicyCounters, Receipt, Ruling, Verdict,
};
#[doc(hidden)]
pub use health::Histogram;
pub use health::{Breaker, Latency, StoreHealth};
#[doc(hidden)]
pub use identity::{BucketNumbers, identity};
pub use key::{EmptyKey, Key};
pub use limiter::{
    Answer, Check, CheckError, CheckMany, CheckWithReceipt, Counters, Each, FailurePolicy, Limiter,
    LimiterBuilder, Refund, Reset,
};
pub use memory::{
    MemoryStats, MemoryStore, MemoryStoreBuilder, MemoryStoreError, Plan, RestoreError,
};
pub use name::{Name, NameError};
pub use policy::{Algorithm, Anchor, Limit, Policy, PolicyError, Rate};
pub use record::Record;
#[doc(hidden)]
pub use record::Settlement;
#[doc(hidden)]
pub use store::{ANY_RATE, Admission};
pub use store::{BlockingError, Store, StoreError};
pub use subject::Subject;
#[doc(hidden)]
pub use subject::composed_key;
