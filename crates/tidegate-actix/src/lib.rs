//! Rate limits as [actix-web](https://docs.rs/actix-web) middleware.
//!
//! ```
//! use actix_web::{App, web};
//! use tidegate_actix::{RateLimit, key};
//!
//! // Made once, outside of the closure: its clones, one for each worker, share what they count.
//! let limit = RateLimit::memory("100/minute".parse()?, key::client_address());
//! let factory = move || App::new().wrap(limit.clone()).route("/", web::get().to(|| async { "hello" }));
//! # let _ = factory();
//! # Ok::<(), tidegate_core::PolicyError>(())
//! ```
//!
//! Who is denied gets 429, problem+json and Retry-After; every answer carries the RateLimit fields.
//!
//! Where outcomes are charged, what a client that goes away has taken is given back once actix-web notices: at once with
//! `HttpServer::h1_allow_half_closed(false)`; else its request is carried to the end, and counts like any other.

mod body;
mod framework;
pub mod key;
mod middleware;
mod refusal;

pub use body::Body;
pub use framework::Actix;
pub use middleware::{RateLimit, RateLimitMiddleware};
pub use tidegate_http::{Charge, ClientAddress, Denial, Dialect, LimitsError, NotANetwork, Reset};

/// What the requests of a service are held to.
pub type Limits<S = tidegate_core::MemoryStore> = tidegate_http::Limits<Actix, S>;
