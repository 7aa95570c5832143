//! Rate limits on Redis, shared by all processes that use it. One script call decides a check.
//!
//! [`RedisStore`] is the store; users of the `tidegate` crate choose it by a URL. It supports
//! single servers, Sentinel and Cluster, with Redis 6.2 or newer.
//!
//! *Lua decides, Rust computes the rest*: the script decides at the server's own time, exactly, and returns
//! the state it had. The figures of the decision are computed from that by the code that the memory
//! store runs.

mod builder;
mod cluster;
mod command;
mod connection;
mod diagnose;
mod dial;
mod error;
mod health;
mod key;
mod lease;
mod operation;
mod plan;
mod rate;
mod reply;
mod runtime;
mod script;
mod settings;
mod store;
mod url;

pub use builder::{RedisConnectError, RedisStoreBuilder};
pub use diagnose::{Finding, Severity};
pub use plan::RedisPlan;
pub use store::RedisStore;
pub use url::RedisUrlError;
