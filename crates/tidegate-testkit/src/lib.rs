//! What Tidegate's stores are held to, and what they are held against.
//!
//! - [`vectors`]: the worked cases in `vectors/`, for any [`Subject`] that can be told the time.
//! - [`mod@reference`]: a naive limiter, written from the definition of a decision and sharing no code with the real ones.
//! - `redis`: real servers, sentinels and clusters, and a proxy that does to a connection what networks do.
//! - `http`: a client that does what it is told, byte for byte; `tools`: clients of other languages.
//! - [`walk`]: random requests that look for trouble: at edges, next to them, and back in time.
//!
//! A test kit panics where a test should fail.
#![allow(clippy::expect_used, clippy::panic)]

#[cfg(feature = "servers")]
mod folder;
#[cfg(feature = "servers")]
pub mod http;
#[cfg(feature = "servers")]
pub mod redis;
pub mod reference;
#[cfg(feature = "servers")]
pub mod tools;
pub mod vectors;
pub mod walk;

#[cfg(feature = "servers")]
pub use self::folder::Folder;

use tidegate_core::{Cost, Decision, Outcome};

/// One thing to do to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A request of this cost.
    Check(Cost),
    /// Something given back.
    Refund(Cost),
    /// A request of this cost that asks for a receipt of this number.
    Admit(Cost, u32),
    /// The receipt of this number is settled at this cost.
    Settle(u32, Cost),
}

/// A decision as the vectors write it, durations in the subject's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the request may go on.
    pub allowed: bool,
    /// The capacity in units.
    pub limit: u64,
    /// How many requests of cost 1 would still be allowed.
    pub remaining: u64,
    /// 0 if allowed, `None` for never.
    pub retry_after: Option<u64>,
    /// Until the whole capacity is free.
    pub reset_after: u64,
    /// Until an admitted request leaves the queue.
    pub delay: u64,
}

impl Answer {
    /// A decision with its durations rounded up to ticks of `tick_ns`.
    #[must_use]
    pub fn of(decision: &Decision, tick_ns: u64) -> Self {
        let ticks = |duration: std::time::Duration| {
            u64::try_from(duration.as_nanos().div_ceil(u128::from(tick_ns)))
                .expect("a duration of a decision fits")
        };
        Self {
            allowed: decision.is_allowed(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after: match decision.outcome() {
                Outcome::Allowed { .. } => Some(0),
                Outcome::Denied { retry_after } => Some(ticks(retry_after)),
                Outcome::NeverAllowed => None,
            },
            reset_after: ticks(decision.reset_after()),
            delay: ticks(decision.delay()),
        }
    }
}

/// A limiter under test: fresh, with one policy, and told the time.
pub trait Subject {
    /// Does one thing at a time in nanoseconds since the epoch, and answers with durations in nanoseconds.
    fn act(&mut self, at_ns: u64, key: &str, act: Act) -> Decision;
}

impl<F: FnMut(u64, &str, Act) -> Decision> Subject for F {
    fn act(&mut self, at_ns: u64, key: &str, act: Act) -> Decision {
        self(at_ns, key, act)
    }
}
