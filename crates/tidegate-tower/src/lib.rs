//! Rate limits as a [tower](https://docs.rs/tower) layer, for axum, hyper, tonic and whatever else speaks `http`.
//!
//! ```
//! use tidegate_tower::{RateLimitLayer, key};
//!
//! // 100 a minute for every client address; IPv6 by /64, and no header is believed.
//! let layer = RateLimitLayer::memory("100/minute".parse()?, key::client_address());
//! # Ok::<(), tidegate_core::PolicyError>(())
//! ```
//!
//! Who is denied gets 429, problem+json and Retry-After; every answer carries the RateLimit fields. A layer that is cloned,
//! for every connection say, is one layer: its clones share what they count.
//!
//! | feature | what it brings |
//! |---|---|
//! | `axum` | finds the peer's address in axum's `ConnectInfo` |
//! | `tonic` | finds it in tonic's; denials of gRPC requests are RESOURCE_EXHAUSTED with RetryInfo |
//! | `tonic-tls` | the same where tonic's server speaks TLS |
//! | `tracing` | an event for every denial and every answer without the store |

mod body;
mod future;
#[cfg(feature = "tonic")]
mod grpc;
pub mod key;
mod kind;
mod layer;
mod peer;
mod refusal;
mod service;

pub use body::Body;
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
pub use peer::{PeerAddress, Tower};
pub use refusal::denied_response;
pub use service::RateLimit;
pub use tidegate_http::{Charge, ClientAddress, Denial, Dialect, LimitsError, NotANetwork, Reset};

/// What the requests of a service are held to.
pub type Limits<S = tidegate_core::MemoryStore> = tidegate_http::Limits<Tower, S>;
