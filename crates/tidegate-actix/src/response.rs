//! Responses that replace the service's: denials and errors.

use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::dev::ServiceRequest;
use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tidegate_core::{Store, Verdict};
use tidegate_http::{Header, Merge, PROBLEM_JSON, RequestError};

use crate::Limits;

/// Returns the response to a denied request or, with `excess`, to one whose delay is too long.
pub(crate) fn denied<S: Store>(
    limits: &Limits<S>,
    request: &ServiceRequest,
    verdict: &Verdict,
    excess: Option<Duration>,
) -> HttpResponse {
    let Some(denial) = limits.denial(verdict, excess) else {
        return problem(429, String::new());
    };
    let custom = limits.custom_response(&denial, request);
    let mut response = custom.unwrap_or_else(|| problem(denial.status(), denial.problem()));
    add_headers(response.headers_mut(), denial.headers());
    add_rate_limit_headers(response.headers_mut(), limits, verdict, excess);
    response
}

/// Returns the response to a request that could not be checked.
pub(crate) fn error(error: &RequestError) -> HttpResponse {
    problem(error.status(), error.problem())
}

fn problem(status: u16, text: String) -> HttpResponse {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    HttpResponse::build(status)
        .insert_header((CONTENT_TYPE, PROBLEM_JSON))
        .body(text)
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

/// Adds headers to those of a response.
pub fn add_headers(map: &mut HeaderMap, headers: impl IntoIterator<Item = Header>) {
    for Header { name, value, merge } in headers {
        let name = HeaderName::from_static(name);
        let Ok(value) = HeaderValue::from_maybe_shared(value) else {
            continue;
        };
        match merge {
            Merge::Append => map.append(name, value),
            Merge::Replace => drop(map.insert(name, value)),
            Merge::Keep if map.contains_key(&name) => {}
            Merge::Keep => drop(map.insert(name, value)),
        }
    }
}
