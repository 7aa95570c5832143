//! The test kit of Tidegate's stores and servers.
//!
//! - [`vectors`]: the worked cases in `vectors/`, for any [`Subject`] with a settable time.
//! - [`mod@reference`]: a naive limiter, written from the definition of a decision. It shares no
//!   code with the real ones.
//! - [`access_log`]: generated access logs, with a planted attack.
//! - `redis`: real servers, sentinels and clusters, and a proxy that injects network faults.
//! - `http`: a client that sends exactly the bytes it is given.
//! - `tools`: clients in other languages.
//! - [`walk`]: random requests at edge cases: at window ends, next to them, and back in time.
//!
//! The test kit panics where a test should fail.
#![allow(clippy::expect_used, clippy::panic)]

pub mod access_log;
#[cfg(feature = "servers")]
mod folder;
#[cfg(feature = "servers")]
pub mod gateway;
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

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A request of this cost.
    Check(Cost),
    /// A refund of this cost.
    Refund(Cost),
    /// A charge of this cost.
    Charge(Cost),
    /// A request of this cost, with a receipt of this number.
    Admit(Cost, u32),
    /// Settles the receipt of this number at this cost.
    Settle(u32, Cost),
}

/// A decision as the vectors write it, with durations in the subject's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// True if the request is allowed.
    pub allowed: bool,
    /// The capacity in units.
    pub limit: u64,
    /// The number of requests of cost 1 that would still be allowed.
    pub remaining: u64,
    /// The time until a retry succeeds: 0 if allowed, `None` if it never does.
    pub retry_after: Option<u64>,
    /// The time until the whole capacity is free.
    pub reset_after: u64,
    /// The time until an admitted request leaves the queue.
    pub delay: u64,
}

impl Answer {
    /// Converts a decision, with its durations rounded up to ticks of `tick_ns`.
    #[must_use]
    pub fn of(decision: &Decision, tick_ns: u64) -> Self {
        let ticks = |duration: std::time::Duration| {
            u64::try_from(duration.as_nanos().div_ceil(u128::from(tick_ns)))
                .expect("a decision's duration fits in 64 bits")
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

/// A limiter under test: new, with one policy and a settable time.
pub trait Subject {
    /// Runs one operation at a time in nanoseconds since the epoch. The decision's durations are in
    /// nanoseconds.
    fn act(&mut self, at_ns: u64, key: &str, act: Act) -> Decision;
}

impl<F: FnMut(u64, &str, Act) -> Decision> Subject for F {
    fn act(&mut self, at_ns: u64, key: &str, act: Act) -> Decision {
        self(at_ns, key, act)
    }
}
