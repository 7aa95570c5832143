//! Errors of operations and replies.

use std::sync::Arc;

use tidegate_core::{Degraded, StoreError};

/// The error for a reply that is not a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReplyError {
    #[error("the stored value was not written by Tidegate; it was left unchanged")]
    Unreadable,
    #[error("the reply was not sent by Tidegate's script")]
    Malformed,
    #[error("the script's decision contradicts the state that it returned")]
    Contradiction,
}

/// The error of an operation without a reply.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("Redis did not answer in time")]
    Timeout,
    #[error("not connected to Redis: {0}")]
    Disconnected(Arc<str>),
    #[error("the circuit breaker is open until Redis answers a probe: {0}")]
    BreakerOpen(Arc<str>),
    #[error("too many checks are waiting for Redis")]
    Overloaded,
    #[error("Redis refused the command: {0}")]
    Refused(Arc<str>),
    #[error(transparent)]
    Reply(#[from] ReplyError),
}

impl CallError {
    /// Returns `true` if the server is unavailable, so that further calls would fail too.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(
            self,
            Self::Timeout | Self::Disconnected(_) | Self::BreakerOpen(_)
        )
    }

    fn reason(&self) -> Degraded {
        match self {
            Self::Timeout => Degraded::Timeout,
            Self::Disconnected(_) => Degraded::Disconnected,
            Self::BreakerOpen(_) => Degraded::BreakerOpen,
            Self::Overloaded => Degraded::Overloaded,
            Self::Refused(_) => Degraded::Refused,
            Self::Reply(_) => Degraded::Unreadable,
        }
    }
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        Self::new(error.reason(), error)
    }
}
