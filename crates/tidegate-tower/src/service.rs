//! The service.

use std::mem;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use tidegate_core::{MemoryStore, Store};
use tidegate_http::{About, Admitted, Next};
use tower_service::Service;

use crate::future::ResponseFuture;
use crate::kind::RequestKind;
use crate::{Body, Limits, refusal};

/// A service with limits before it. Made by a [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Debug)]
pub struct RateLimit<Inner, S: Store = MemoryStore> {
    inner: Inner,
    limits: Limits<S>,
}

impl<Inner, S: Store> RateLimit<Inner, S> {
    pub(crate) fn new(inner: Inner, limits: Limits<S>) -> Self {
        Self { inner, limits }
    }
}

impl<Inner: Clone, S: Store> Clone for RateLimit<Inner, S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            limits: self.limits.clone(),
        }
    }
}

impl<Inner, S, RequestBody, InnerBody> Service<Request<RequestBody>> for RateLimit<Inner, S>
where
    Inner: Service<Request<RequestBody>, Response = Response<InnerBody>> + Clone,
    InnerBody: http_body::Body<Data = Bytes>,
    S: Store,
{
    type Response = Response<Body<InnerBody>>;
    type Error = Inner::Error;
    type Future = ResponseFuture<Inner, RequestBody, S>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let kind = RequestKind::of(&request);
        let (parts, body) = request.into_parts();
        let answer = match self.limits.ask_about(&parts) {
            Ok(About::Answered(answer)) => answer,
            Ok(About::Nothing) => {
                return ResponseFuture::unlimited(
                    self.inner.call(Request::from_parts(parts, body)),
                );
            }
            Ok(About::ToAsk(prepared)) => {
                let prepared = prepared.into_owned();
                let (limits, inner) = (self.limits.clone(), self.ready_inner());
                return ResponseFuture::asking(
                    limits,
                    kind,
                    prepared,
                    inner,
                    Request::from_parts(parts, body),
                );
            }
            Err(error) => return ResponseFuture::refused(refusal::error(kind, &error)),
        };
        let mut request = Request::from_parts(parts, body);
        match self.limits.next(answer) {
            Next::Fail(error) => ResponseFuture::refused(refusal::error(kind, &error)),
            Next::Deny(verdict, excess) => {
                ResponseFuture::refused(refusal::denied(&self.limits, kind, &verdict, excess))
            }
            Next::Go(admitted) => {
                hand_over(&admitted, &mut request);
                ResponseFuture::calling(self.limits.clone(), self.inner.call(request), admitted)
            }
            Next::Wait(delay, admitted) => ResponseFuture::waiting(
                self.limits.clone(),
                delay,
                admitted,
                self.ready_inner(),
                request,
            ),
        }
    }
}

/// Gives the handler what it is to tell the cost by.
pub(crate) fn hand_over<S: Store, B>(admitted: &Admitted<S>, request: &mut Request<B>) {
    if let Some(charge) = admitted.charge() {
        request.extensions_mut().insert(charge);
    }
}

impl<Inner: Clone, S: Store> RateLimit<Inner, S> {
    /// The inner service that was made ready; another takes its place.
    fn ready_inner(&mut self) -> Inner {
        let other = self.inner.clone();
        mem::replace(&mut self.inner, other)
    }
}
