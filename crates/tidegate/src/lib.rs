#![doc = include_str!("../README.md")]

mod any_store;
mod connect;

pub use any_store::{AnyPlan, AnyStore};
pub use connect::{Connect, ConnectError, StoreUrl};
pub use tidegate_core::{
    Algorithm, Anchor, Answer, BlockingError, Breaker, Check, CheckError, CheckMany, Clock, Cost, CostError, Counters,
    Decision, Degraded, EmptyKey, FailurePolicy, Key, Latency, Limit, Limiter, LimiterBuilder, ManualClock,
    MemoryStats, MemoryStore, MemoryStoreBuilder, MemoryStoreError, Outcome, Plan, Policy, PolicyError, Rate, Record,
    Refund, Reset, Store, StoreError, StoreHealth, Timestamp,
};
#[cfg(feature = "redis")]
pub use tidegate_redis::{RedisPlan, RedisStore, RedisStoreBuilder};

/// The example in the repository's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExample;
