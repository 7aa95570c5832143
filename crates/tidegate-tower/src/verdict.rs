//! What becomes of a request once it has been asked about.

use std::time::Duration;

use http::{Request, Response, header};
use tidegate_core::{Store, Verdict};
use tidegate_http::{Answer, Open, RequestError, Settling};

use crate::body::Refusal;
use crate::{Limits, refusal};

/// A request that goes on.
pub(crate) struct Admitted<S: Store> {
    pub(crate) verdict: Verdict,
    /// What it may have to give back.
    pub(crate) open: Option<Open<S>>,
}

/// What becomes of a request.
pub(crate) enum Next<S: Store> {
    Refuse(Box<Response<Refusal>>),
    Go(Admitted<S>),
    Wait(Duration, Admitted<S>),
}

/// In whose terms a refusal is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Http,
    Grpc,
}

impl RequestKind {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let kind = request.headers().get(header::CONTENT_TYPE).map(header::HeaderValue::as_bytes);
        match kind.and_then(|kind| kind.strip_prefix(b"application/grpc")) {
            // Not `application/grpc-web`, whose answers are made by a layer of its own.
            Some(b"") | Some([b'+' | b';' | b' ', ..]) => Self::Grpc,
            _ => Self::Http,
        }
    }
}

pub(crate) fn next<S: Store, B>(
    limits: &Limits<S>,
    kind: RequestKind,
    answer: Answer<S>,
    request: &mut Request<B>,
) -> Next<S> {
    let (verdict, receipt) = match answer {
        Ok(answer) => answer,
        Err(error) => return Next::Refuse(Box::new(refusal::error(&RequestError::from(error)))),
    };
    #[cfg(feature = "tracing")]
    trace(&verdict);
    if let Some(denial) = limits.denial(&verdict) {
        // What those in shadow took stays taken.
        return Next::Refuse(Box::new(refusal::denied(limits, kind, &denial)));
    }
    let Some(receipt) = receipt else { return Next::Go(Admitted { verdict, open: None }) };
    let delay = match limits.delay(&verdict) {
        Ok(delay) => delay,
        Err(excess) => {
            receipt.give_back();
            let refused = limits.queue_denial(&verdict, excess).map(|denial| refusal::denied(limits, kind, &denial));
            return refused
                .map_or(Next::Go(Admitted { verdict, open: None }), |refused| Next::Refuse(Box::new(refused)));
        }
    };
    let settling = limits.settling();
    if let Settling::Told(charge) = &settling {
        request.extensions_mut().insert(charge.clone());
    }
    let admitted = Admitted { verdict, open: Some(Open::new(receipt, settling)) };
    if delay.is_zero() { Next::Go(admitted.going(limits)) } else { Next::Wait(delay, admitted) }
}

impl<S: Store> Admitted<S> {
    /// It has waited for its turn, and goes on: from now on only its outcome gives anything back.
    pub(crate) fn going(mut self, limits: &Limits<S>) -> Self {
        if !limits.charges_by_outcome()
            && let Some(mut open) = self.open.take()
        {
            open.keep();
        }
        self
    }
}

#[cfg(feature = "tracing")]
fn trace(verdict: &Verdict) {
    for ruling in verdict.rulings() {
        let policy = ruling.label().name().as_str();
        if let Some(reason) = ruling.decision().and_then(|decision| decision.degraded()) {
            tracing::debug!(target: "tidegate", policy, reason = reason.name(), "answered without the store");
        }
        if ruling.would_deny() {
            tracing::debug!(target: "tidegate", policy, shadow = ruling.is_shadow(), "denied");
        }
    }
}
