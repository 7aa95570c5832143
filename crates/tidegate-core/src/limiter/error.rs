//! The errors of a limiter's operations.

use std::time::Duration;

use crate::cost::CostError;
use crate::denied::Denied;
use crate::key::EmptyKey;
use crate::store::{BlockingError, StoreError};

/// The maximum number of policies in one request: as many as one atomic call holds on every store.
pub(crate) const MAX_POLICIES: usize = 32;

/// The error of a check that could not be made. Nothing was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The key is empty.
    #[error(transparent)]
    EmptyKey(#[from] EmptyKey),
    /// The cost is invalid.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The store could not answer.
    ///
    /// Only a [refund](crate::Limiter::refund), a [reset](crate::Limiter::reset) and a settlement
    /// fail with this error: the failure policy does not apply to them. The store's counters are
    /// unchanged as far as is known.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The gate has no policy of this name.
    #[error("unknown policy `{name}`: {expected}")]
    UnknownPolicy {
        /// The name given.
        name: String,
        /// The existing policies, as the message names them.
        expected: String,
    },
    /// The policy does not have this tier, and rejects unknown ones.
    #[error("unknown tier `{tier}` of policy `{policy}`: {expected}")]
    UnknownTier {
        /// The name of the policy.
        policy: String,
        /// The tier given.
        tier: String,
        /// The existing tiers, as the message names them.
        expected: String,
    },
    /// The request names more policies than one atomic call can hold.
    #[error("{count} policies in one request: expected at most {MAX_POLICIES}")]
    TooManyPolicies {
        /// The number of policies.
        count: usize,
    },
    /// The request names a key in two tiers of a policy with shared tiers.
    #[error(
        "policy {policy:?} is named twice for one key, in two tiers that share their counts: expected one tier"
    )]
    TwoTiers {
        /// The name of the policy.
        policy: String,
    },
    /// A blocking call on a thread that must not block.
    #[error(transparent)]
    Blocking(#[from] BlockingError),
}

/// The error of [`Limiter::acquire`](crate::Limiter::acquire). Nothing was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The request cannot be allowed before the timeout, or never.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The timeout ended while earlier requests of the same key were waiting.
    #[error("timed out after {0:?} behind earlier requests of the same key")]
    Timeout(Duration),
    /// The key or the cost is invalid, or the store could not answer.
    #[error(transparent)]
    Check(#[from] CheckError),
}

impl From<EmptyKey> for AcquireError {
    fn from(error: EmptyKey) -> Self {
        Self::Check(error.into())
    }
}

impl From<CostError> for AcquireError {
    fn from(error: CostError) -> Self {
        Self::Check(error.into())
    }
}

impl From<StoreError> for AcquireError {
    fn from(error: StoreError) -> Self {
        Self::Check(error.into())
    }
}

impl From<BlockingError> for AcquireError {
    fn from(error: BlockingError) -> Self {
        Self::Check(error.into())
    }
}
