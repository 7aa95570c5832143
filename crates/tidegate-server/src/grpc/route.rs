//! Selects the method of a call.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tonic::Status;
use tonic_health::pb::health_server::HealthServer;
use tower_service::Service;

use super::health::LiveHealth;
#[cfg(feature = "limitador")]
use super::limitador::kuadrant;
use super::rate_limit::{Caller, should_rate_limit};
use super::{Grpc, unary};
use crate::config::{Config, Scope};
use crate::gubernator;
use crate::http::response_body::{ResponseBody, ResponseReservation};
use crate::http::{body, route};
#[cfg(feature = "limitador")]
use crate::limitador::CheckKind;
use crate::metrics::Protocol;
use crate::net::Timeouts;
use crate::proto::pb::gubernator::LiveCheckResp;
use crate::server::Server;

/// The maximum size of a message and of a batch, in multiples of that of one check over HTTP.
const MESSAGE: usize = 4;
const BATCH: usize = 16;

/// The maximum size of a message to the streaming services, which need no token.
const MAX_QUERY: usize = 4 * 1024;

/// The descriptors of all services, for reflection.
const DESCRIPTORS: &[u8] = include_bytes!("../proto/descriptors.bin");

/// A method with one message in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnaryMethod {
    ShouldRateLimit,
    #[cfg(feature = "limitador")]
    CheckRateLimit,
    #[cfg(feature = "limitador")]
    Report,
    GetRateLimits,
    HealthCheck,
    LiveCheck,
}

impl UnaryMethod {
    /// Returns the method of a path, if it is served.
    fn from_path(path: &str, config: &Config) -> Option<Self> {
        let has_gubernator = config.gubernator.enabled;
        Some(match path {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => Self::ShouldRateLimit,
            #[cfg(feature = "limitador")]
            "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit" => {
                Self::CheckRateLimit
            }
            #[cfg(feature = "limitador")]
            "/kuadrant.service.ratelimit.v1.RateLimitService/Report" => Self::Report,
            "/pb.gubernator.V1/GetRateLimits" if has_gubernator => Self::GetRateLimits,
            "/pb.gubernator.V1/HealthCheck" if has_gubernator => Self::HealthCheck,
            "/pb.gubernator.V1/LiveCheck" if has_gubernator => Self::LiveCheck,
            _ => return None,
        })
    }

    /// Returns the maximum size of its message, in multiples of that of one check over HTTP.
    fn size(self) -> usize {
        match self {
            Self::GetRateLimits => BATCH,
            _ => MESSAGE,
        }
    }

    /// Returns `true` if no token is needed.
    fn is_public(self) -> bool {
        matches!(self, Self::HealthCheck | Self::LiveCheck)
    }
}

type Call = Box<
    dyn Fn(http::Request<Incoming>) -> BoxFuture<'static, http::Response<tonic::body::Body>>
        + Send
        + Sync,
>;

