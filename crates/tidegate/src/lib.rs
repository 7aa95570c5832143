#![doc = include_str!("../README.md")]

pub use tidegate_core::{
    Algorithm, Anchor, Check, CheckError, CheckMany, Clock, Cost, CostError, Decision, EmptyKey, Key, Limit, Limiter,
    ManualClock, MemoryStats, MemoryStore, MemoryStoreBuilder, MemoryStoreError, Outcome, Plan, Policy, PolicyError,
    Rate, Record, Refund, Reset, Store, StoreError, Timestamp,
};

/// The example in the repository's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExample;
