//! Requests to a [`Limiter`](crate::Limiter) or a [`Gate`](crate::Gate) that have not run yet.
//!
//! `limiter.check(key)` returns one of these types. It does nothing until `.now()`, `.await` or
//! `.wait()` runs it. Programs rarely name them.

pub use tidegate_core::{
    BlockingError, Check, CheckFuture, CheckMany, CheckWithReceipt, GateCheck, LimiterRequest,
    MaybeReady, Refund, Reset,
};