/// The services with streams, which tonic runs: by the start of their paths.
pub(crate) struct Services(Vec<(&'static str, Call)>);

impl Services {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        let builder = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let health = HealthServer::new(LiveHealth(Arc::clone(server)));
        let health = health.max_decoding_message_size(MAX_QUERY);
        let mut services = vec![("/grpc.health.v1.Health/", call(health))];
        if let Ok(reflection) = builder().build_v1() {
            let reflection = reflection.max_decoding_message_size(MAX_QUERY);
            services.push(("/grpc.reflection.v1.ServerReflection/", call(reflection)));
        }
        if let Ok(reflection) = builder().build_v1alpha() {
            let reflection = reflection.max_decoding_message_size(MAX_QUERY);
            services.push((
                "/grpc.reflection.v1alpha.ServerReflection/",
                call(reflection),
            ));
        }
        Self(services)
    }

    fn find(&self, path: &str) -> Option<&Call> {
        let mut services = self.0.iter();
        let found = services.find(|(start, _)| path.starts_with(start))?;
        Some(&found.1)
    }
}

fn call<S>(service: S) -> Call
where
    S: Service<
            http::Request<Incoming>,
            Response = http::Response<tonic::body::Body>,
            Error = std::convert::Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    Box::new(move |request| {
        let called = service.clone().call(request);
        Box::pin(async move {
            match called.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    })
}

/// Answers a call.
pub(super) async fn answer(
    grpc: &Grpc,
    request: http::Request<Incoming>,
    timeouts: &Arc<Timeouts>,
) -> http::Response<GrpcBody> {
    let server = &*grpc.server;
    let content_type = request.headers().get(http::header::CONTENT_TYPE);
    let is_grpc =
        content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    if !is_grpc || request.method() != http::Method::POST {
        server.metrics.refused(Protocol::Grpc);
        let mut response = http::Response::new(GrpcBody::empty());
        *response.status_mut() = http::StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    if let Some(call) = grpc.services.find(request.uri().path()) {
        return call(request).await.map(GrpcBody::Tonic);
    }
    let begun = server.clock.now();
    let answered = match ResponseReservation::take(&server.responses, timeouts) {
        Ok(room) => unary(server, request, room, timeouts).await,
        Err(problem) => Err(unary::status(&problem)),
    };
    let response = answered.unwrap_or_else(|status| {
        server.metrics.refused(Protocol::Grpc);
        status.into_http::<NoBody>().map(|NoBody| GrpcBody::empty())
    });
    let nanos = server
        .clock
        .now()
        .as_nanos()
        .saturating_sub(begun.as_nanos());
    let after = Duration::from_nanos(nanos);
    server.metrics.answered(Protocol::Grpc, 1, after);
    response
}

/// Stands for the empty body of an error.
#[derive(Default)]
struct NoBody;

async fn unary(
    server: &Server,
    request: http::Request<Incoming>,
    room: ResponseReservation,
    timeouts: &Arc<Timeouts>,
) -> Result<http::Response<GrpcBody>, Status> {
    let (head, incoming) = request.into_parts();
    // The active configuration stays the same for the whole call.
    let active = server.active();
    let method = UnaryMethod::from_path(head.uri.path(), &active.config).ok_or_else(|| {
        Status::unimplemented("unknown method: reflection lists the existing ones")
    })?;
    if !method.is_public() {
        route::authorize(&active, &head.headers, Scope::Check)
            .await
            .map_err(|problem| unary::status(&problem))?;
    }
    let bounds = &active.config.bounds;
    let (limit, timeout) = (bounds.max_body * method.size(), bounds.body_timeout.0);
    let message = body::read(&mut Some(incoming), limit, timeout, &server.bodies)
        .await
        .map_err(|problem| unary::status(&problem))?;
    let caller = Caller {
        server,
        active: &active,
        headers: &head.headers,
        timeouts,
    };
    let encoded = run(method, caller, &message).await?;
    respond(server, encoded, room, timeouts)
}

/// Decodes the message of a method, runs it and encodes its response. The rare ones are boxed, so
/// that the future of the common one stays small.
async fn run(method: UnaryMethod, caller: Caller<'_>, message: &[u8]) -> Result<Bytes, Status> {
    let decoded = unary::decode;
    Ok(match method {
        UnaryMethod::ShouldRateLimit => {
            unary::encode(&should_rate_limit(caller, decoded(message)?).await?)
        }
        #[cfg(feature = "limitador")]
        UnaryMethod::CheckRateLimit => {
            let answer = kuadrant(caller, decoded(message)?, CheckKind::Check);
            unary::encode(&Box::pin(answer).await?)
        }
        #[cfg(feature = "limitador")]
        UnaryMethod::Report => {
            let answer = kuadrant(caller, decoded(message)?, CheckKind::Report);
            unary::encode(&Box::pin(answer).await?)
        }
        UnaryMethod::GetRateLimits => {
            let answer = gubernator::get_rate_limits(caller, unary::decode(message)?);
            unary::encode(&Box::pin(answer).await?)
        }
        UnaryMethod::HealthCheck => unary::encode(&gubernator::health(caller.server)),
        UnaryMethod::LiveCheck => unary::encode(&LiveCheckResp {}),
    })
}

fn respond(
    server: &Server,
    encoded: Bytes,
    room: ResponseReservation,
    timeouts: &Arc<Timeouts>,
) -> Result<http::Response<GrpcBody>, Status> {
    let response = unary::response(encoded);
    let response = ResponseBody::of(response, Some(room), &server.responses, timeouts)
        .map_err(|problem| unary::status(&problem))?;
    Ok(response.map(|body| GrpcBody::Unary(body.with_trailers(unary::ok_trailers()))))
}

/// The body of a response.
pub(crate) enum GrpcBody {
    Empty,
    Unary(ResponseBody),
    Tonic(tonic::body::Body),
}

impl GrpcBody {
    fn empty() -> Self {
        Self::Empty
    }
}

impl Body for GrpcBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Unary(body) => Pin::new(body)
                .poll_frame(context)
                .map_err(|never| match never {}),
            Self::Tonic(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Unary(body) => body.is_end_stream(),
            Self::Tonic(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Unary(body) => body.size_hint(),
            Self::Tonic(body) => body.size_hint(),
        }
    }
}
