//! gRPC health: the server as a whole, and the service `ratelimit`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::server::Server;

/// The names of the services: the whole server, the name that envoyproxy/ratelimit uses, and the
/// service's own.
const SERVICES: [&str; 3] = [
    "",
    "ratelimit",
    "envoy.service.ratelimit.v3.RateLimitService",
];

/// The interval at which a watched status is read.
const WATCH: Duration = Duration::from_millis(250);

/// Reports the state of the server at the time of the call.
pub(super) struct LiveHealth(pub(super) Arc<Server>);

type Answer = Result<HealthCheckResponse, Status>;

fn message(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: tonic_health::pb::health_check_response::ServingStatus::from(status).into(),
    }
}

fn status(server: &Server) -> ServingStatus {
    if server.is_healthy() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

#[tonic::async_trait]
impl Health for LiveHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found(
                "unknown service: expected ratelimit, or none",
            ));
        }
        Ok(Response::new(message(status(&self.0))))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Answer> + Send>>;

    /// Sends the status now and whenever it changes, until the server drains.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let server = Arc::clone(&self.0);
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            let unknown = HealthCheckResponse {
                status: tonic_health::pb::health_check_response::ServingStatus::ServiceUnknown
                    .into(),
            };
            return Ok(Response::new(Box::pin(stream::iter([Ok(unknown)]))));
        }
        let changes = stream::unfold((server, None), async |(server, mut sent)| {
            loop {
                let now = status(&server);
                if sent != Some(now) {
                    sent = Some(now);
                    return Some((Ok(message(now)), (server, sent)));
                }
                if server.is_draining() {
                    return None;
                }
                tokio::time::sleep(WATCH).await;
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
