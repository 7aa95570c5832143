//! HTTP: parse, ask the gate, render.
//!
//! `route` selects the operation, `request` parses it, `checks` runs it, `response` renders it.

pub(crate) mod body;
mod checks;
pub(crate) mod dashboard;
mod forward_auth;
#[cfg(feature = "limitador")]
mod limitador;
mod origin;
mod parse_error;
mod peers;
pub(crate) mod problem;
mod rate_limit_json;
mod receipt;
mod request;
mod response;
pub(crate) mod response_body;
pub(crate) mod route;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio_util::sync::CancellationToken;

use self::dashboard::{EventStream, EventsBody};
use self::parse_error::ExplainedStream;
use self::response_body::{ResponseBody, ResponseReservation};
use crate::metrics::Protocol;
use crate::net::{
    Connections, Drain, PanicCounter, ProtocolHandler, Stream, TimedConnection, TimeoutSettings,
    Timeouts,
};
use crate::server::{MAX_ADMIN_CONNECTIONS, Server};

type Request = http::Request<Incoming>;
type Response = http::Response<Full<Bytes>>;

/// The maximum size of a request's head.
pub(crate) const MAX_HEAD: usize = 32 * 1024;
/// The maximum number of headers of a request.
const MAX_FIELDS: usize = 128;
/// The maximum number of streams that a client may reset early before the connection is closed.
pub(crate) const MAX_RESETS: usize = 64;

/// The HTTP protocol, for the check listener or the admin listener.
#[derive(Clone)]
pub(crate) struct Http {
    pub(crate) server: Arc<Server>,
    pub(crate) is_admin: bool,
}

impl Http {
    fn protocol(&self) -> Protocol {
        if self.is_admin {
            Protocol::Admin
        } else {
            Protocol::Http
        }
    }

    async fn answer(
        &self,
        request: Request,
        timeouts: &Arc<Timeouts>,
    ) -> http::Response<ResponseBody> {
        let begun = self.server.clock.now();
        let is_http1 = request.version() < http::Version::HTTP_2;
        let is_head = request.method() == http::Method::HEAD;
        if is_http1 {
            timeouts.begin();
        } else {
            timeouts.begin_http2();
        }
        #[cfg(feature = "otel")]
        let span = crate::trace::request(self.protocol(), request.uri().path(), request.headers());
        let responses = if self.is_admin {
            &self.server.admin_responses
        } else {
            &self.server.responses
        };
        let room = if is_http1 {
            Ok(None)
        } else {
            ResponseReservation::take(responses, timeouts).map(Some)
        };
        let (room, refusal) = match room {
            Ok(room) => (room, None),
            Err(problem) => (None, Some(problem)),
        };
        let answered = async {
            match refusal {
                Some(problem) => Err(problem),
                // Boxed: a stream whose response is not read keeps the size of this future.
                None => Box::pin(route::answer(self, request, timeouts)).await,
            }
        };
        #[cfg(feature = "otel")]
        let answered = tracing::Instrument::instrument(answered, span.clone());
        let mut response = match answered.await {
            Ok(response) => response,
            Err(problem) => {
                self.server.metrics.refused(self.protocol());
                problem.response()
            }
        };
        #[cfg(feature = "otel")]
        span.record("http.response.status_code", response.status().as_u16());
        // The client connects again elsewhere, and no request in flight is lost.
        if is_http1 && self.server.is_draining() {
            response.headers_mut().insert(
                http::header::CONNECTION,
                http::HeaderValue::from_static("close"),
            );
        }
        let after = Duration::from_nanos(
            self.server
                .clock
                .now()
                .as_nanos()
                .saturating_sub(begun.as_nanos()),
        );
        self.server.metrics.answered(self.protocol(), 1, after);
        if response.extensions().get::<EventsBody>().is_some() && !is_head {
            let events = EventStream::open(&self.server, timeouts);
            return ResponseBody::streaming(response, events);
        }
        timeouts.end();
        // Over HTTP/1.1 hyper omits the body of a HEAD itself, and keeps its length.
        if is_head && !is_http1 {
            *response.body_mut() = Full::default();
        }
        ResponseBody::of(response, room, responses, timeouts).unwrap_or_else(|problem| {
            self.server.metrics.refused(self.protocol());
            ResponseBody::uncounted(problem.response())
        })
    }
}

