//! Rate limits as a [tower](https://docs.rs/tower) layer, for axum, hyper, tonic and other `http`
//! services.
//!
//! ```
//! use tidegate::tower::{RateLimitLayer, key};
//!
//! // 100 per minute for each client address. IPv6 by /64; no header is trusted.
//! let layer = RateLimitLayer::memory("100/minute".parse()?, key::client_address());
//! # Ok::<(), tidegate::PolicyError>(())
//! ```
//!
//! A denied request gets 429, problem+json and Retry-After. Every response has the RateLimit
//! headers. A cloned layer, for example one per connection, shares its counters.
//!
//! | Feature | Effect |
//! |---|---|
//! | `axum` | reads the peer's address from axum's `ConnectInfo`; `on_denied` returns anything that is `IntoResponse` |
//! | `tonic` | reads it from tonic's; a denied gRPC request gets RESOURCE_EXHAUSTED with RetryInfo |
//! | `tonic-tls` | the same for tonic's server with TLS |
//! | `tracing` | an event for every denial and every degraded decision |

mod body;
mod framework;
mod future;
#[cfg(feature = "tonic")]
mod grpc;
pub mod key;
mod layer;
mod request_kind;
mod response;
mod service;

// The crates whose types appear in this API.
pub use {bytes, http, http_body};

pub use body::{BodyFailed, DenialBody, DenialResponse, ResponseBody};
pub use framework::{PeerAddress, Tower};
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
pub use response::denied_response;
pub use service::RateLimitService;
pub use tidegate_http::{
    Charge, ClientAddress, Denial, Header, HeaderFormat, Headers, InvalidNetwork, KeyWithCost,
    LimitsError, Merge, ResetFormat, add_headers, verdict_headers,
};

/// The limits of a service.
pub type Limits<S = tidegate_core::MemoryStore> = tidegate_http::Limits<Tower, S>;
