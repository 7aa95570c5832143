//! Rate limit [policies](Policy), [decisions](Decision), [limiters](Limiter) and the [in-memory
//! store](MemoryStore).
//!
//! This crate is Tidegate's core. Add the `tidegate` crate instead: it re-exports everything here
//! and adds Redis and the middleware.
//!
//! The core has no async runtime and does no I/O. No decision uses floating point, and only the
//! clock module reads a clock.
#![cfg_attr(not(test), warn(clippy::float_arithmetic))]

mod algorithm;
mod blocking;
mod cas_store;
mod clock;
mod cost;
mod decision;
mod denied;
mod gate;
mod hardware;
mod health;
mod identity;
mod key;
mod limiter;
mod maybe_ready;
mod memory;
mod name;
mod policy;
mod policy_set;
mod record;
#[doc(hidden)] // For Tidegate's own stores.
pub mod remote;
#[cfg(feature = "serde")]
mod serde;
mod store;
mod striped;
mod subject;
mod sync;

#[doc(hidden)]
pub use algorithm::{Claim, Claims};
pub use cas_store::{CasBackend, CasPlan, CasStore};
pub use clock::{Clock, ManualClock, SleepFuture, TimeSource, Timestamp};
pub use cost::{Cost, CostError};
pub use decision::{Decision, Degraded, LimitFigures, Outcome};
pub use denied::{DenialReason, Denied, Usage};
pub use gate::{
    ActualCosts, AllowedVerdict, BucketLimit, Gate, GateBuilder, GateCharge, GateCheck, GatePeek,
    GateRefund, GateRequest, GateRequestKind, GateReset, PolicyCounters, PolicyDecision,
    PolicyLabel, PolicyOutcome, Receipt, Verdict,
};
#[doc(hidden)]
pub use health::Histogram;
pub use health::{Breaker, LATENCY_BOUNDS, Latency, LeaseHealth, StoreHealth};
#[doc(hidden)]
pub use identity::{BucketNumbers, identity};
pub use key::{AsKey, EmptyKey, IntoKey, Key, KeyBuf, KeyPart};
pub use limiter::{
    Acquire, AcquireError, Charge, Check, CheckError, CheckFuture, CheckMany, CheckWithLimits,
    CheckWithReceipt, Counters, FailurePolicy, GlobalLimiter, Limiter, LimiterBuilder,
    LimiterRequest, Peek, PeekWithLimits, Refund, Request, RequestKind, Reset, kind,
};
pub use maybe_ready::MaybeReady;
pub use memory::{
    MemoryStats, MemoryStore, MemoryStoreBuilder, MemoryStoreError, Plan, RestoreError,
};
pub use name::{Name, NameError};
pub use policy::{Algorithm, Anchor, Limit, Policy, PolicyError, Rate};
pub use policy_set::{Exception, PolicySet, PolicySetError, Rules};
#[doc(hidden)]
pub use record::Settlement;
pub use record::{Record, RecordError};
#[doc(hidden)]
pub use store::{ANY_RATE, Admission};
pub use store::{BlockingError, Charged, Store, StoreError};
#[doc(hidden)]
pub use striped::StripedCounters;
pub use subject::Subject;
#[doc(hidden)]
pub use subject::encoded_key;
