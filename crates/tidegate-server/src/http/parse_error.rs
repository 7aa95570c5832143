//! Adds problem+json to the responses that hyper writes by itself.
//!
//! hyper answers a request that it cannot parse with a bare 400, 414 or 431 and closes the connection.
//! Our clients get problem+json for every error, so these responses need a body.
//!
//! The bytes are replaced on the way out because hyper 1 has no hook for them: its HTTP/1 server builds
//! the response in its connection state, and neither the service nor the builder sees it. The
//! alternative, parsing every head before hyper does, would parse each request twice. The replacement is
//! confined to this file: it only recognizes a response without a body at the end of a write, which none
//! of our own responses is.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use tidegate_http::PROBLEM_JSON;

use super::problem::Problem;
use super::{Http, MAX_FIELDS, MAX_HEAD};
use crate::net::Stream;

/// The maximum length of a response that hyper writes by itself: status line, `connection`,
/// `content-length` and `date`.
const MAX_REJECTION: usize = 160;

/// A connection on which every error response has a body.
pub(super) struct ExplainedStream {
    stream: Stream,
    http: Http,
    /// The rest of the replacement that has not been written.
    replacement: Bytes,
}

impl ExplainedStream {
    pub(super) fn new(stream: Stream, http: Http) -> Self {
        Self {
            stream,
            http,
            replacement: Bytes::new(),
        }
    }

    /// Writes the replacement. Ready when all of it is written.
    fn poll_replacement(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.replacement.has_remaining() {
            let written =
                ready!(Pin::new(&mut self.stream).poll_write(context, &self.replacement))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.replacement.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ExplainedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match find_rejection(bytes) {
            None => Pin::new(&mut self.stream).poll_write(context, bytes),
            Some((0, status)) => {
                self.http.server.metrics.refused(self.http.protocol());
                self.stream.timeouts().start_discarding();
                self.replacement = explanation(status);
                // The rest is written on flush.
                if let Poll::Ready(Err(error)) = self.poll_replacement(context) {
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(Ok(bytes.len()))
            }
            Some((start, _)) => {
                let before = bytes.get(..start).unwrap_or_default();
                Pin::new(&mut self.stream).poll_write(context, before)
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match slices.split_last() {
            Some((last, [])) => self.poll_write(context, last),
            // The rejection is written again, alone.
            Some((last, others)) if find_rejection(last).is_some() => {
                Pin::new(&mut self.stream).poll_write_vectored(context, others)
            }
            _ => Pin::new(&mut self.stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_replacement(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_replacement(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl AsyncRead for ExplainedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

/// Returns the start and status of a response without a body at the end of these bytes. None of our
/// own responses is without a body.
fn find_rejection(bytes: &[u8]) -> Option<(usize, StatusCode)> {
    const VERSION: &[u8] = b"HTTP/1.";
    const NO_BODY: &[u8] = b"\r\ncontent-length: 0\r\n";
    // Our responses end with a body, so almost all return here.
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let from = bytes.len().saturating_sub(MAX_REJECTION);
    let end = bytes.get(from..)?;
    let at = end
        .windows(VERSION.len())
        .rposition(|window| window == VERSION)?;
    let head = end.get(at..)?;
    let status = StatusCode::from_bytes(head.get(VERSION.len() + 2..VERSION.len() + 5)?).ok()?;
    let is_rejection =
        status.is_client_error() && head.windows(NO_BODY.len()).any(|window| window == NO_BODY);
    is_rejection.then_some((from + at, status))
}

/// Returns the same response with a problem+json body.
fn explanation(status: StatusCode) -> Bytes {
    let detail = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            format!(
                "the head is too large: expected at most {MAX_FIELDS} headers and {MAX_HEAD} bytes"
            )
        }
        StatusCode::URI_TOO_LONG => {
            format!("the target is too long: expected a head of at most {MAX_HEAD} bytes")
        }
        _ => "the head cannot be parsed: expected HTTP/1.1 or HTTP/2".to_owned(),
    };
    let body = Problem::new(status, detail).body();
    let reason = status.canonical_reason().unwrap_or("Error");
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: {PROBLEM_JSON}\r\ncache-control: no-store\r\ncontent-length: \
         {}\r\nconnection: close\r\n\r\n",
        status.as_u16(),
        body.len()
    );
    format!("{head}{body}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_response_without_a_body_is_a_rejection() {
        let rejection = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(
            find_rejection(rejection),
            Some((0, StatusCode::BAD_REQUEST))
        );
        let ours = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(find_rejection(ours), None);
        assert_eq!(
            find_rejection(&[&ours[..], rejection].concat()),
            Some((ours.len(), StatusCode::BAD_REQUEST))
        );
        for other in [
            "",
            "\r\n\r\n",
            "HTTP/1.\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ] {
            assert_eq!(find_rejection(other.as_bytes()), None, "{other}");
        }
        // A response to HEAD has the length that the body would have had.
        assert_eq!(
            find_rejection(b"HTTP/1.1 404 Not Found\r\ncontent-length: 20\r\n\r\n"),
            None
        );
    }
}
