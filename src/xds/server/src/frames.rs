//! Splits large HTTP/2 data frames of clients into small ones, to save memory.
//!
//! For the life of a connection, the transport (h2) keeps a read buffer for the largest frame that it ever received, and each
//! client's first request has frames of the maximum size. This adapter sits between the connection and the transport and
//! presents a large data frame as several small ones, which is equivalent (RFC 9113 §6.1).
//!
//! Gain: the read buffer of each connection is 8 KiB instead of 16 KiB. Together with [`ResponseFrame`] it lowered the memory
//! of a proxy from 53.8 KiB to 48.2 KiB; the budget is 48 KiB. [`ServerOptions::small_frames`] (`SLUICE_HTTP2_FRAMES=false`)
//! switches it off.
//!
//! [`ResponseFrame`]: sluice_xds_protocol::wire::ResponseFrame
//! [`ServerOptions::small_frames`]: crate::ServerOptions::small_frames

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum payload of a data frame that the transport sees. The transport reads into a buffer of 8 KiB and doubles it when a
/// frame does not fit behind the previous ones; a frame of this size nearly always fits. The largest frames that clients send
/// become four of these.
const MAX_FRAME_PAYLOAD_BYTES: usize = 4096;
/// Size of a read from the connection. The transport must consume as much before it gets more, because it keeps space for the
/// maximum number of frames that it ever held.
const READ_BUFFER_BYTES: usize = 8 * MAX_FRAME_PAYLOAD_BYTES;
/// Size of the connection preface before the first frame.
const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// Size of a frame's header: three bytes of length, then type, flags, and four of the stream.
const HEADER_BYTES: usize = 9;
const TYPE: usize = 3;
const FLAGS: usize = 4;
/// The type of data frames, and two of their flags (RFC 9113 §6.1).
const DATA: u8 = 0;
const END_STREAM: u8 = 1;
const PADDED: u8 = 8;

thread_local! {
    /// The read buffer that the connections of a thread share.
    static READ_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// An HTTP/2 connection whose data frames are read as small ones. Writes pass through.
#[derive(Debug)]
pub(crate) struct SmallFrames<IO> {
    io: IO,
    /// If not, reads pass through as well.
    is_enabled: bool,
    splitter: FrameSplitter,
    /// The bytes of the last read; empty if all are passed on.
    read: Vec<u8>,
    /// The range of `read` that is not passed on.
    unread: Range<usize>,
    /// Number of bytes read since the task last yielded.
    read_since_yield: usize,
}

/// The position in the sequence of frames.
#[derive(Debug)]
struct FrameSplitter {
    /// Number of bytes up to the next header that the transport sees.
    left: usize,
    /// The header of the frame that is being split, with the length that remains after the current part.
    rest: Option<[u8; HEADER_BYTES]>,
    /// A partially received header and its number of bytes.
    header: [u8; HEADER_BYTES],
    have: usize,
    /// The header to pass on, and its number of bytes that are not passed on.
    output_header: [u8; HEADER_BYTES],
    output_left: usize,
}

impl<IO> SmallFrames<IO> {
    /// Splits frames if `is_enabled`; otherwise all bytes pass through.
    pub(crate) fn new(io: IO, is_enabled: bool) -> Self {
        Self { io, is_enabled, splitter: FrameSplitter::new(), read: Vec::new(), unread: 0..0, read_since_yield: 0 }
    }

    /// Passes on what was read, as far as it fits.
    fn pass_on(&mut self, out: &mut ReadBuf<'_>) {
        self.unread.start += self.splitter.split(&self.read[self.unread.clone()], out);
        if self.unread.is_empty() && !self.read.is_empty() {
            self.unread = 0..0;
            READ_BUFFER.set(std::mem::take(&mut self.read));
        }
    }
}

fn length(header: &[u8; HEADER_BYTES]) -> usize {
    usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2])
}

#[expect(clippy::cast_possible_truncation, reason = "lengths have 24 bits")]
fn set_length(header: &mut [u8; HEADER_BYTES], length: usize) {
    header[..TYPE].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
}

impl FrameSplitter {
    fn new() -> Self {
        Self {
            left: PREFACE_BYTES,
            rest: None,
            header: [0; HEADER_BYTES],
            have: 0,
            output_header: [0; HEADER_BYTES],
            output_left: 0,
        }
    }

