// The first definition of a link wins: these replace the README's links to docs.rs.
#![doc = include_str!("links.md")]
#![doc = include_str!("front_page_links.md")]
#![cfg_attr(feature = "redis", doc = "[`RedisStore`]: crate::RedisStore")]
#![cfg_attr(feature = "tower", doc = "[`tower`]: mod@crate::tower")]
#![cfg_attr(
    feature = "tower",
    doc = "[`tower::RateLimitLayer`]: crate::tower::RateLimitLayer"
)]
#![cfg_attr(feature = "actix", doc = "[`actix`]: mod@crate::actix")]
#![cfg_attr(
    feature = "actix",
    doc = "[`actix::RateLimit`]: crate::actix::RateLimit"
)]
#![cfg_attr(feature = "macros", doc = "[`rate_limit`]: macro@crate::rate_limit")]
#![cfg_attr(feature = "macros", doc = "[`attribute`]: mod@crate::attribute")]
#![cfg_attr(feature = "prometheus", doc = "[`prometheus`]: mod@crate::prometheus")]
#![cfg_attr(
    feature = "opentelemetry",
    doc = "[`opentelemetry`]: mod@crate::opentelemetry"
)]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod any_store;
#[cfg(feature = "macros")]
pub mod attribute;
mod connect;
pub mod guide;
#[cfg(feature = "opentelemetry")]
pub mod opentelemetry;
#[cfg(feature = "prometheus")]
pub mod prometheus;
pub mod request;
#[cfg(any(feature = "opentelemetry", feature = "prometheus"))]
mod series;
pub mod store;
mod store_url;

pub use any_store::AnyStore;
pub use connect::{Connect, ConnectError};
pub use store_url::StoreUrl;
#[cfg(feature = "actix")]
pub use tidegate_actix as actix;
pub use tidegate_core::{
    AcquireError, ActualCosts, Algorithm, AllowedVerdict, Anchor, AsKey, Breaker, BucketLimit,
    CheckError, Clock, Cost, CostError, Counters, Decision, Degraded, DenialReason, Denied,
    EmptyKey, Exception, FailurePolicy, Gate, GateBuilder, GlobalLimiter, IntoKey, Key, KeyBuf,
    KeyPart, LATENCY_BOUNDS, Latency, Limit, LimitFigures, Limiter, LimiterBuilder, ManualClock,
    MemoryStats, MemoryStore, MemoryStoreBuilder, MemoryStoreError, Name, NameError, Outcome,
    Policy, PolicyCounters, PolicyDecision, PolicyError, PolicyLabel, PolicyOutcome, PolicySet,
    PolicySetError, Rate, Receipt, RestoreError, Rules, SleepFuture, StoreHealth, Subject,
    TimeSource, Timestamp, Usage, Verdict,
};
#[cfg(feature = "macros")]
pub use tidegate_macros::rate_limit;
#[cfg(feature = "redis")]
pub use tidegate_redis::{RedisStore, RedisStoreBuilder};
#[cfg(feature = "tower")]
pub use tidegate_tower as tower;

/// The examples in the repository's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExamples;
