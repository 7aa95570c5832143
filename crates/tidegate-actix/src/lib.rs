//! Rate limits as [actix-web](https://docs.rs/actix-web) middleware.
//!
//! ```
//! use actix_web::{App, web};
//! use tidegate::actix::{RateLimit, key};
//!
//! // Create it once, outside the closure. Its clones, one per worker, share their counters.
//! let limit = RateLimit::memory("100/minute".parse()?, key::client_address());
//! let factory = move || App::new().wrap(limit.clone()).route("/", web::get().to(|| async { "hello" }));
//! # let _ = factory();
//! # Ok::<(), tidegate::PolicyError>(())
//! ```
//!
//! A denied request gets 429, problem+json and Retry-After. Every response has the RateLimit
//! headers.
//!
//! Where outcomes are charged, the cost of a client that disconnects is given back once actix-web
//! notices it. With `HttpServer::h1_allow_half_closed(false)` that is at once. Otherwise its
//! request runs to the end, and counts like any other.

mod body;
mod framework;
pub mod key;
mod middleware;
mod response;

// The crates whose types appear in this API.
pub use {actix_web, bytes};

pub use body::LimitedBody;
pub use framework::Actix;
pub use middleware::{RateLimit, RateLimitMiddleware};
pub use response::add_headers;
pub use tidegate_http::{
    Charge, ClientAddress, Denial, Header, HeaderFormat, Headers, InvalidNetwork, KeyWithCost,
    LimitsError, Merge, ResetFormat, verdict_headers,
};

/// The limits of a service.
pub type Limits<S = tidegate_core::MemoryStore> = tidegate_http::Limits<Actix, S>;
