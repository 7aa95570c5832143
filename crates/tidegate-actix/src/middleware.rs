//! The middleware.

use std::future::{Ready, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{Service, ServiceRequest, ServiceResponse, Transform};
use actix_web::error::InternalError;
use actix_web::{Error, HttpMessage};
use tidegate_core::{MemoryStore, Policy, Store, Verdict};
use tidegate_http::{About, Admitted, Next};

use crate::body::Body;
use crate::key::Key;
use crate::{Limits, refusal};

/// Puts limits before a service: `App::new().wrap(limit.clone())`. Clones share; make it once, outside of the closure that
/// makes the app for each worker.
#[derive(Debug)]
pub struct RateLimit<S: Store = MemoryStore> {
    limits: Limits<S>,
}

impl RateLimit<MemoryStore> {
    /// One policy, in memory, by one key.
    #[must_use]
    pub fn memory(policy: Policy, key: impl Into<Key>) -> Self {
        Self::new(Limits::memory(policy, key))
    }
}

impl<S: Store> RateLimit<S> {
    /// The middleware of these limits.
    ///
    /// # Panics
    /// If there are none, which would limit nobody: a mistake in the program, found when it starts.
    #[must_use]
    pub fn new(limits: Limits<S>) -> Self {
        assert!(
            !limits.is_empty(),
            "limits without a limit: expected `.limit(policy, key)`"
        );
        Self { limits }
    }
}

impl<S: Store> Clone for RateLimit<S> {
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
        }
    }
}

/// A service with limits before it. Made by a [`RateLimit`].
#[derive(Debug)]
pub struct RateLimitMiddleware<Inner, S: Store = MemoryStore> {
    inner: Rc<Inner>,
    limits: Limits<S>,
}

impl<Inner, B, S> Transform<Inner, ServiceRequest> for RateLimit<S>
where
    Inner: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
    S: Store,
{
    type Response = ServiceResponse<EitherBody<Body<B, S>>>;
    type Error = Error;
    type Transform = RateLimitMiddleware<Inner, S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, inner: Inner) -> Self::Future {
        ready(Ok(RateLimitMiddleware {
            inner: Rc::new(inner),
            limits: self.limits.clone(),
        }))
    }
}

impl<Inner, B, S> Service<ServiceRequest> for RateLimitMiddleware<Inner, S>
where
    Inner: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
    S: Store,
{
    type Response = ServiceResponse<EitherBody<Body<B, S>>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>>>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let (inner, limits) = (Rc::clone(&self.inner), self.limits.clone());
        Box::pin(async move {
            let answer = match limits.ask_about(&request) {
                Ok(About::Answered(answer)) => answer,
                Ok(About::ToAsk(prepared)) => prepared.ask(&limits).await,
                Ok(About::Nothing) => {
                    return Ok(inner
                        .call(request)
                        .await?
                        .map_body(|_, body| whole(body, None)));
                }
                Err(error) => {
                    return Ok(request
                        .into_response(refusal::error(&error))
                        .map_into_right_body());
                }
            };
            let refused = match limits.next(answer) {
                Next::Fail(error) => refusal::error(&error),
                Next::Deny(verdict, excess) => refusal::denied(&limits, &verdict, excess),
                Next::Go(admitted) => return pass_on(&*inner, &limits, request, admitted).await,
                Next::Wait(delay, admitted) => {
                    tokio::time::sleep(delay).await;
                    let admitted = limits.going(admitted);
                    return pass_on(&*inner, &limits, request, admitted).await;
                }
            };
            Ok(request.into_response(refused).map_into_right_body())
        })
    }
}

/// Passes a request on, tells its client what is left, and settles as far as the head of the answer says.
async fn pass_on<Inner, B, S>(
    inner: &Inner,
    limits: &Limits<S>,
    request: ServiceRequest,
    admitted: Admitted<S>,
) -> Result<ServiceResponse<EitherBody<Body<B, S>>>, Error>
where
    Inner: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody + 'static,
    S: Store,
{
    if let Some(charge) = admitted.charge() {
        request.extensions_mut().insert(charge);
    }
    let Admitted { verdict, mut open } = admitted;
    let mut response = match inner.call(request).await {
        Ok(response) => response,
        Err(error) => return Err(answered_with_error(error, limits, &verdict, open)),
    };
    if let Some(open) = &mut open {
        limits.answered(open, response.response().head());
    }
    refusal::add_fields(response.headers_mut(), limits, &verdict, None);
    Ok(response.map_body(|_, body| whole(body, open)))
}

/// Middleware within may answer with an error: that is an answer, too.
fn answered_with_error<S: Store>(
    error: Error,
    limits: &Limits<S>,
    verdict: &Verdict,
    mut open: Option<Box<tidegate_http::Open<S>>>,
) -> Error {
    let mut response = error.error_response();
    if let Some(open) = &mut open {
        limits.answered(open, response.head());
    }
    refusal::add_fields(response.headers_mut(), limits, verdict, None);
    InternalError::from_response(error, response).into()
}

fn whole<B, S: Store>(
    body: B,
    open: Option<Box<tidegate_http::Open<S>>>,
) -> EitherBody<Body<B, S>> {
    EitherBody::left(Body::of(body, open))
}
