//! The body of an answer: the service's own, or a refusal's.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate_core::Store;
use tidegate_http::Open;

pin_project! {
    /// The body of an answer: the service's own, or a refusal's.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B },
        /// What the body's end settles.
        Settling { #[pin] body: B, open: Box<dyn Sent> },
        Refusal { text: Refusal },
    }
}

/// The body of a refusal, until it has been sent.
pub(crate) type Refusal = Option<Bytes>;

/// Whom to tell what has been sent. Dropped when all has, or nobody wants it any more.
trait Sent: std::fmt::Debug + Send {
    fn sent(&mut self, bytes: usize);
}

impl<S: Store> Sent for Open<S> {
    fn sent(&mut self, bytes: usize) {
        Self::sent(self, bytes);
    }
}

impl<B> Body<B> {
    /// The service's own.
    pub(crate) fn of<S: Store>(body: B, open: Option<Box<Open<S>>>) -> Self {
        match open.filter(|open| open.is_open()) {
            Some(open) => Self {
                kind: Kind::Settling { body, open },
            },
            None => Self {
                kind: Kind::Inner { body },
            },
        }
    }

    pub(crate) fn refusal(text: Refusal) -> Self {
        Self {
            kind: Kind::Refusal { text },
        }
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Inner { body } => body.poll_frame(context),
            KindProjection::Settling { body, open } => {
                let polled = body.poll_frame(context);
                if let Poll::Ready(Some(Ok(frame))) = &polled {
                    open.sent(frame.data_ref().map_or(0, Bytes::len));
                }
                polled
            }
            KindProjection::Refusal { text } => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(text))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } | Kind::Settling { body, .. } => body.is_end_stream(),
            Kind::Refusal { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } | Kind::Settling { body, .. } => body.size_hint(),
            Kind::Refusal { text } => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}
