//! The body of a response: the service's own, or that of a denial.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate_core::Store;
use tidegate_http::PendingCharge;

pin_project! {
    /// The body of a response: the service's own, or that of a denial.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B },
        /// Settles when the body ends.
        Settling { #[pin] body: B, pending: Box<dyn SentBytes> },
        Error { #[pin] body: DenialBody },
    }
}

/// The body of a response to a denied request: text, or a body of axum's.
pub struct DenialBody(DenialBodyKind);

enum DenialBodyKind {
    /// `None` once it has been sent.
    Text(Option<Bytes>),
    #[cfg(feature = "axum")]
    Axum(axum::body::Body),
}

impl DenialBody {
    pub(crate) fn text(text: Bytes) -> Self {
        Self(DenialBodyKind::Text(
            Some(text).filter(|text| !text.is_empty()),
        ))
    }

    #[cfg(feature = "axum")]
    pub(crate) fn axum(body: axum::body::Body) -> Self {
        Self(DenialBodyKind::Axum(body))
    }
}

impl http_body::Body for DenialBody {
    type Data = Bytes;
    type Error = BodyFailed;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFailed>>> {
        match &mut self.0 {
            DenialBodyKind::Text(text) => {
                let _ = context;
                Poll::Ready(text.take().map(|text| Ok(Frame::data(text))))
            }
            #[cfg(feature = "axum")]
            DenialBodyKind::Axum(body) => {
                let polled = Pin::new(body).poll_frame(context);
                polled.map(|frame| frame.map(|frame| frame.map_err(|_| BodyFailed)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            DenialBodyKind::Text(text) => text.is_none(),
            #[cfg(feature = "axum")]
            DenialBodyKind::Axum(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            DenialBodyKind::Text(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
            #[cfg(feature = "axum")]
            DenialBodyKind::Axum(body) => body.size_hint(),
        }
    }
}

impl std::fmt::Debug for DenialBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DenialBody").finish_non_exhaustive()
    }
}

/// The error of a body that axum could not produce.
#[derive(Clone, Copy, Debug)]
pub struct BodyFailed;

impl std::fmt::Display for BodyFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the body of the response failed")
    }
}

impl std::error::Error for BodyFailed {}

/// The response to a denied request, from [`Limits::on_denied`](crate::Limits::on_denied).
#[derive(Debug)]
pub struct DenialResponse(pub(crate) http::Response<DenialBody>);

impl From<http::Response<Bytes>> for DenialResponse {
    fn from(response: http::Response<Bytes>) -> Self {
        Self(response.map(DenialBody::text))
    }
}

#[cfg(feature = "axum")]
impl tidegate_http::FromAxum for DenialResponse {
    fn from_axum(response: axum::response::Response) -> Self {
        Self(response.map(DenialBody::axum))
    }
}

/// Counts the bytes that were sent. Dropped when the body ends or the client disconnects.
trait SentBytes: std::fmt::Debug + Send {
    fn add_bytes(&mut self, bytes: usize);
}

impl<S: Store> SentBytes for PendingCharge<S> {
    fn add_bytes(&mut self, bytes: usize) {
        Self::add_bytes(self, bytes);
    }
}

impl<B> ResponseBody<B> {
    /// Wraps the service's own body.
    pub(crate) fn new<S: Store>(body: B, pending: Option<Box<PendingCharge<S>>>) -> Self {
        match pending.filter(|pending| pending.is_pending()) {
            Some(pending) => Self {
                kind: Kind::Settling { body, pending },
            },
            None => Self {
                kind: Kind::Inner { body },
            },
        }
    }

    pub(crate) fn error(body: DenialBody) -> Self {
        Self {
            kind: Kind::Error { body },
        }
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Inner { body } => body.poll_frame(context),
            KindProjection::Settling { body, pending } => {
                let polled = body.poll_frame(context);
                if let Poll::Ready(Some(Ok(frame))) = &polled {
                    pending.add_bytes(frame.data_ref().map_or(0, Bytes::len));
                }
                polled
            }
            // A body that fails ends early: its error is not one of the service's.
            KindProjection::Error { body } => {
                let polled = body.poll_frame(context);
                polled.map(|frame| frame.and_then(Result::ok).map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } | Kind::Settling { body, .. } => body.is_end_stream(),
            Kind::Error { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } | Kind::Settling { body, .. } => body.size_hint(),
            Kind::Error { body } => body.size_hint(),
        }
    }
}
