//! The protocol of a request, which determines the form of a denial.

use http::{Request, header};

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Http,
    Grpc,
}

impl RequestKind {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let kind = request
            .headers()
            .get(header::CONTENT_TYPE)
            .map(header::HeaderValue::as_bytes);
        match kind.and_then(|kind| kind.strip_prefix(b"application/grpc")) {
            // Not `application/grpc-web`, whose responses another layer translates.
            Some(b"" | [b'+' | b';' | b' ', ..]) => Self::Grpc,
            _ => Self::Http,
        }
    }
}
