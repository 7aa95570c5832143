//! The dashboard: its files, its data as JSON (`/v1/top`), and a stream of events.
//!
//! The files are public; they contain no data. The data needs the scope `admin`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use tokio::time::{Interval, MissedTickBehavior};

use super::Response;
use super::problem::Problem;
use super::response_body::StaticBody;
use crate::net::Timeouts;
use crate::server::Server;

/// The maximum number of streams at a time.
const MAX_STREAMS: usize = 16;
/// The interval of events.
const EVERY: Duration = Duration::from_secs(1);

/// Nothing but the files and the data of this listener.
const SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                        connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
                        form-action 'none'; frame-ancestors 'none'";

/// A file of the dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asset {
    Page,
    Script,
    Style,
    PlotScript,
    PlotStyle,
    Icon,
}

impl Asset {
    pub(super) fn from_path(path: &str) -> Option<Self> {
        Some(match path {
            "/" => Self::Page,
            "/dashboard.js" => Self::Script,
            "/dashboard.css" => Self::Style,
            "/uplot.js" => Self::PlotScript,
            "/uplot.css" => Self::PlotStyle,
            "/favicon.ico" | "/favicon.svg" => Self::Icon,
            _ => return None,
        })
    }

    const fn content(self) -> (&'static str, &'static str) {
        const SCRIPT: &str = "text/javascript; charset=utf-8";
        const STYLE: &str = "text/css; charset=utf-8";
        match self {
            Self::Page => (
                include_str!("../dashboard/index.html"),
                "text/html; charset=utf-8",
            ),
            Self::Script => (include_str!("../dashboard/dashboard.js"), SCRIPT),
            Self::Style => (include_str!("../dashboard/dashboard.css"), STYLE),
            Self::PlotScript => (include_str!("../dashboard/uPlot.iife.min.js"), SCRIPT),
            Self::PlotStyle => (include_str!("../dashboard/uPlot.min.css"), STYLE),
            Self::Icon => (include_str!("../dashboard/favicon.svg"), "image/svg+xml"),
        }
    }

    pub(super) fn response(self) -> Response {
        let (text, content_type) = self.content();
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(SECURITY));
        let nosniff = HeaderValue::from_static("nosniff");
        headers.insert(http::header::X_CONTENT_TYPE_OPTIONS, nosniff);
        let no_referrer = HeaderValue::from_static("no-referrer");
        headers.insert(http::header::REFERRER_POLICY, no_referrer);
        response.extensions_mut().insert(StaticBody);
        response
    }
}

/// `GET /v1/top`.
pub(super) fn top(server: &Server) -> Response {
    super::response::json(&*server.activity.latest())
}

/// Marks a response whose body is a stream of events.
#[derive(Clone, Copy)]
pub(super) struct EventsBody;

/// `GET /v1/events`: a summary every second, as server-sent events.
pub(super) fn events(server: &Server) -> Result<Response, Problem> {
    if server.event_streams.load(Ordering::Relaxed) >= MAX_STREAMS {
        let detail = format!("{MAX_STREAMS} dashboards are open: expected fewer at a time");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    }
    let mut response = Response::default();
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_static("text/event-stream");
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A proxy must not wait for the end.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response.extensions_mut().insert(EventsBody);
    Ok(response)
}

/// A stream of events. It ends when the server drains.
pub(crate) struct EventStream {
    server: Arc<Server>,
    interval: Interval,
    has_sent: bool,
    _open: OpenStream,
}

/// Counts an open stream, and ends its request when it is dropped.
struct OpenStream {
    streams: Arc<AtomicUsize>,
    timeouts: Arc<Timeouts>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
        self.timeouts.end();
    }
}

impl EventStream {
    pub(super) fn open(server: &Arc<Server>, timeouts: &Arc<Timeouts>) -> Self {
        server.event_streams.fetch_add(1, Ordering::Relaxed);
        let mut interval = tokio::time::interval(EVERY);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            server: Arc::clone(server),
            interval,
            has_sent: false,
            _open: OpenStream {
                streams: Arc::clone(&server.event_streams),
                timeouts: Arc::clone(timeouts),
            },
        }
    }

    /// Returns the next event, or `None` at the end.
    pub(crate) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.server.is_draining() {
            return Poll::Ready(None);
        }
        std::task::ready!(Pin::new(&mut self.interval).poll_tick(context));
        let latest = self.server.activity.latest();
        // A page keeps the history itself.
        let json = match std::mem::replace(&mut self.has_sent, true) {
            false => serde_json::to_string(&*latest),
            true => serde_json::to_string(&latest.without_history()),
        };
        let event = format!("data: {}\n\n", json.unwrap_or_default());
        Poll::Ready(Some(event.into()))
    }
}
