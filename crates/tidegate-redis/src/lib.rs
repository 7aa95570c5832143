//! Tidegate's limits across a fleet: records in Redis, decided on there, by one script a check.
//!
//! [`RedisStore`] is what there is to know; users of the `tidegate` crate have it by its URL. Standalone, Sentinel and
//! Cluster; Redis 6.2 or newer.
//!
//! *Lua decides, Rust explains*: the script decides on the server's own time, exactly, and hands back what it had kept;
//! the figures of the decision are worked out of that by the code that the memory store runs.

mod builder;
mod cluster;
mod command;
mod dial;
mod error;
mod health;
mod key;
mod line;
mod plan;
mod rate;
mod reply;
mod runtime;
mod script;
mod settings;
mod store;
mod url;

pub use builder::{ConnectError, RedisStoreBuilder};
pub use plan::RedisPlan;
pub use store::RedisStore;
pub use url::UrlError;