impl ProtocolHandler for Http {
    fn tls(&self, server: &Server) -> Option<Arc<ServerConfig>> {
        let active = server.active();
        if self.is_admin {
            active.secrets.admin_tls.clone()
        } else {
            active.secrets.http_tls.clone()
        }
    }

    fn times(&self, server: &Server) -> TimeoutSettings {
        let bounds = &server.active().config.bounds;
        TimeoutSettings {
            head: bounds.head_timeout.0,
            idle: bounds.idle_timeout.0,
            write: bounds.write_timeout.0,
            linger: bounds.linger(),
            may_be_http2: true,
            max_age: None,
        }
    }

    fn connections<'s>(&self, server: &'s Server) -> &'s Arc<Connections> {
        // A flood of one listener does not lock operators out of the other.
        if self.is_admin {
            &server.admin_connections
        } else {
            &server.connections
        }
    }

    fn max_connections(&self, server: &Server) -> usize {
        // Reserved, so that operators are not locked out by clients that use all file descriptors.
        if self.is_admin {
            MAX_ADMIN_CONNECTIONS
        } else {
            server.max_connections
        }
    }

    fn refusal(&self) -> &'static [u8] {
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: 107\r\nconnection: \
          close\r\n\r\n{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\"detail\":\"too many connections \
          at a time\"}"
    }

    async fn serve(&self, stream: Stream, ending: CancellationToken) {
        let timeouts = Arc::clone(stream.timeouts());
        let service = {
            let (http, timeouts) = (self.clone(), Arc::clone(&timeouts));
            service_fn(move |request| {
                let (http, timeouts) = (http.clone(), Arc::clone(&timeouts));
                async move { Ok::<_, Infallible>(http.answer(request, &timeouts).await) }
            })
        };
        let mut builder = auto::Builder::new(StreamExecutor(Arc::clone(&self.server)));
        let idle = self.server.active().config.bounds.idle_timeout.0;
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_FIELDS)
            // A small head and body are written faster from one buffer.
            .writev(false);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.server.active().config.bounds.max_streams)
            .max_local_error_reset_streams(MAX_RESETS)
            .max_pending_accept_reset_streams(MAX_RESETS)
            .max_header_list_size(MAX_HEAD as u32)
            .keep_alive_interval(Some(idle / 2))
            .keep_alive_timeout(Duration::from_secs(10));
        let connection = builder.serve_connection(
            TokioIo::new(ExplainedStream::new(stream, self.clone())),
            service,
        );
        TimedConnection::new(
            HttpConnection {
                connection: Box::pin(connection),
            },
            timeouts,
            ending.cancelled_owned(),
        )
        .await;
    }
}

/// Runs HTTP/2 streams as tasks.
///
/// A stream that takes longer than its request and response may is reset. Otherwise a client that
/// keeps its window closed would hold the response for as long as it likes.
#[derive(Clone)]
struct StreamExecutor(Arc<Server>);

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let counted = PanicCounter::new(&self.0);
        let bounds = &self.0.active().config.bounds;
        let deadline = bounds
            .body_timeout
            .0
            .saturating_mul(2)
            .saturating_add(bounds.write_timeout.0);
        tokio::spawn(async move {
            let _counted = counted;
            let _ = tokio::time::timeout(deadline, stream).await;
        });
    }
}

/// A hyper connection.
pub(crate) struct HttpConnection<C> {
    pub(crate) connection: Pin<Box<C>>,
}

impl<C: GracefulShutdown> Future for HttpConnection<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // An error is the client's: it has disconnected, or speaks another protocol.
        self.connection.as_mut().poll(context).map(drop)
    }
}

impl<C: GracefulShutdown> Drain for HttpConnection<C> {
    fn drain(&mut self) {
        self.connection.as_mut().end();
    }
}

/// The interface of hyper's connections, without their long types.
pub(crate) trait GracefulShutdown: Future {
    fn end(self: Pin<&mut Self>);
}

impl<'a, I, S, E> GracefulShutdown for auto::Connection<'a, I, S, E>
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
