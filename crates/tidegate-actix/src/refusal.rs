//! Answers in the place of the service's.

use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use tidegate_core::{Store, Verdict};
use tidegate_http::{Field, RequestError};

use crate::Limits;

/// The answer to a request that is denied: outright, or because it would have to wait by so much too long.
pub(crate) fn denied<S: Store>(
    limits: &Limits<S>,
    verdict: &Verdict,
    excess: Option<Duration>,
) -> HttpResponse {
    let Some(denial) = limits.denial(verdict, excess) else {
        return problem(429, String::new());
    };
    let own = limits.refusal(&denial);
    let mut response = own.unwrap_or_else(|| problem(denial.status(), denial.problem()));
    let headers = response.headers_mut();
    if !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    if let Some(seconds) = denial
        .retry_after()
        .filter(|_| !headers.contains_key(RETRY_AFTER))
    {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    add_fields(headers, limits, verdict, excess);
    response
}

/// The answer to a request that could not be asked about.
pub(crate) fn error(error: &RequestError) -> HttpResponse {
    problem(error.status(), error.problem())
}

fn problem(status: u16, text: String) -> HttpResponse {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    HttpResponse::build(status)
        .insert_header((CONTENT_TYPE, "application/problem+json"))
        .body(text)
}

/// Tells the client what is left.
pub(crate) fn add_fields<S: Store>(
    headers: &mut HeaderMap,
    limits: &Limits<S>,
    verdict: &Verdict,
    excess: Option<Duration>,
) {
    for Field { name, value } in limits.fields(verdict, excess) {
        let name = HeaderName::from_static(name);
        if let Ok(value) = HeaderValue::from_maybe_shared(value) {
            // Several lines of these are one list: a middleware within, or the handler, may have written its own.
            if matches!(
                name.as_str(),
                "ratelimit" | "ratelimit-policy" | "access-control-expose-headers"
            ) {
                headers.append(name, value);
            } else {
                headers.insert(name, value);
            }
        }
    }
}
