//! A connection in clear or in TLS, watched.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::watch::Watch;

/// A connection, whose bytes are noticed by its [`Watch`].
pub(crate) struct Stream {
    transport: Transport,
    watch: Arc<Watch>,
}

enum Transport {
    Clear(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub(crate) fn clear(stream: TcpStream, watch: Arc<Watch>) -> Self {
        Self {
            transport: Transport::Clear(stream),
            watch,
        }
    }

    pub(crate) fn tls(stream: TlsStream<TcpStream>, watch: Arc<Watch>) -> Self {
        Self {
            transport: Transport::Tls(Box::new(stream)),
            watch,
        }
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// TLS takes what it is given long before the client does.
    fn has_written(&self, is_taken: bool) {
        if !is_taken || matches!(self.transport, Transport::Clear(_)) {
            self.watch.has_written(is_taken);
        }
    }

    /// In clear this says nothing: it is never waited for.
    fn has_flushed(&self, is_taken: bool) {
        if matches!(self.transport, Transport::Tls(_)) {
            self.watch.has_written(is_taken);
        }
    }
}

/// Calls the same of whichever it is.
macro_rules! whichever {
    ($self:expr, |$stream:ident| $call:expr) => {
        match &mut $self.transport {
            Transport::Clear($stream) => {
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
        ready!(whichever!(self, |stream| stream.poll_read(context, buffer)))?;
        self.watch
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
        let written = whichever!(self, |stream| stream.poll_write(context, bytes));
        self.has_written(written.is_ready());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = whichever!(self, |stream| stream.poll_write_vectored(context, slices));
        self.has_written(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Clear(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = whichever!(self, |stream| stream.poll_flush(context));
        self.has_flushed(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = whichever!(self, |stream| stream.poll_shutdown(context));
        self.has_flushed(shut.is_ready());
        shut
    }
}
