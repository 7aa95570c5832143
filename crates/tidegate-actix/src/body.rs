//! The body of a response, which settles the request when it ends.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use bytes::Bytes;
use pin_project_lite::pin_project;
use tidegate_core::Store;
use tidegate_http::PendingCharge;

pin_project! {
    /// The body of a response, which settles the request when it ends.
    pub struct LimitedBody<B, S: Store> {
        #[pin]
        body: B,
        pending: Option<Box<PendingCharge<S>>>,
    }
}

impl<B, S: Store> LimitedBody<B, S> {
    pub(crate) fn new(body: B, pending: Option<Box<PendingCharge<S>>>) -> Self {
        Self {
            body,
            pending: pending.filter(|pending| pending.is_pending()),
        }
    }
}

impl<B: MessageBody, S: Store> MessageBody for LimitedBody<B, S> {
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
        if let (Poll::Ready(Some(Ok(bytes))), Some(pending)) = (&polled, this.pending) {
            pending.add_bytes(bytes.len());
        }
        polled
    }

    fn try_into_bytes(mut self) -> Result<Bytes, Self>
    where
        Self: Sized,
    {
        let pending = self.pending.take();
        match self.body.try_into_bytes() {
            Ok(bytes) => {
                // It is sent as a whole.
                if let Some(mut pending) = pending {
                    pending.add_bytes(bytes.len());
                }
                Ok(bytes)
            }
            Err(body) => Err(Self { body, pending }),
        }
    }
}

impl<B, S: Store> std::fmt::Debug for LimitedBody<B, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LimitedBody")
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}
