//! Answers in the place of the service's.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    RETRY_AFTER,
};
use http::{Response, StatusCode};
use tidegate_core::{Store, Verdict};
use tidegate_http::{Denial, Dialect, Field, RequestError, Written};

use crate::Limits;
use crate::body::Refusal;
use crate::kind::RequestKind;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The answer to a request that a gate was asked about by hand, and denies: 429 with problem+json, Retry-After and the
/// RateLimit fields. `None` if it may go on.
#[must_use]
pub fn denied_response(verdict: &Verdict) -> Option<Response<Bytes>> {
    let denial = Denial::of(verdict)?;
    let mut response = problem(denial.status(), denial.problem());
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = denial.retry_after() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    add(
        headers,
        tidegate_http::fields(
            verdict,
            Dialect::default(),
            false,
            None,
            &Written::default(),
        ),
    );
    Some(response)
}

/// The answer to a request that is denied: outright, or because it would have to wait by so much too long.
pub(crate) fn denied<S: Store>(
    limits: &Limits<S>,
    kind: RequestKind,
    verdict: &Verdict,
    excess: Option<Duration>,
) -> Response<Refusal> {
    match limits.denial(verdict, excess) {
        Some(denial) => of(limits, kind, &denial),
        None => problem(429, String::new()).map(Some),
    }
}

fn of<S: Store>(limits: &Limits<S>, kind: RequestKind, denial: &Denial<'_>) -> Response<Refusal> {
    let response = match (limits.refusal(denial), kind) {
        (Some(response), _) => response,
        #[cfg(feature = "tonic")]
        (None, RequestKind::Grpc) => crate::grpc::refusal(denial),
        (None, _) => problem(denial.status(), denial.problem()),
    };
    let mut response = response.map(Some);
    if response.status() != StatusCode::OK || kind == RequestKind::Http {
        let headers = response.headers_mut();
        headers
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-store"));
        if let Some(seconds) = denial.retry_after() {
            headers
                .entry(RETRY_AFTER)
                .or_insert(HeaderValue::from(seconds));
        }
    }
    add_fields(
        response.headers_mut(),
        limits,
        denial.verdict(),
        denial.excess(),
    );
    response
}

/// The answer to a request that could not be asked about.
pub(crate) fn error(kind: RequestKind, error: &RequestError) -> Response<Refusal> {
    let response = match kind {
        #[cfg(feature = "tonic")]
        RequestKind::Grpc => crate::grpc::error(error),
        _ => problem(error.status(), error.problem()),
    };
    response.map(Some)
}

fn problem(status: u16, text: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    response
}

/// Tells the client what is left.
pub(crate) fn add_fields<S: Store>(
    headers: &mut HeaderMap,
    limits: &Limits<S>,
    verdict: &Verdict,
    excess: Option<Duration>,
) {
    add(headers, limits.fields(verdict, excess));
}

fn add(headers: &mut HeaderMap, fields: impl IntoIterator<Item = Field>) {
    for Field { name, value } in fields {
        let Ok(value) = HeaderValue::from_maybe_shared(value) else {
            continue;
        };
        // Several lines of these are one list: a layer within, or the handler, may have written its own.
        match name {
            "ratelimit" => drop(headers.append(RATELIMIT, value)),
            "ratelimit-policy" => drop(headers.append(RATELIMIT_POLICY, value)),
            "access-control-expose-headers" => {
                drop(headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, value))
            }
            other => drop(headers.insert(HeaderName::from_static(other), value)),
        }
    }
}
