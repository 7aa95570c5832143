#![doc = include_str!("../README.md")]

mod any_store;
#[cfg(feature = "macros")]
pub mod attribute;
mod connect;
#[cfg(feature = "opentelemetry")]
pub mod opentelemetry;
#[cfg(feature = "prometheus")]
pub mod prometheus;
#[cfg(any(feature = "opentelemetry", feature = "prometheus"))]
mod series;

pub use any_store::{AnyPlan, AnyStore};
pub use connect::{Connect, ConnectError, StoreUrl};
#[cfg(feature = "actix")]
pub use tidegate_actix as actix;
pub use tidegate_core::{
    Algorithm, Anchor, Answer, Ask, BlockingError, Book, BookError, Breaker, BucketLimit, Check,
    CheckError, CheckMany, Clock, Cost, CostError, Counters, Decision, Degraded, Each, Effect,
    EmptyKey, Exception, FailurePolicy, Gate, GateBuilder, Key, Label, Latency, Limit, Limiter,
    LimiterBuilder, ManualClock, MemoryStats, MemoryStore, MemoryStoreBuilder, MemoryStoreError,
    Name, NameError, Outcome, Plan, Policy, PolicyCounters, PolicyError, Rate, Receipt, Record,
    Refund, Reset, RestoreError, Rules, Ruling, Store, StoreError, StoreHealth, Subject, Timestamp,
    Verdict,
};
#[cfg(feature = "macros")]
pub use tidegate_macros::rate_limit;
#[cfg(feature = "redis")]
pub use tidegate_redis::{RedisPlan, RedisStore, RedisStoreBuilder};
#[cfg(feature = "tower")]
pub use tidegate_tower as tower;

/// The example in the repository's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExample;

/// The examples in docs/middleware.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/middleware.md")]
struct MiddlewareExamples;
