//! Responses that replace the service's: denials and errors.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use tidegate_core::{Store, Verdict};
use tidegate_http::{
    Denial, HeaderFormat, PROBLEM_JSON, PolicyHeaderCache, RequestError, add_headers,
    rate_limit_headers,
};

use crate::Limits;
use crate::body::{DenialBody, DenialResponse};
use crate::request_kind::RequestKind;

/// Returns the response to a request that a gate denied by hand: 429 with problem+json, Retry-After
/// and the RateLimit headers. Returns `None` if the request is allowed.
///
/// # Examples
///
/// ```
/// use tidegate::{Gate, PolicySet, Rules};
///
/// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
/// gate.check("api", "user:42").now()?;
/// let verdict = gate.check("api", "user:42").now()?;
/// let response = tidegate::tower::denied_response(&verdict).expect("denied");
/// assert_eq!(response.headers()["retry-after"], "60");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn denied_response(verdict: &Verdict) -> Option<Response<Bytes>> {
    let denial = Denial::new(verdict)?;
    let mut response = problem(denial.status(), denial.problem());
    add_headers(response.headers_mut(), denial.headers());
    let (format, cache) = (HeaderFormat::default(), PolicyHeaderCache::default());
    let headers = rate_limit_headers(verdict, format, false, None, &cache);
    add_headers(response.headers_mut(), headers);
    Some(response)
}

/// Returns the response to a denied request or, with `excess`, to one whose delay is too long.
pub(crate) fn denied<S: Store>(
    limits: &Limits<S>,
    kind: RequestKind,
    request: &Parts,
    verdict: &Verdict,
    excess: Option<Duration>,
) -> Response<DenialBody> {
    let Some(denial) = limits.denial(verdict, excess) else {
        return problem(429, String::new()).map(DenialBody::text);
    };
    let mut response = match (limits.custom_response(&denial, request), kind) {
        (Some(DenialResponse(response)), _) => response,
        #[cfg(feature = "tonic")]
        (None, RequestKind::Grpc) => crate::grpc::denied(&denial).map(DenialBody::text),
        (None, _) => problem(denial.status(), denial.problem()).map(DenialBody::text),
    };
    // A gRPC denial has the HTTP status 200 and its own way to report the wait.
    if response.status() != StatusCode::OK || kind == RequestKind::Http {
        add_headers(response.headers_mut(), denial.headers());
    }
    add_rate_limit_headers(response.headers_mut(), limits, verdict, excess);
    response
}

/// Returns the response to a request that could not be checked.
pub(crate) fn error(kind: RequestKind, error: &RequestError) -> Response<DenialBody> {
    let response = match kind {
        #[cfg(feature = "tonic")]
        RequestKind::Grpc => crate::grpc::error(error),
        _ => problem(error.status(), error.problem()),
    };
    response.map(DenialBody::text)
}

fn problem(status: u16, text: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let content_type = HeaderValue::from_static(PROBLEM_JSON);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Adds the rate limit headers of a verdict.
pub(crate) fn add_rate_limit_headers<S: Store>(
    headers: &mut HeaderMap,
    limits: &Limits<S>,
    verdict: &Verdict,
    excess: Option<Duration>,
) {
    add_headers(headers, limits.response_headers(verdict, excess));
}
