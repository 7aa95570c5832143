//! Errors of limits and of requests.

use tidegate_core::{CheckError, CostError};

use crate::problem::Problem;

/// The error for limits that cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// The gate does not have the policy.
    #[error(transparent)]
    Policy(#[from] CheckError),
    /// The policy's name is invalid.
    #[error(transparent)]
    Name(#[from] tidegate_core::NameError),
    /// A limit has no policy.
    #[error("a limit without a policy: expected at least one")]
    NoPolicy,
}

/// The error for a request that cannot be checked. It is the response to the client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The address of the peer is missing.
    #[error(
        "the peer's address is missing: expected the server to provide it, in axum by \
         into_make_service_with_connect_info::<SocketAddr>(), elsewhere by a PeerAddress in the \
         request's extensions"
    )]
    NoPeer,
    /// The cost of the request is invalid.
    #[error("the cost of this request is invalid: {0}")]
    Cost(#[from] CostError),
    /// The gate could not check the request.
    #[error(transparent)]
    Check(#[from] CheckError),
}

impl RequestError {
    /// Returns the status of the response.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Cost(_) | Self::Check(CheckError::UnknownTier { .. }) => 400,
            Self::NoPeer | Self::Check(_) => 500,
        }
    }

    /// Returns the body of the response: `application/problem+json`.
    #[must_use]
    pub fn problem(&self) -> String {
        let status = self.status();
        let title = if status == 400 {
            "Bad Request"
        } else {
            "Internal Server Error"
        };
        Problem::new(status, title, self.to_string()).to_json()
    }
}
