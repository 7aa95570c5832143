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
        Error { text: ErrorBody },
    }
}

/// The body of a denial or an error, until it is sent.
pub(crate) type ErrorBody = Option<Bytes>;

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

    pub(crate) fn error(text: ErrorBody) -> Self {
        Self {
            kind: Kind::Error { text },
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
            KindProjection::Error { text } => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(text))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } | Kind::Settling { body, .. } => body.is_end_stream(),
            Kind::Error { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } | Kind::Settling { body, .. } => body.size_hint(),
            Kind::Error { text } => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}
