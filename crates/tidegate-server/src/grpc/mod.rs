//! gRPC: parse, decide, render. Envoy's rate limit service, health and reflection.
//!
//! `route` selects the method, `unary` reads and writes messages, `rate_limit` decides, `response`
//! renders. Unary calls run on the same bounds as HTTP requests; the streaming services, health and
//! reflection, are tonic's.

mod health;
#[cfg(feature = "limitador")]
mod limitador;
mod rate_limit;
mod response;
mod route;
mod unary;
mod yielding;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tidegate_core::Store;
use tokio_util::sync::CancellationToken;

pub(crate) use self::rate_limit::{Caller, should_rate_limit};
pub(crate) use self::route::{GrpcBody, Services};
use self::yielding::YieldingConnection;
use crate::http::{GracefulShutdown, HttpConnection, MAX_HEAD, MAX_RESETS};
use crate::net::{
    Connections, PanicCounter, ProtocolHandler, Stream, TimedConnection, TimeoutSettings, Timeouts,
};
use crate::server::Server;

/// The gRPC protocol.
#[derive(Clone)]
pub(crate) struct Grpc {
    pub(crate) server: Arc<Server>,
    pub(crate) services: Arc<Services>,
}

impl Grpc {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        Self {
            server: Arc::clone(server),
            services: Arc::new(Services::new(server)),
        }
    }

    async fn answer(
        &self,
        request: http::Request<Incoming>,
        timeouts: &Arc<Timeouts>,
    ) -> http::Response<GrpcBody> {
        timeouts.begin_http2();
        let response = route::answer(self, request, timeouts).await;
        timeouts.end();
        response
    }
}

impl ProtocolHandler for Grpc {
    fn tls(&self, server: &Server) -> Option<Arc<ServerConfig>> {
        server.active().secrets.grpc_tls.clone()
    }

    fn times(&self, server: &Server) -> TimeoutSettings {
        let config = &server.active().config;
        let bounds = &config.bounds;
        TimeoutSettings {
            head: bounds.head_timeout.0,
            idle: config.grpc.idle_timeout.0,
            write: bounds.write_timeout.0,
            linger: bounds.linger(),
            may_be_http2: true,
            max_age: config.grpc.max_connection_age.map(|age| age.0),
        }
    }

    fn connections<'s>(&self, server: &'s Server) -> &'s Arc<Connections> {
        &server.connections
    }

    fn refusal(&self) -> &'static [u8] {
        // A client that speaks HTTP/2 tries again, or elsewhere, when the connection closes.
        b""
    }

    async fn serve(&self, stream: Stream, ending: CancellationToken) {
        let timeouts = Arc::clone(stream.timeouts());
        let service = {
            let (grpc, timeouts) = (self.clone(), Arc::clone(&timeouts));
            service_fn(move |request| {
                let (grpc, timeouts) = (grpc.clone(), Arc::clone(&timeouts));
                // Boxed here, where it is smallest: hyper moves the future several times.
                Box::pin(async move { Ok::<_, Infallible>(grpc.answer(request, &timeouts).await) })
            })
        };
        let active = self.server.active();
        let executor = CallExecutor(Arc::clone(&self.server));
        let mut builder = hyper::server::conn::http2::Builder::new(executor);
        builder
            .timer(TokioTimer::new())
            .auto_date_header(false)
            .max_concurrent_streams(active.config.bounds.max_streams)
            .max_local_error_reset_streams(MAX_RESETS)
            .max_pending_accept_reset_streams(MAX_RESETS)
            .max_header_list_size(MAX_HEAD as u32)
            .keep_alive_interval(Some(active.config.grpc.idle_timeout.0 / 2))
            .keep_alive_timeout(Duration::from_secs(10));
        let is_remote = active.gate.store().is_remote();
        drop(active);
        let connection = HttpConnection {
            connection: Box::pin(builder.serve_connection(TokioIo::new(stream), service)),
        };
        let ending = ending.cancelled_owned();
        if is_remote {
            let connection = YieldingConnection::new(connection);
            TimedConnection::new(connection, timeouts, ending).await;
        } else {
            TimedConnection::new(connection, timeouts, ending).await;
        }
    }
}

/// Runs calls as tasks, without a deadline: a watch of the health lasts. Bodies have a deadline of
/// their own, and unread responses end the connection.
#[derive(Clone)]
struct CallExecutor(Arc<Server>);

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for CallExecutor {
    fn execute(&self, call: F) {
        let counted = PanicCounter::new(&self.0);
        tokio::spawn(async move {
            let _counted = counted;
            drop(call.await);
        });
    }
}

impl<I, S, E> GracefulShutdown for hyper::server::conn::http2::Connection<I, S, E>
where
    Self: Future,
    S: hyper::service::HttpService<Incoming, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    S::ResBody: http_body::Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>> + 'static,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, S::ResBody>,
{
    fn end(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}
