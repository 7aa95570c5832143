//! Tidegate as a server: rate limits for every language, over HTTP and RESP, in memory or on Redis.
//!
//! A server is a function of its configuration, its listeners and its shutdown signal: [`run`].
//!
//! ```no_run
//! use tidegate_server::{Config, Listeners, run};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::default();
//! let listeners = Listeners::bind(&config)?;
//! println!("listening on {:?}", listeners.http());
//! run(config, listeners, None, || {}, async { drop(tokio::signal::ctrl_c().await) }).await?;
//! # Ok(())
//! # }
//! ```

mod activity;
mod auth;
pub mod config;
mod descriptors;
mod error;
mod grpc;
mod gubernator;
mod http;
pub mod import;
mod inline;
#[cfg(feature = "limitador")]
mod limitador;
pub mod log;
mod metrics;
mod monitor;
mod net;
mod process;
#[doc(hidden)] // For tests and benchmarks.
#[allow(missing_docs, clippy::all)] // Generated.
#[rustfmt::skip]
pub mod proto;
mod reload;
mod resp;
mod run;
mod secrets;
mod server;
mod snapshot;
mod tls;
#[cfg(feature = "otel")]
mod trace;
mod xds;
mod yaml;

pub use config::{Config, ConfigError, ConfigSource};
#[cfg(feature = "manual-time")]
pub use descriptors::xds_from_yaml;
pub use error::ServeError;
pub use net::Listeners;
#[cfg(feature = "manual-time")]
pub use run::run_at;
pub use run::{Reloads, run};
