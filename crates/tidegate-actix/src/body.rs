//! The body of an answer, which may settle what it cost.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use bytes::Bytes;
use pin_project_lite::pin_project;
use tidegate_core::Store;
use tidegate_http::Open;

pin_project! {
    /// The body of an answer, which may settle what it cost.
    pub struct Body<B, S: Store> {
        #[pin]
        body: B,
        open: Option<Box<Open<S>>>,
    }
}

impl<B, S: Store> Body<B, S> {
    pub(crate) fn of(body: B, open: Option<Box<Open<S>>>) -> Self {
        Self {
            body,
            open: open.filter(|open| open.is_open()),
        }
    }
}

impl<B: MessageBody, S: Store> MessageBody for Body<B, S> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, B::Error>>> {
        let this = self.project();
        let polled = this.body.poll_next(context);
        if let (Poll::Ready(Some(Ok(bytes))), Some(open)) = (&polled, this.open) {
            open.sent(bytes.len());
        }
        polled
    }

    fn try_into_bytes(mut self) -> Result<Bytes, Self>
    where
        Self: Sized,
    {
        let open = self.open.take();
        match self.body.try_into_bytes() {
            Ok(bytes) => {
                // It is sent whole.
                if let Some(mut open) = open {
                    open.sent(bytes.len());
                }
                Ok(bytes)
            }
            Err(body) => Err(Self { body, open }),
        }
    }
}

impl<B, S: Store> std::fmt::Debug for Body<B, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body")
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}
