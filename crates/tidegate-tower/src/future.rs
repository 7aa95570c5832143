//! An answer on its way.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tidegate_core::{MemoryStore, Store};
use tidegate_http::{Admitted, Answer, Next, Prepared};
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use crate::Limits;
use crate::body::{Body, Refusal};
use crate::kind::RequestKind;
use crate::refusal::{self, add_fields};
use crate::service::hand_over;

pin_project! {
    /// An answer on its way. Dropped before it is there, it gives back what the request took, where outcomes are charged.
    pub struct ResponseFuture<Inner, RequestBody, S = MemoryStore>
    where
        Inner: Service<Request<RequestBody>>,
        S: Store,
    {
        #[pin]
        state: State<Inner, RequestBody, S>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<Inner, RequestBody, S>
    where
        Inner: Service<Request<RequestBody>>,
        S: Store,
    {
        // What is rare is elsewhere: the future is moved about, and the common one is small.
        Refused { response: Option<Box<Response<Refusal>>> },
        Asking { kind: RequestKind, answer: Asked<S>, call: Box<Call<Inner, RequestBody, S>> },
        Waiting { sleep: Pin<Box<Sleep>>, admitted: Option<Admitted<S>>, call: Box<Call<Inner, RequestBody, S>> },
        Calling { #[pin] future: Inner::Future, limits: Option<Limits<S>>, admitted: Option<Admitted<S>> },
    }
}

type Asked<S> = Pin<Box<dyn Future<Output = Answer<S>> + Send>>;

/// A request that will be passed on.
struct Call<Inner, RequestBody, S: Store> {
    limits: Limits<S>,
    /// Until it has been.
    call: Option<(Inner, Request<RequestBody>)>,
}

impl<Inner, RequestBody, S> ResponseFuture<Inner, RequestBody, S>
where
    Inner: Service<Request<RequestBody>>,
    S: Store,
{
    pub(crate) fn refused(response: Response<Refusal>) -> Self {
        Self {
            state: State::Refused {
                response: Some(Box::new(response)),
            },
        }
    }

    pub(crate) fn unlimited(future: Inner::Future) -> Self {
        Self {
            state: State::Calling {
                future,
                limits: None,
                admitted: None,
            },
        }
    }

    pub(crate) fn calling(limits: Limits<S>, future: Inner::Future, admitted: Admitted<S>) -> Self {
        Self {
            state: State::Calling {
                future,
                limits: Some(limits),
                admitted: Some(admitted),
            },
        }
    }

    pub(crate) fn asking(
        limits: Limits<S>,
        kind: RequestKind,
        prepared: Prepared<'static>,
        inner: Inner,
        request: Request<RequestBody>,
    ) -> Self {
        let asked = limits.clone();
        let answer = Box::pin(async move { prepared.ask(&asked).await });
        Self {
            state: State::Asking {
                kind,
                answer,
                call: Box::new(Call {
                    limits,
                    call: Some((inner, request)),
                }),
            },
        }
    }

    pub(crate) fn waiting(
        limits: Limits<S>,
        delay: Duration,
        admitted: Admitted<S>,
        inner: Inner,
        request: Request<RequestBody>,
    ) -> Self {
        Self {
            state: State::waiting(
                delay,
                admitted,
                Call {
                    limits,
                    call: Some((inner, request)),
                },
            ),
        }
    }
}

impl<Inner, RequestBody, S> State<Inner, RequestBody, S>
where
    Inner: Service<Request<RequestBody>>,
    S: Store,
{
    fn waiting(delay: Duration, admitted: Admitted<S>, call: Call<Inner, RequestBody, S>) -> Self {
        Self::Waiting {
            sleep: Box::pin(sleep(delay)),
            admitted: Some(admitted),
            call: Box::new(call),
        }
    }
}

impl<Inner, RequestBody, S> Call<Inner, RequestBody, S>
where
    Inner: Service<Request<RequestBody>>,
    S: Store,
{
    /// Passes the request on; nothing if that has been done.
    fn make(&mut self, admitted: Admitted<S>) -> Option<State<Inner, RequestBody, S>> {
        let (mut inner, mut request) = self.call.take()?;
        hand_over(&admitted, &mut request);
        let admitted = Some(self.limits.going(admitted));
        Some(State::Calling {
            future: inner.call(request),
            limits: Some(self.limits.clone()),
            admitted,
        })
    }

    /// What becomes of the request now that there is an answer.
    fn go_on(
        &mut self,
        kind: RequestKind,
        answer: Answer<S>,
    ) -> Option<State<Inner, RequestBody, S>> {
        let refused = |response| {
            Some(State::Refused {
                response: Some(Box::new(response)),
            })
        };
        match self.limits.next(answer) {
            Next::Fail(error) => refused(refusal::error(kind, &error)),
            Next::Deny(verdict, excess) => {
                refused(refusal::denied(&self.limits, kind, &verdict, excess))
            }
            Next::Go(admitted) => self.make(admitted),
            Next::Wait(delay, admitted) => {
                let call = Call {
                    limits: self.limits.clone(),
                    call: self.call.take(),
                };
                Some(State::waiting(delay, admitted, call))
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
    type Output = Result<Response<Body<InnerBody>>, Inner::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Refused { response } => {
                    // Asked for again after it was given, as no one should: there will be nothing.
                    return response.take().map_or(Poll::Pending, |response| {
                        Poll::Ready(Ok(response.map(Body::refusal)))
                    });
                }
                StateProjection::Asking { kind, answer, call } => {
                    let answer = ready!(answer.as_mut().poll(context));
                    call.go_on(*kind, answer)
                }
                StateProjection::Waiting {
                    sleep,
                    admitted,
                    call,
                } => {
                    ready!(sleep.as_mut().poll(context));
                    admitted.take().and_then(|admitted| call.make(admitted))
                }
                StateProjection::Calling {
                    future,
                    limits,
                    admitted,
                } => {
                    let response = ready!(future.poll(context))?;
                    return Poll::Ready(Ok(answered(response, limits.take(), admitted.take())));
                }
            };
            match next {
                Some(next) => state.set(next),
                None => return Poll::Pending,
            }
        }
    }
}

/// The service's answer, with what its client is told; and settled, as far as that can be.
fn answered<B, S: Store>(
    response: Response<B>,
    limits: Option<Limits<S>>,
    admitted: Option<Admitted<S>>,
) -> Response<Body<B>> {
    let (Some(limits), Some(Admitted { verdict, mut open })) = (limits, admitted) else {
        return response.map(|body| Body::of::<S>(body, None));
    };
    let (mut parts, body) = response.into_parts();
    if let Some(open) = &mut open {
        limits.answered(open, &parts);
    }
    add_fields(&mut parts.headers, &limits, &verdict, None);
    Response::from_parts(parts, Body::of(body, open))
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
