//! What is said last on a connection: why, and so that it is heard.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::problem::Problem;
use super::{Http, MAX_FIELDS, MAX_HEAD};
use crate::net::Stream;

/// The longest refusal that hyper writes: a status, `connection`, `content-length` and `date`.
const LONGEST_REFUSAL: usize = 160;

/// Of what a client goes on sending after it was refused, so much is read: a connection that is closed over bytes that
/// nobody has read is reset, and the answer may be lost with it.
const MOST_UNREAD: usize = 8 << 20;

/// A connection whose last answer says why, and is heard.
///
/// The refusals that hyper writes by itself, to a head that is none, have no body. They are the last that it writes, and
/// there is no other way to reach them than here.
pub(super) struct LastWords {
    stream: Stream,
    http: Http,
    /// What goes out in the place of a refusal, as far as it is not out.
    instead: Bytes,
    is_shut: bool,
    /// What may still be read of what nobody wants.
    unread_left: usize,
}

impl LastWords {
    pub(super) fn new(stream: Stream, http: Http) -> Self {
        Self {
            stream,
            http,
            instead: Bytes::new(),
            is_shut: false,
            unread_left: MOST_UNREAD,
        }
    }

    /// Writes what stands in the place of a refusal; all of it went out where this is ready.
    fn poll_instead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.instead.has_remaining() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.instead.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads what nobody wants until the client has heard, and ends. The connection's timer ends it otherwise.
    fn poll_unread(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut space = [0; 4_096];
        while self.unread_left > 0 {
            let mut buffer = ReadBuf::new(&mut space);
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
            self.unread_left = self.unread_left.saturating_sub(buffer.filled().len());
        }
        Poll::Ready(())
    }
}

impl AsyncWrite for LastWords {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match refusal_at_the_end(bytes) {
            None => Pin::new(&mut self.stream).poll_write(context, bytes),
            Some((0, status)) => {
                self.http.server.metrics.refused(self.http.spoken());
                self.stream.watch().leave_unread();
                self.instead = explanation(status);
                // What does not go out at once does when it is flushed.
                if let Poll::Ready(Err(error)) = self.poll_instead(context) {
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(Ok(bytes.len()))
            }
            Some((at, _)) => {
                Pin::new(&mut self.stream).poll_write(context, bytes.get(..at).unwrap_or_default())
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
            // A refusal comes again, alone.
            Some((last, others)) if refusal_at_the_end(last).is_some() => {
                Pin::new(&mut self.stream).poll_write_vectored(context, others)
            }
            _ => Pin::new(&mut self.stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(context))?;
        if !self.is_shut {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            self.is_shut = true;
            // It has as long to hear it as it had for a head.
            self.stream.watch().has_begun();
        }
        if self.stream.watch().has_left_unread() {
            ready!(self.poll_unread(context));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for LastWords {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

/// Where a refusal without a body begins that these bytes end with, and its status. None of ours is without.
fn refusal_at_the_end(bytes: &[u8]) -> Option<(usize, StatusCode)> {
    const VERSION: &[u8] = b"HTTP/1.";
    const NO_BODY: &[u8] = b"\r\ncontent-length: 0\r\n";
    // Our answers end with a body: nearly all are through with this.
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let from = bytes.len().saturating_sub(LONGEST_REFUSAL);
    let end = bytes.get(from..)?;
    let at = end
        .windows(VERSION.len())
        .rposition(|window| window == VERSION)?;
    let head = end.get(at..)?;
    let status = StatusCode::from_bytes(head.get(VERSION.len() + 2..VERSION.len() + 5)?).ok()?;
    let is_refusal =
        status.is_client_error() && head.windows(NO_BODY.len()).any(|window| window == NO_BODY);
    is_refusal.then_some((from + at, status))
}

/// The same refusal, and why.
fn explanation(status: StatusCode) -> Bytes {
    let detail = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            format!("expected a head of at most {MAX_FIELDS} fields and {MAX_HEAD} bytes")
        }
        StatusCode::URI_TOO_LONG => {
            format!("expected a target within a head of at most {MAX_HEAD} bytes")
        }
        _ => "expected a request of HTTP/1.1 or HTTP/2: its head cannot be understood".to_owned(),
    };
    let body = Problem::new(status, detail).body();
    let reason = status.canonical_reason().unwrap_or("Error");
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\ncontent-length: \
         {}\r\nconnection: close\r\n\r\n",
        status.as_u16(),
        body.len()
    );
    [head.into_bytes(), body].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_no_body_is_a_refusal() {
        let refusal = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(
            refusal_at_the_end(refusal),
            Some((0, StatusCode::BAD_REQUEST))
        );
        let ours = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(refusal_at_the_end(ours), None);
        assert_eq!(
            refusal_at_the_end(&[&ours[..], refusal].concat()),
            Some((ours.len(), StatusCode::BAD_REQUEST))
        );
        for other in [
            "",
            "\r\n\r\n",
            "HTTP/1.\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ] {
            assert_eq!(refusal_at_the_end(other.as_bytes()), None, "{other}");
        }
        // To HEAD: as long as the body would have been.
        assert_eq!(
            refusal_at_the_end(b"HTTP/1.1 404 Not Found\r\ncontent-length: 20\r\n\r\n"),
            None
        );
    }
}
