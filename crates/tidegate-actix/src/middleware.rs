//! The actix-web middleware.

use std::future::{Ready, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{Service, ServiceRequest, ServiceResponse, Transform};
use actix_web::error::InternalError;
use actix_web::{Error, HttpMessage};
use tidegate_core::{MemoryStore, Policy, Store, Verdict};
use tidegate_http::{Action, Admitted, KeyWithCost, Lookup};

use crate::body::LimitedBody;
use crate::{Actix, Limits, response};

/// Middleware that limits the requests of a service: `App::new().wrap(limit.clone())`.
///
/// Clones share their counters. Create it once, outside the closure that creates the app for each
/// worker.
///
/// # Examples
///
/// ```
/// use actix_web::App;
/// use tidegate::actix::{RateLimit, key};
///
/// // Created once, outside the closure for the workers: clones share their counters.
/// let limit = RateLimit::memory("100/minute".parse()?, key::client_address());
/// let app = App::new().wrap(limit.clone());
/// # let _ = app;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RateLimit<S: Store = MemoryStore> {
    limits: Limits<S>,
}

impl RateLimit<MemoryStore> {
    /// Creates middleware with one policy in memory and one key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::actix::{RateLimit, key};
    ///
    /// let limit = RateLimit::memory("100/minute".parse()?, key::client_address());
    /// # let _ = limit;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn memory(policy: Policy, key: impl Into<KeyWithCost<Actix>>) -> Self {
        Self::new(Limits::memory(policy, key))
    }
}

impl<S: Store> RateLimit<S> {
    /// Creates the middleware.
    ///
    /// # Panics
    ///
    /// Panics if there are no limits, which is a mistake in the program.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::actix::{Limits, RateLimit, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::header("x-user-id")).cors();
    /// let limit = RateLimit::new(limits);
    /// # let _: RateLimit = limit;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

/// A service with limits. [`RateLimit`] creates it.
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
    type Response = ServiceResponse<EitherBody<LimitedBody<B, S>>>;
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
    type Response = ServiceResponse<EitherBody<LimitedBody<B, S>>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>>>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let (inner, limits) = (Rc::clone(&self.inner), self.limits.clone());
        Box::pin(async move {
            let result = match limits.look_up(&request) {
                Ok(Lookup::Decided(result)) => result,
                Ok(Lookup::Undecided(prepared)) => prepared.check(&limits).await,
                Ok(Lookup::Skipped) => {
                    return Ok(inner
                        .call(request)
                        .await?
                        .map_body(|_, body| wrap_body(body, None)));
                }
                Err(error) => {
                    return Ok(request
                        .into_response(response::error(&error))
                        .map_into_right_body());
                }
            };
            let rejected = match limits.action(result) {
                Action::Fail(error) => response::error(&error),
                Action::Deny(verdict, excess) => {
                    response::denied(&limits, &request, &verdict, excess)
                }
                Action::Proceed(admitted) => {
                    return pass_on(&*inner, &limits, request, admitted).await;
                }
                Action::Delay(delay, admitted) => {
                    tokio::time::sleep(delay).await;
                    let admitted = limits.start(admitted);
                    return pass_on(&*inner, &limits, request, admitted).await;
                }
            };
            Ok(request.into_response(rejected).map_into_right_body())
        })
    }
}

/// Passes a request on, adds the headers, and settles as far as the head of the response allows.
async fn pass_on<Inner, B, S>(
    inner: &Inner,
    limits: &Limits<S>,
    request: ServiceRequest,
    admitted: Admitted<S>,
) -> Result<ServiceResponse<EitherBody<LimitedBody<B, S>>>, Error>
where
    Inner: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody + 'static,
    S: Store,
{
    if let Some(charge) = admitted.charge() {
        request.extensions_mut().insert(charge);
    }
    let Admitted {
        verdict,
        mut pending,
    } = admitted;
    let mut response = match inner.call(request).await {
        Ok(response) => response,
        Err(error) => return Err(finish_with_error(error, limits, &verdict, pending)),
    };
    if let Some(pending) = &mut pending {
        limits.settle_by_head(pending, response.response().head());
    }
    response::add_rate_limit_headers(response.headers_mut(), limits, &verdict, None);
    Ok(response.map_body(|_, body| wrap_body(body, pending)))
}

/// Inner middleware may return an error, which is a response too.
fn finish_with_error<S: Store>(
    error: Error,
    limits: &Limits<S>,
    verdict: &Verdict,
    mut pending: Option<Box<tidegate_http::PendingCharge<S>>>,
) -> Error {
    let mut response = error.error_response();
    if let Some(pending) = &mut pending {
        limits.settle_by_head(pending, response.head());
    }
    response::add_rate_limit_headers(response.headers_mut(), limits, verdict, None);
    InternalError::from_response(error, response).into()
}

fn wrap_body<B, S: Store>(
    body: B,
    pending: Option<Box<tidegate_http::PendingCharge<S>>>,
) -> EitherBody<LimitedBody<B, S>> {
    EitherBody::left(LimitedBody::new(body, pending))
}
