//! The HTTP endpoints of gubernator and limitador.

use http::request::Parts;
use http::{HeaderMap, StatusCode};

use super::Response;
use super::checks::Caller;
use super::problem::Problem;
use super::response::json;
use crate::config::{Config, Scope};
use crate::{grpc, gubernator};

/// An endpoint of another rate limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerOperation {
    GetRateLimits,
    HealthCheck,
    LiveCheck,
    #[cfg(feature = "limitador")]
    Limitador(super::limitador::LimitadorOperation),
}

impl PeerOperation {
    /// Returns the endpoint of a path, if it is served.
    pub(super) fn from_path(path: &str, config: &Config) -> Option<Self> {
        #[cfg(feature = "limitador")]
        if config.limitador.config.is_some()
            && let Some(operation) = super::limitador::LimitadorOperation::from_path(path)
        {
            return Some(Self::Limitador(operation));
        }
        match path {
            _ if !config.gubernator.enabled => None,
            "/v1/GetRateLimits" => Some(Self::GetRateLimits),
            "/v1/HealthCheck" => Some(Self::HealthCheck),
            "/v1/LiveCheck" => Some(Self::LiveCheck),
            _ => None,
        }
    }

    /// Returns the scope that the operation needs, or `None` if it is public.
    pub(super) fn scope(self) -> Option<Scope> {
        match self {
            Self::GetRateLimits => Some(Scope::Check),
            Self::HealthCheck | Self::LiveCheck => None,
            #[cfg(feature = "limitador")]
            Self::Limitador(operation) => operation.scope(),
        }
    }

    pub(super) fn has_body(self) -> bool {
        match self {
            Self::GetRateLimits => true,
            Self::HealthCheck | Self::LiveCheck => false,
            #[cfg(feature = "limitador")]
            Self::Limitador(operation) => operation.has_body(),
        }
    }

    /// Answers a request without a body.
    pub(super) fn status(self, caller: Caller<'_>, head: &Parts) -> Result<Response, Problem> {
        match self {
            Self::HealthCheck => {
                let health = gubernator::health(caller.server);
                Ok(json(&gubernator::health_json(&health)))
            }
            #[cfg(feature = "limitador")]
            Self::Limitador(operation) => operation.status(caller, head.uri.path()),
            Self::LiveCheck | Self::GetRateLimits => {
                let _ = head;
                Ok(json(&serde_json::json!({})))
            }
        }
    }

    /// Answers a request with a body.
    pub(super) async fn run(
        self,
        caller: Caller<'_>,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Response, Problem> {
        match self {
            #[cfg(feature = "limitador")]
            Self::Limitador(operation) => operation.run(caller, body).await,
            _ => {
                let batch = gubernator::request_from_json(body).map_err(Problem::bad)?;
                let decided = gubernator::get_rate_limits(caller.grpc(headers), batch).await;
                let response = decided.map_err(|status| problem(&status))?;
                Ok(json(&gubernator::response_json(&response)))
            }
        }
    }
}

impl<'a> Caller<'a> {
    /// Returns the same caller, for decisions that gRPC and HTTP share.
    pub(super) fn grpc(self, headers: &'a HeaderMap) -> grpc::Caller<'a> {
        grpc::Caller {
            server: self.server,
            active: self.active,
            headers,
            timeouts: self.timeouts,
        }
    }
}

/// Converts the error of a decision that gRPC and HTTP share.
pub(super) fn problem(status: &tonic::Status) -> Problem {
    let code = match status.code() {
        tonic::Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        tonic::Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        tonic::Code::PermissionDenied => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_REQUEST,
    };
    Problem::new(code, status.message())
}
