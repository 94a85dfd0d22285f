//! Ends connections whose client does not read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A connection with a time limit for each write.
pub(crate) struct StalledWriteLimit<IO> {
    io: IO,
    limit: Duration,
    /// Runs while a write waits for the client.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<IO> StalledWriteLimit<IO> {
    pub(crate) fn new(io: IO, limit: Duration) -> Self {
        Self { io, limit, deadline: None }
    }

    /// Fails a write that waits for too long.
    fn limit<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let at = Instant::now() + self.limit;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        deadline.as_mut().poll(cx).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for StalledWriteLimit<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, out)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for StalledWriteLimit<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.limit(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.limit(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.limit(cx, shut)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        self.limit(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
