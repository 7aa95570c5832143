//! The future of a response.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tidegate_core::{MemoryStore, Store};
use tidegate_http::{Action, Admitted, CheckResult, PreparedCheck};
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use crate::Limits;
use crate::body::{DenialBody, ResponseBody};
use crate::request_kind::RequestKind;
use crate::response::{self, add_rate_limit_headers};
use crate::service::insert_charge;

pin_project! {
    /// The future of a response. If it is dropped before it completes, it gives back the cost of
    /// the request where outcomes are charged.
    pub struct ResponseFuture<Inner, RequestBody, S = MemoryStore>
    where
        Inner: Service<Request<RequestBody>>,
        S: Store,
    {
        #[pin]
        state: FutureState<Inner, RequestBody, S>,
    }
}

pin_project! {
    #[project = FutureStateProjection]
    enum FutureState<Inner, RequestBody, S>
    where
        Inner: Service<Request<RequestBody>>,
        S: Store,
    {
        // Rare states are boxed: the future is moved, and the common state stays small.
        Rejected { response: Option<Box<Response<DenialBody>>> },
        Checking { kind: RequestKind, result: CheckFuture<S>, call: Box<PendingCall<Inner, RequestBody, S>> },
        Delayed { sleep: Pin<Box<Sleep>>, admitted: Option<Admitted<S>>, call: Box<PendingCall<Inner, RequestBody, S>> },
        Calling { #[pin] future: Inner::Future, limits: Option<Limits<S>>, admitted: Option<Admitted<S>> },
    }
}

type CheckFuture<S> = Pin<Box<dyn Future<Output = CheckResult<S>> + Send>>;

/// A request to pass on.
struct PendingCall<Inner, RequestBody, S: Store> {
    limits: Limits<S>,
    /// `None` once it has been passed on.
    call: Option<(Inner, Request<RequestBody>)>,
}

impl<Inner, RequestBody, S> ResponseFuture<Inner, RequestBody, S>
where
    Inner: Service<Request<RequestBody>>,
    S: Store,
{
    pub(crate) fn rejected(response: Response<DenialBody>) -> Self {
        Self {
            state: FutureState::Rejected {
                response: Some(Box::new(response)),
            },
        }
    }

    pub(crate) fn unlimited(future: Inner::Future) -> Self {
        Self {
            state: FutureState::Calling {
                future,
                limits: None,
                admitted: None,
            },
        }
    }

    pub(crate) fn calling(limits: Limits<S>, future: Inner::Future, admitted: Admitted<S>) -> Self {
        Self {
            state: FutureState::Calling {
                future,
                limits: Some(limits),
                admitted: Some(admitted),
            },
        }
    }

    pub(crate) fn checking(
        limits: Limits<S>,
        kind: RequestKind,
        prepared: PreparedCheck<'static>,
        inner: Inner,
        request: Request<RequestBody>,
    ) -> Self {
        let asked = limits.clone();
        let result = Box::pin(async move { prepared.check(&asked).await });
        Self {
            state: FutureState::Checking {
                kind,
                result,
                call: Box::new(PendingCall {
                    limits,
                    call: Some((inner, request)),
                }),
            },
        }
    }

    pub(crate) fn delayed(
        limits: Limits<S>,
        delay: Duration,
        admitted: Admitted<S>,
        inner: Inner,
        request: Request<RequestBody>,
    ) -> Self {
        Self {
            state: FutureState::delayed(
                delay,
                admitted,
                PendingCall {
                    limits,
                    call: Some((inner, request)),
                },
            ),
        }
    }
}

impl<Inner, RequestBody, S> FutureState<Inner, RequestBody, S>
where
    Inner: Service<Request<RequestBody>>,
    S: Store,
{
    fn delayed(
        delay: Duration,
        admitted: Admitted<S>,
        call: PendingCall<Inner, RequestBody, S>,
    ) -> Self {
        Self::Delayed {
            sleep: Box::pin(sleep(delay)),
            admitted: Some(admitted),
            call: Box::new(call),
        }
    }
}

impl<Inner, RequestBody, S> PendingCall<Inner, RequestBody, S>
where
    Inner: Service<Request<RequestBody>>,
    S: Store,
{
    /// Passes the request on. Returns `None` if that has been done.
    fn start(&mut self, admitted: Admitted<S>) -> Option<FutureState<Inner, RequestBody, S>> {
        let (mut inner, mut request) = self.call.take()?;
        insert_charge(&admitted, &mut request);
        let admitted = Some(self.limits.start(admitted));
        Some(FutureState::Calling {
            future: inner.call(request),
            limits: Some(self.limits.clone()),
            admitted,
        })
    }

    /// Returns the state after the check.
    fn after_check(
        &mut self,
        kind: RequestKind,
        result: CheckResult<S>,
    ) -> Option<FutureState<Inner, RequestBody, S>> {
        let rejected = |response| {
            Some(FutureState::Rejected {
                response: Some(Box::new(response)),
            })
        };
        match self.limits.action(result) {
            Action::Fail(error) => rejected(response::error(kind, &error)),
            Action::Deny(verdict, excess) => {
                let (_, request) = self.call.take()?;
                let (parts, _) = request.into_parts();
                let denied = response::denied(&self.limits, kind, &parts, &verdict, excess);
                rejected(denied)
            }
            Action::Proceed(admitted) => self.start(admitted),
            Action::Delay(delay, admitted) => {
                let call = PendingCall {
                    limits: self.limits.clone(),
                    call: self.call.take(),
                };
                Some(FutureState::delayed(delay, admitted, call))
            }
        }
    }
}

impl<Inner, S, RequestBody, InnerBody> Future for ResponseFuture<Inner, RequestBody, S>
where
    Inner: Service<Request<RequestBody>, Response = Response<InnerBody>>,
    InnerBody: http_body::Body<Data = Bytes>,
    S: Store,
{
    type Output = Result<Response<ResponseBody<InnerBody>>, Inner::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                FutureStateProjection::Rejected { response } => {
                    // Polled after completion, it stays pending.
                    return response.take().map_or(Poll::Pending, |response| {
                        Poll::Ready(Ok(response.map(ResponseBody::error)))
                    });
                }
                FutureStateProjection::Checking { kind, result, call } => {
                    let result = ready!(result.as_mut().poll(context));
                    call.after_check(*kind, result)
                }
                FutureStateProjection::Delayed {
                    sleep,
                    admitted,
                    call,
                } => {
                    ready!(sleep.as_mut().poll(context));
                    admitted.take().and_then(|admitted| call.start(admitted))
                }
                FutureStateProjection::Calling {
                    future,
                    limits,
                    admitted,
                } => {
                    let response = ready!(future.poll(context))?;
                    return Poll::Ready(Ok(finish(response, limits.take(), admitted.take())));
                }
            };
            match next {
                Some(next) => state.set(next),
                None => return Poll::Pending,
            }
        }
    }
}

/// Adds the headers to the service's response, and settles as far as its head allows.
fn finish<B, S: Store>(
    response: Response<B>,
    limits: Option<Limits<S>>,
    admitted: Option<Admitted<S>>,
) -> Response<ResponseBody<B>> {
    let (
        Some(limits),
        Some(Admitted {
            verdict,
            mut pending,
        }),
    ) = (limits, admitted)
    else {
        return response.map(|body| ResponseBody::new::<S>(body, None));
    };
    let (mut parts, body) = response.into_parts();
    if let Some(pending) = &mut pending {
        limits.settle_by_head(pending, &parts);
    }
    add_rate_limit_headers(&mut parts.headers, &limits, &verdict, None);
    Response::from_parts(parts, ResponseBody::new(body, pending))
}

impl<Inner, RequestBody, S> std::fmt::Debug for ResponseFuture<Inner, RequestBody, S>
where
    Inner: Service<Request<RequestBody>>,
    S: Store,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
