//! What can go wrong on the way to Redis and back.

use std::sync::Arc;

use tidegate_core::{Degraded, StoreError};

/// An answer that is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReplyError {
    #[error("what is stored under the key is none of Tidegate's: it was left alone")]
    Unreadable,
    #[error("Redis' answer is none of Tidegate's script")]
    NotAnAnswer,
    #[error("the script's decision is not what its figures say")]
    Disagrees,
}

/// Why a check has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("Redis did not answer in time")]
    Timeout,
    #[error("not connected to Redis: {0}")]
    Disconnected(Arc<str>),
    #[error("Redis is not asked until it answers a probe: {0}")]
    BreakerOpen(Arc<str>),
    #[error("too many checks are waiting for Redis already")]
    Overloaded,
    #[error("Redis refused: {0}")]
    Refused(Arc<str>),
    #[error(transparent)]
    Reply(#[from] ReplyError),
}

impl AskError {
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

impl From<AskError> for StoreError {
    fn from(error: AskError) -> Self {
        Self::new(error.reason(), error)
    }
}
