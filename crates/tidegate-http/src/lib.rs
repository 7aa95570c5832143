//! The parts that Tidegate's middleware shares, whatever the framework.
//!
//! - [`key`]: the key of a request, and [`ClientAddress`], an address that clients cannot choose.
//! - [`Limits`]: policies, costs and settings.
//! - [`rate_limit_headers`] and [`Denial`]: what clients receive.
//!
//! Users meet this crate through `tidegate-tower` and `tidegate-actix`.

mod action;
mod charge;
mod check;
mod client_address;
mod decision_json;
mod denial;
mod error;
mod forwarded;
mod framework;
mod header_format;
mod headers;
pub mod into_denial_response;
pub mod key;
mod limit_rule;
mod limits;
mod lookup;
mod problem;
mod rounding;

pub use action::{Action, Admitted};
pub use charge::{ActualCost, Charge, PendingCharge};
pub use client_address::{ClientAddress, InvalidNetwork, client_network};
pub use decision_json::DecisionJson;
pub use denial::Denial;
pub use error::{LimitsError, RequestError};
pub use framework::Framework;
pub use header_format::{HeaderFormat, ResetFormat};
#[cfg(feature = "http")]
pub use headers::add_headers;
pub use headers::{Header, Headers, Merge, PolicyHeaderCache, rate_limit_headers, verdict_headers};
#[cfg(feature = "axum")]
pub use into_denial_response::{FromAxum, ViaAxum};
pub use into_denial_response::{IntoDenialResponse, Own};
pub use limit_rule::KeyWithCost;
pub use limits::Limits;
pub use lookup::{CheckResult, Lookup, PreparedCheck};
pub use problem::{PROBLEM_JSON, Problem};
pub use rounding::{microseconds, retry_after_seconds, seconds};
