//! Why there are no limits, or a request could not be asked about.

use tidegate_core::{CheckError, CostError};

/// Why there are no limits.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// The gate has no policy of the name.
    #[error(transparent)]
    Policy(#[from] CheckError),
    /// The name is not one.
    #[error(transparent)]
    Name(#[from] tidegate_core::NameError),
}

/// Why a request could not be asked about: an answer with an error of its own.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Nobody has said who is at the other end of the connection.
    #[error(
        "the address of the peer is not known: the server has to pass it on, axum by \
         into_make_service_with_connect_info::<SocketAddr>(), others by a PeerAddress among the request's extensions"
    )]
    NoPeer,
    /// What the request costs is not a cost.
    #[error("what this request costs cannot be told: {0}")]
    Cost(#[from] CostError),
    /// The gate could not be asked.
    #[error(transparent)]
    Check(#[from] CheckError),
}

impl RequestError {
    /// The status of its answer.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Cost(_) => 400,
            Self::NoPeer | Self::Check(_) => 500,
        }
    }

    /// The body of its answer: `application/problem+json`.
    #[must_use]
    pub fn problem(&self) -> String {
        let status = self.status();
        let title = if status == 400 {
            "Bad Request"
        } else {
            "Internal Server Error"
        };
        serde_json::json!({ "type": "about:blank", "title": title, "status": status, "detail": self.to_string() })
            .to_string()
    }
}
