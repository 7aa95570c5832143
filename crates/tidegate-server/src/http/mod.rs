//! HTTP: parse, ask the gate, render.

mod answer;
mod body;
mod checks;
mod last_words;
mod origin;
mod pending;
mod problem;
mod receipt;
mod request;
mod route;

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

use self::last_words::LastWords;
use self::pending::{Pending, Room};
use crate::metrics::Spoken;
use crate::net::{Connections, Counted, Drains, Guarded, Protocol, Stream, Times, Watch};
use crate::server::{MOST_ADMIN_CONNECTIONS, Server};

type Request = http::Request<Incoming>;
type Response = http::Response<Full<Bytes>>;

/// The largest head of a request.
const MAX_HEAD: usize = 32 * 1024;
/// The most header fields of a request.
const MAX_FIELDS: usize = 64;
/// Streams that a client may have reset without our having noticed before the connection is ended.
const MAX_RESETS: usize = 64;

/// HTTP, for those who are limited or for those who operate.
#[derive(Clone)]
pub(crate) struct Http {
    pub(crate) server: Arc<Server>,
    pub(crate) is_admin: bool,
}

impl Http {
    fn spoken(&self) -> Spoken {
        if self.is_admin {
            Spoken::Admin
        } else {
            Spoken::Http
        }
    }

    async fn answer(&self, request: Request, watch: &Arc<Watch>) -> http::Response<Pending> {
        let begun = self.server.clock.now();
        let is_http1 = request.version() < http::Version::HTTP_2;
        let is_head = request.method() == http::Method::HEAD;
        if is_http1 {
            watch.begin();
        } else {
            watch.begin_one_of_many();
        }
        #[cfg(feature = "otel")]
        let span = crate::trace::request(self.spoken(), request.uri().path(), request.headers());
        let responses = if self.is_admin {
            &self.server.admin_responses
        } else {
            &self.server.responses
        };
        let room = if is_http1 {
            Ok(None)
        } else {
            Room::take(responses, watch).map(Some)
        };
        let (room, refusal) = match room {
            Ok(room) => (room, None),
            Err(problem) => (None, Some(problem)),
        };
        let answered = async {
            match refusal {
                Some(problem) => Err(problem),
                None => route::answer(self, request, watch).await,
            }
        };
        #[cfg(feature = "otel")]
        let answered = tracing::Instrument::instrument(answered, span.clone());
        let mut response = match answered.await {
            Ok(response) => response,
            Err(problem) => {
                self.server.metrics.refused(self.spoken());
                problem.response()
            }
        };
        #[cfg(feature = "otel")]
        span.record("http.response.status_code", response.status().as_u16());
        // Who is told so asks elsewhere, and nothing that is on its way is lost.
        if is_http1 && self.server.is_ending() {
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
        self.server.metrics.answered(self.spoken(), 1, after);
        watch.end();
        // Over HTTP/1.1 hyper leaves the body of a HEAD out by itself, and tells its length.
        if is_head && !is_http1 {
            *response.body_mut() = Full::default();
        }
        Pending::of(response, room, responses, watch).unwrap_or_else(|problem| {
            self.server.metrics.refused(self.spoken());
            Pending::uncounted(problem.response())
        })
    }
}

impl Protocol for Http {
    fn tls(&self, server: &Server) -> Option<Arc<ServerConfig>> {
        let live = server.live();
        if self.is_admin {
            live.secrets.admin_tls.clone()
        } else {
            live.secrets.http_tls.clone()
        }
    }

    fn times(&self, server: &Server) -> Times {
        let bounds = &server.live().config.bounds;
        Times {
            head: bounds.head_timeout.0,
            idle: bounds.idle_timeout.0,
            write: bounds.write_timeout.0,
            linger: bounds.linger(),
            may_be_http2: true,
        }
    }

    fn connections<'s>(&self, server: &'s Server) -> &'s Arc<Connections> {
        // Whoever floods the one does not lock operators out of the other.
        if self.is_admin {
            &server.admin_connections
        } else {
            &server.connections
        }
    }

    fn most_connections(&self, server: &Server) -> usize {
        // Without them operators would be locked out by a few clients that have all file descriptors.
        if self.is_admin {
            MOST_ADMIN_CONNECTIONS
        } else {
            server.most_connections
        }
    }

    fn refusal(&self) -> &'static [u8] {
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: 107\r\nconnection: \
          close\r\n\r\n{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\"detail\":\"too many connections \
          at a time\"}"
    }

    async fn serve(&self, stream: Stream, ending: CancellationToken) {
        let watch = Arc::clone(stream.watch());
        let service = {
            let (http, watch) = (self.clone(), Arc::clone(&watch));
            service_fn(move |request| {
                let (http, watch) = (http.clone(), Arc::clone(&watch));
                async move { Ok::<_, Infallible>(http.answer(request, &watch).await) }
            })
        };
        let mut builder = auto::Builder::new(Streams(Arc::clone(&self.server)));
        let idle = self.server.live().config.bounds.idle_timeout.0;
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_FIELDS);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.server.live().config.bounds.max_streams)
            .max_local_error_reset_streams(MAX_RESETS)
            .max_pending_accept_reset_streams(MAX_RESETS)
            .max_header_list_size(MAX_HEAD as u32)
            .keep_alive_interval(Some(idle / 2))
            .keep_alive_timeout(Duration::from_secs(10));
        let connection =
            builder.serve_connection(TokioIo::new(LastWords::new(stream, self.clone())), service);
        Guarded::new(
            Connection {
                connection: Box::pin(connection),
            },
            watch,
            ending.cancelled_owned(),
        )
        .await;
    }
}

/// Runs the streams of HTTP/2, each as a task of its own.
///
/// A stream that takes longer than its request and response may is reset. A client that keeps its window closed would
/// otherwise keep the response for as long as it likes.
#[derive(Clone)]
struct Streams(Arc<Server>);

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let counted = Counted::new(&self.0);
        let bounds = &self.0.live().config.bounds;
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

/// A connection of hyper's.
struct Connection<C> {
    connection: Pin<Box<C>>,
}

impl<C: Graceful> Future for Connection<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // What went wrong on the way is the client's: it has gone, or speaks something else.
        self.connection.as_mut().poll(context).map(drop)
    }
}

impl<C: Graceful> Drains for Connection<C> {
    fn drain(&mut self) {
        self.connection.as_mut().end();
    }
}

/// What hyper's connections can do, without their long names.
trait Graceful: Future {
    fn end(self: Pin<&mut Self>);
}

impl<'a, I, S, E> Graceful for auto::Connection<'a, I, S, E>
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
