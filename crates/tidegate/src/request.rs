//! Requests to a [`Limiter`](crate::Limiter) or a [`Gate`](crate::Gate) that have not run yet.
//!
//! `limiter.check(key)` returns one of these types. It does nothing until `.now()`, `.await` or
//! `.blocking()` runs it. Programs rarely name them.

pub use tidegate_core::{
    Acquire, BlockingError, Charge, Check, CheckFuture, CheckMany, CheckWithLimits,
    CheckWithReceipt, GateCharge, GateCheck, GatePeek, GateRefund, GateRequest, GateRequestKind,
    GateReset, LimiterRequest, MaybeReady, Peek, PeekWithLimits, Refund, Request, RequestKind,
    Reset, kind,
};