    /// Begins a frame with this header, split if it is a large data frame.
    fn begin(&mut self, mut header: [u8; HEADER_BYTES]) {
        let whole = length(&header);
        if header[TYPE] == DATA && header[FLAGS] & PADDED == 0 && whole > MAX_FRAME_PAYLOAD_BYTES {
            let mut rest = header;
            set_length(&mut rest, whole - MAX_FRAME_PAYLOAD_BYTES);
            self.rest = Some(rest);
            header[FLAGS] &= !END_STREAM;
            set_length(&mut header, MAX_FRAME_PAYLOAD_BYTES);
        }
        self.left = length(&header);
        (self.output_header, self.output_left) = (header, HEADER_BYTES);
    }

    /// Passes on bytes as far as they fit. Returns their number.
    fn split(&mut self, bytes: &[u8], out: &mut ReadBuf<'_>) -> usize {
        let mut at = 0;
        loop {
            if self.output_left > 0 {
                let now = self.output_left.min(out.remaining());
                let from = HEADER_BYTES - self.output_left;
                out.put_slice(&self.output_header[from..from + now]);
                self.output_left -= now;
                if self.output_left > 0 {
                    return at;
                }
            }
            if self.left > 0 {
                let now = self.left.min(bytes.len() - at).min(out.remaining());
                if now == 0 {
                    return at;
                }
                out.put_slice(&bytes[at..at + now]);
                at += now;
                self.left -= now;
                continue;
            }
            if let Some(rest) = self.rest.take() {
                self.begin(rest);
                continue;
            }
            if at == bytes.len() {
                return at;
            }
            let now = (HEADER_BYTES - self.have).min(bytes.len() - at);
            self.header[self.have..self.have + now].copy_from_slice(&bytes[at..at + now]);
            at += now;
            self.have += now;
            if self.have == HEADER_BYTES {
                self.have = 0;
                self.begin(self.header);
            }
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for SmallFrames<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.is_enabled {
            return Pin::new(&mut this.io).poll_read(cx, out);
        }
        let before = out.filled().len();
        loop {
            this.pass_on(out);
            if out.filled().len() > before || out.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if this.read_since_yield >= READ_BUFFER_BYTES {
                this.read_since_yield = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut into = READ_BUFFER.take();
            into.resize(READ_BUFFER_BYTES, 0);
            let mut read = ReadBuf::new(&mut into);
            let polled = Pin::new(&mut this.io).poll_read(cx, &mut read);
            let len = read.filled().len();
            if len == 0 {
                // There is nothing to read yet, an error, or the end; at the end a partial header is dropped.
                READ_BUFFER.set(into);
                this.read_since_yield = 0;
                return polled;
            }
            this.read_since_yield += len;
            (this.read, this.unread) = (into, 0..len);
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for SmallFrames<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = [0, 0, 0, kind, flags, 0, 0, 0, stream];
        set_length(&mut header, payload.len());
        [&header[..], payload].concat()
    }

    /// Type, flags, stream and payload of each frame after the preface.
    fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, u8, Vec<u8>)> {
        bytes = &bytes[PREFACE_BYTES..];
        let mut frames = Vec::new();
        while let Some((header, after)) = bytes.split_first_chunk::<HEADER_BYTES>() {
            let (payload, after) = after.split_at(length(header));
            frames.push((header[TYPE], header[FLAGS], header[HEADER_BYTES - 1], payload.to_vec()));
            bytes = after;
        }
        assert_eq!(bytes, [0_u8; 0], "no partial frame");
        frames
    }

    /// The bytes that the transport reads, if `arriving` bytes arrive at a time and it reads up to `max_read` bytes.
    async fn read(sent: &[u8], arriving: usize, max_read: usize) -> Vec<u8> {
        let (mut client, server) = tokio::io::duplex(arriving);
        let sent = sent.to_vec();
        tokio::spawn(async move { client.write_all(&sent).await });
        let mut small = SmallFrames::new(server, true);
        let (mut all, mut buffer) = (Vec::new(), vec![0; max_read]);
        loop {
            match small.read(&mut buffer).await.expect("a successful read") {
                0 => break,
                read => all.extend_from_slice(&buffer[..read]),
            }
        }
        assert_eq!(small.read.capacity(), 0, "the buffer is returned");
        all
    }

    #[tokio::test]
    async fn large_data_frames_are_split_and_other_frames_are_unchanged() {
        let payload: Vec<u8> =
            (0..3 * MAX_FRAME_PAYLOAD_BYTES + 100).map(|byte| u8::try_from(byte % 251).expect("a byte")).collect();
        let sent = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, &[]),
            frame(1, 4, 1, &payload),
            frame(DATA, END_STREAM, 1, &payload),
            frame(DATA, PADDED | END_STREAM, 3, &payload),
            frame(DATA, 0, 5, &payload[..2 * MAX_FRAME_PAYLOAD_BYTES]),
            frame(DATA, END_STREAM, 7, &payload[..MAX_FRAME_PAYLOAD_BYTES]),
            frame(DATA, END_STREAM, 9, &[]),
            frame(8, 0, 0, &[0, 0, 0, 1]),
        ];
        let cut = |flags: u8, stream: u8, payload: &[u8]| -> Vec<_> {
            let last = payload.len().div_ceil(MAX_FRAME_PAYLOAD_BYTES).saturating_sub(1);
            let chunks = payload.chunks(MAX_FRAME_PAYLOAD_BYTES).enumerate();
            chunks.map(|(at, of)| (DATA, if at == last { flags } else { 0 }, stream, of.to_vec())).collect()
        };
        let mut expected = vec![(4, 0, 0, vec![]), (1, 4, 1, payload.clone())];
        expected.extend(cut(END_STREAM, 1, &payload));
        expected.push((DATA, PADDED | END_STREAM, 3, payload.clone()));
        expected.extend(cut(0, 5, &payload[..2 * MAX_FRAME_PAYLOAD_BYTES]));
        expected.extend(cut(END_STREAM, 7, &payload[..MAX_FRAME_PAYLOAD_BYTES]));
        expected.extend([(DATA, END_STREAM, 9, vec![]), (8, 0, 0, vec![0, 0, 0, 1])]);
        let sent = sent.concat();
        for arriving in [1, 7, 9, 10, 4096, 4105, 5000, 8192, 16_384, sent.len()] {
            for max_read in [1, 8, 9, 1000, 4096, 8192, 65_536] {
                assert_eq!(
                    frames(&read(&sent, arriving, max_read).await),
                    expected,
                    "{arriving} bytes at a time, reads of {max_read} bytes"
                );
            }
        }
    }

