//! Explains rate limit policies, simulates traffic, replays access logs and finds limits.
//!
//! The commands `tidegate explain`, `simulate` and `replay` are built on this crate. Everything
//! here decides with the memory store and a manual clock, so results are those of a real limiter.

pub mod explain;
pub mod log;
pub mod plot;
pub mod replay;
pub mod text;
mod timeline;
mod traffic;
mod trial;

pub use explain::{Difference, Explanation, WorstCase};
pub use timeline::{Bin, Timeline};
pub use traffic::{Traffic, TrafficError};
