//! Error responses: problem+json (RFC 9457) for every error.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use tidegate_http::PROBLEM_JSON;

use super::Response;

/// An error response.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            header: None,
        }
    }

    /// Creates a 400 response.
    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// Creates a 401 response: the token is missing or unknown.
    pub(crate) fn unauthorized() -> Self {
        let detail = "the token is missing or unknown: expected Authorization: Bearer TOKEN";
        let header = (WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        Self {
            header: Some(header),
            ..Self::new(StatusCode::UNAUTHORIZED, detail)
        }
    }

    pub(crate) fn not_allowed(allowed: &'static str) -> Self {
        let header = (ALLOW, HeaderValue::from_static(allowed));
        let detail = format!("the method is not allowed: expected {allowed}");
        Self {
            header: Some(header),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the sentence that says what is wrong.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// Adds the position of the mistake to the detail.
    pub(crate) fn within(mut self, position: &str) -> Self {
        self.detail = format!("{position}: {}", self.detail);
        self
    }

    /// Returns the body as JSON.
    pub(crate) fn body(&self) -> String {
        let title = self.status.canonical_reason().unwrap_or("Error");
        tidegate_http::Problem::new(self.status.as_u16(), title, &*self.detail).to_json()
    }

    pub(crate) fn response(self) -> Response {
        let mut response = Response::new(Full::new(Bytes::from(self.body())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        headers.insert(
            http::header::CACHE_CONTROL,
            HeaderValue::from_static("no-store"),
        );
        if let Some((name, value)) = self.header {
            headers.insert(name, value);
        }
        response
    }
}