    #[tokio::test]
    async fn reads_yield_to_the_transport_regularly() {
        let sent =
            [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(DATA, 0, 1, &vec![7; 4 * READ_BUFFER_BYTES])].concat();
        for arriving in [sent.len(), READ_BUFFER_BYTES / 2 + 1] {
            let (mut client, server) = tokio::io::duplex(arriving);
            let sent = sent.clone();
            tokio::spawn(async move { client.write_all(&sent).await });
            let mut small = SmallFrames::new(server, true);
            let mut buffer = vec![0; 8192];
            let (mut read, mut yields, mut all) = (0, 0, 0);
            while all < 4 * READ_BUFFER_BYTES {
                let mut out = ReadBuf::new(&mut buffer);
                let polled = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut small).poll_read(cx, &mut out))).await;
                if polled.is_pending() {
                    (read, yields) = (0, yields + 1);
                    tokio::task::yield_now().await;
                }
                read += out.filled().len();
                all += out.filled().len();
                assert!(read <= 2 * READ_BUFFER_BYTES, "{read} bytes without a yield");
            }
            assert!(yields >= 3, "{yields} yields, {arriving} bytes at a time");
        }
    }

    #[tokio::test]
    async fn end_within_a_header_ends_the_connection() {
        let sent = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])[..5].to_vec()].concat();
        assert_eq!(read(&sent, 3, 100).await.len(), PREFACE_BYTES);
    }

    #[tokio::test]
    async fn disabled_adapter_passes_frames_through() {
        let sent =
            [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(DATA, 0, 1, &vec![7; 3 * MAX_FRAME_PAYLOAD_BYTES])];
        let sent = sent.concat();
        let (mut client, server) = tokio::io::duplex(sent.len());
        let expected = sent.clone();
        tokio::spawn(async move { client.write_all(&sent).await });
        let mut read = Vec::new();
        SmallFrames::new(server, false).read_to_end(&mut read).await.expect("a successful read");
        assert_eq!(read, expected);
    }
}
