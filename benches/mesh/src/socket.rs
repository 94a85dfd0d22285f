//! Sockets that tell when the kernel received what was read last.
//!
//! The simulated proxies share the CPUs with the server. The time at which they process a message therefore includes their own work for
//! all messages before it, which proxies on other machines do at the same time.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt::ReceiveTimestampns};
use nix::sys::time::TimeSpec;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// A clock whose times are nanoseconds since it was made, never 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// The same moment in the time of the kernel's timestamps.
    start_of_system: SystemTime,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), start_of_system: SystemTime::now() }
    }

    pub(crate) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    pub(crate) fn at(&self, instant: Instant) -> u64 {
        nanoseconds(instant.saturating_duration_since(self.start))
    }

    /// The time of a timestamp of the kernel. It is not after the present, even if the clock of the system was set back.
    fn at_timestamp(&self, timestamp: TimeSpec) -> u64 {
        let time = SystemTime::UNIX_EPOCH + Duration::from(timestamp);
        nanoseconds(time.duration_since(self.start_of_system).unwrap_or_default()).min(self.now())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// When the kernel received the bytes that a socket read last.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastArrival(Arc<AtomicU64>);

impl LastArrival {
    /// In the time of the socket's clock; 0 before the first bytes.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A connection whose reads record when the kernel received the bytes.
#[derive(Debug)]
pub(crate) struct TimestampedSocket {
    socket: TcpStream,
    clock: Clock,
    arrival: LastArrival,
    /// Room for the timestamp of a read.
    control: Vec<u8>,
}

impl TimestampedSocket {
    /// Connects without delay of small writes.
    ///
    /// # Errors
    /// The connection fails, or the system gives no timestamps.
    pub(crate) async fn connect(address: SocketAddr, clock: Clock) -> io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        setsockopt(&socket, ReceiveTimestampns, &true)?;
        Ok(Self { socket, clock, arrival: LastArrival::default(), control: nix::cmsg_space!(TimeSpec) })
    }

    pub(crate) fn last_arrival(&self) -> LastArrival {
        self.arrival.clone()
    }
}

impl AsyncRead for TimestampedSocket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { socket, clock, arrival, control } = self.get_mut();
        loop {
            ready!(socket.poll_read_ready(context))?;
            let read = socket.try_io(Interest::READABLE, || {
                let mut parts = [IoSliceMut::new(buffer.initialize_unfilled())];
                let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(control), MsgFlags::empty())?;
                let timestamp = message.cmsgs()?.find_map(|control| match control {
                    ControlMessageOwned::ScmTimestampns(timestamp) => Some(timestamp),
                    _ => None,
                });
                Ok((message.bytes, timestamp))
            });
            match read {
                Ok((bytes, timestamp)) => {
                    buffer.advance(bytes);
                    arrival.0.store(timestamp.map_or_else(|| clock.now(), |time| clock.at_timestamp(time)), Relaxed);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for TimestampedSocket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn arrival_is_when_the_kernel_received_the_bytes_and_not_when_they_are_read() -> anyhow::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let clock = Clock::new();
        let mut reader = TimestampedSocket::connect(listener.local_addr()?, clock).await?;
        let (mut writer, _) = listener.accept().await?;
        let arrival = reader.last_arrival();
        assert_eq!(arrival.get(), 0);
        // The two clocks may differ by as much as the system's is corrected.
        let tolerance = 50_000_000;
        let mut bytes = [0; 5];
        // The kernel takes timestamps from some time after the first socket of the system has asked for them.
        let first = 'timestamped: {
            for _ in 0..50 {
                let before = clock.now();
                writer.write_all(b"first").await?;
                let written = clock.now();
                tokio::time::sleep(Duration::from_millis(200)).await;
                reader.read_exact(&mut bytes).await?;
                let first = arrival.get();
                assert!(first + tolerance >= before, "{first} is before the write at {before}");
                assert!(first < clock.now(), "{first} is after the read");
                if first <= written + tolerance {
                    break 'timestamped first;
                }
            }
            panic!("the arrival is always long after the write");
        };
        writer.write_all(b"again").await?;
        reader.read_exact(&mut bytes).await?;
        assert!(arrival.get() > first, "each read has its own time");
        Ok(())
    }
}
