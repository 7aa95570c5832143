//! A plain or TLS connection that reports its reads and writes to its timeouts.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use super::timeouts::Timeouts;

/// A connection that reports its reads and writes to its [`Timeouts`].
///
/// Closing is graceful: if the client is still sending a request that is no longer read, the rest is
/// discarded first. Closing a socket with unread bytes resets the connection, and the last response may be
/// lost.
pub(crate) struct Stream {
    transport: Transport,
    timeouts: Arc<Timeouts>,
    is_shut: bool,
    /// The number of bytes that may still be discarded.
    discard_left: usize,
}

/// The maximum number of bytes that are discarded before a connection is closed.
const MAX_DISCARDED: usize = 8 << 20;

enum Transport {
    Clear(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    fn new(transport: Transport, timeouts: Arc<Timeouts>) -> Self {
        Self {
            transport,
            timeouts,
            is_shut: false,
            discard_left: MAX_DISCARDED,
        }
    }

    pub(crate) fn clear(stream: TcpStream, timeouts: Arc<Timeouts>) -> Self {
        Self::new(Transport::Clear(stream), timeouts)
    }

    pub(crate) fn unix(stream: UnixStream, timeouts: Arc<Timeouts>) -> Self {
        Self::new(Transport::Unix(stream), timeouts)
    }

    pub(crate) fn tls(stream: TlsStream<TcpStream>, timeouts: Arc<Timeouts>) -> Self {
        Self::new(Transport::Tls(Box::new(stream)), timeouts)
    }

    pub(crate) fn timeouts(&self) -> &Arc<Timeouts> {
        &self.timeouts
    }

    /// TLS accepts bytes long before the client has read them, so only a blocked write is reported.
    fn has_written(&self, is_taken: bool) {
        if !is_taken || !matches!(self.transport, Transport::Tls(_)) {
            self.timeouts.has_written(is_taken);
        }
    }

    /// A plain connection has nothing to flush.
    fn has_flushed(&self, is_taken: bool) {
        if matches!(self.transport, Transport::Tls(_)) {
            self.timeouts.has_written(is_taken);
        }
    }
}

/// Calls the same method of either transport.
macro_rules! with_transport {
    ($self:expr, |$stream:ident| $call:expr) => {
        match &mut $self.transport {
            Transport::Clear($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Transport::Unix($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Transport::Tls($stream) => {
                let $stream = Pin::new(&mut **$stream);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(with_transport!(self, |stream| stream.poll_read(context, buffer)))?;
        self.timeouts
            .has_read(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = with_transport!(self, |stream| stream.poll_write(context, bytes));
        self.has_written(written.is_ready());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = with_transport!(self, |stream| stream.poll_write_vectored(context, slices));
        self.has_written(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Clear(stream) => stream.is_write_vectored(),
            Transport::Unix(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = with_transport!(self, |stream| stream.poll_flush(context));
        self.has_flushed(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_shut {
            let shut = with_transport!(self, |stream| stream.poll_shutdown(context));
            self.has_flushed(shut.is_ready());
            ready!(shut)?;
            self.is_shut = true;
            // The client has as much time to finish as it had for a request's head.
            self.timeouts.next_request_started();
        }
        if self.timeouts.is_discarding() {
            ready!(self.poll_discard(context));
        }
        Poll::Ready(Ok(()))
    }
}

impl Stream {
    /// Discards bytes until the client closes, or too many have arrived. The connection's timer limits
    /// the time.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut space = [0; 4_096];
        while self.discard_left > 0 {
            let mut buffer = ReadBuf::new(&mut space);
            let read =
                ready!(with_transport!(self, |stream| stream.poll_read(context, &mut buffer)));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
            self.discard_left = self.discard_left.saturating_sub(buffer.filled().len());
        }
        Poll::Ready(())
    }
}
