//! The tower service.

use std::mem;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use tidegate_core::{MemoryStore, Store};
use tidegate_http::{Action, Admitted, Lookup};
use tower_service::Service;

use crate::future::ResponseFuture;
use crate::request_kind::RequestKind;
use crate::{Limits, ResponseBody, response};

/// A service with limits. [`RateLimitLayer`](crate::RateLimitLayer) creates it.
#[derive(Debug)]
pub struct RateLimitService<Inner, S: Store = MemoryStore> {
    inner: Inner,
    limits: Limits<S>,
}

impl<Inner, S: Store> RateLimitService<Inner, S> {
    pub(crate) fn new(inner: Inner, limits: Limits<S>) -> Self {
        Self { inner, limits }
    }
}

impl<Inner: Clone, S: Store> Clone for RateLimitService<Inner, S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            limits: self.limits.clone(),
        }
    }
}

impl<Inner, S, RequestBody, InnerBody> Service<Request<RequestBody>> for RateLimitService<Inner, S>
where
    Inner: Service<Request<RequestBody>, Response = Response<InnerBody>> + Clone,
    InnerBody: http_body::Body<Data = Bytes>,
    S: Store,
{
    type Response = Response<ResponseBody<InnerBody>>;
    type Error = Inner::Error;
    type Future = ResponseFuture<Inner, RequestBody, S>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let kind = RequestKind::of(&request);
        let (parts, body) = request.into_parts();
        let result = match self.limits.look_up(&parts) {
            Ok(Lookup::Decided(result)) => result,
            Ok(Lookup::Skipped) => {
                return ResponseFuture::unlimited(
                    self.inner.call(Request::from_parts(parts, body)),
                );
            }
            Ok(Lookup::Undecided(prepared)) => {
                let prepared = prepared.into_owned();
                let (limits, inner) = (self.limits.clone(), self.ready_inner());
                return ResponseFuture::checking(
                    limits,
                    kind,
                    prepared,
                    inner,
                    Request::from_parts(parts, body),
                );
            }
            Err(error) => return ResponseFuture::rejected(response::error(kind, &error)),
        };
        let request = |parts| Request::from_parts(parts, body);
        match self.limits.action(result) {
            Action::Fail(error) => ResponseFuture::rejected(response::error(kind, &error)),
            Action::Deny(verdict, excess) => ResponseFuture::rejected(response::denied(
                &self.limits,
                kind,
                &parts,
                &verdict,
                excess,
            )),
            Action::Proceed(admitted) => {
                let mut request = request(parts);
                insert_charge(&admitted, &mut request);
                ResponseFuture::calling(self.limits.clone(), self.inner.call(request), admitted)
            }
            Action::Delay(delay, admitted) => ResponseFuture::delayed(
                self.limits.clone(),
                delay,
                admitted,
                self.ready_inner(),
                request(parts),
            ),
        }
    }
}

/// Gives the handler the [`Charge`](tidegate_http::Charge) for the actual cost.
pub(crate) fn insert_charge<S: Store, B>(admitted: &Admitted<S>, request: &mut Request<B>) {
    if let Some(charge) = admitted.charge() {
        request.extensions_mut().insert(charge);
    }
}

impl<Inner: Clone, S: Store> RateLimitService<Inner, S> {
    /// Returns the inner service that is ready, and replaces it with a clone.
    fn ready_inner(&mut self) -> Inner {
        let other = self.inner.clone();
        mem::replace(&mut self.inner, other)
    }
}
