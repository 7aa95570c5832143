//! What is answered to what is not understood or not permitted: RFC 9457, for every error.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use super::Response;

/// An error, and what is said of it.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
    field: Option<(HeaderName, HeaderValue)>,
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            field: None,
        }
    }

    /// What was asked is not a question.
    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// Nobody has said who asks, or somebody has who is not known.
    pub(super) fn unauthorized() -> Self {
        let detail = "expected a token that this server knows: Authorization: Bearer TOKEN";
        let field = (WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        Self {
            field: Some(field),
            ..Self::new(StatusCode::UNAUTHORIZED, detail)
        }
    }

    pub(super) fn not_allowed(allowed: &'static str) -> Self {
        let field = (ALLOW, HeaderValue::from_static(allowed));
        let detail = format!("expected the method {allowed}");
        Self {
            field: Some(field),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// The same, with where it is said first.
    pub(super) fn within(mut self, place: &str) -> Self {
        self.detail = format!("{place}: {}", self.detail);
        self
    }

    /// What is said of it, as JSON.
    pub(super) fn body(&self) -> Vec<u8> {
        let body = Body {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
        };
        // Texts and numbers: there is nothing that could not be written.
        serde_json::to_vec(&body).unwrap_or_default()
    }

    pub(super) fn response(self) -> Response {
        let mut response = Response::new(Full::new(Bytes::from(self.body())));
        *response.status_mut() = self.status;
        let fields = response.headers_mut();
        fields.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        fields.insert(
            http::header::CACHE_CONTROL,
            HeaderValue::from_static("no-store"),
        );
        if let Some((name, value)) = self.field {
            fields.insert(name, value);
        }
        response
    }
}
