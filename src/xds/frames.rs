//! What a client sends, in small frames.
//!
//! The transport keeps room for the biggest frame it was ever sent as long as the connection lasts, and every client's first
//! request has some of the biggest there may be. So it is shown big frames of data as several small ones, which mean the same.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most payload of a frame of data that the transport is shown. It reads into 8 KiB, and takes twice that when a frame
/// begins in the first half and does not fit after it: one this big does but for a few bytes of beginnings. The biggest frames that clients
/// send are four of it.
const MOST: usize = 4096;
/// After so many bytes the transport hands on what it has read: what it has not, it keeps room for, frame by frame.
const TURN: usize = 8 * MOST;
/// What a client says before its first frame.
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// Size of a frame's header: three bytes of length, then type, flags, and four of the stream.
const HEADER: usize = 9;
const TYPE: usize = 3;
const FLAGS: usize = 4;
/// The type of frames of data, and two of their flags (RFC 9113 §6.1).
const DATA: u8 = 0;
const END_STREAM: u8 = 1;
const PADDED: u8 = 8;

/// A connection of HTTP/2 whose frames of data are read in small ones. What is written goes through as it is.
#[derive(Debug)]
pub(crate) struct SmallFrames<IO> {
    io: IO,
    cutter: Cutter,
    /// What was read and cut, and has not been passed on: the tail of a read with a big frame in it.
    cut: Vec<u8>,
    /// How much of it has been passed on.
    passed: usize,
    /// Bytes passed on in this turn.
    turn: usize,
}

/// Where in the frames the reading is.
#[derive(Debug)]
struct Cutter {
    /// Bytes up to the next header that the transport sees.
    left: usize,
    /// The header of the frame that is being cut, with what length remains for frames after this one.
    rest: Option<[u8; HEADER]>,
    /// A header that has come in part, and how many bytes of it.
    header: [u8; HEADER],
    have: usize,
}

impl<IO> SmallFrames<IO> {
    pub(crate) fn new(io: IO) -> Self {
        let cutter = Cutter { left: PREFACE, rest: None, header: [0; HEADER], have: 0 };
        Self { io, cutter, cut: Vec::new(), passed: 0, turn: 0 }
    }
}

fn length(header: &[u8; HEADER]) -> usize {
    usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2])
}

#[expect(clippy::cast_possible_truncation, reason = "lengths have 24 bits")]
fn set_length(header: &mut [u8; HEADER], length: usize) {
    header[..TYPE].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
}

impl Cutter {
    /// The header that the transport sees of a frame with this one; what is left of the frame is remembered.
    fn begin(&mut self, mut header: [u8; HEADER]) -> [u8; HEADER] {
        let whole = length(&header);
        if header[TYPE] == DATA && header[FLAGS] & PADDED == 0 && whole > MOST {
            let mut rest = header;
            set_length(&mut rest, whole - MOST);
            self.rest = Some(rest);
            header[FLAGS] &= !END_STREAM;
            set_length(&mut header, MOST);
        }
        self.left = length(&header);
        header
    }

    /// Cuts what has been read where it lies, up to where something has to be put in: how much of it may be passed on.
    fn cut_in_place(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            let payload = self.left.min(bytes.len() - at);
            at += payload;
            self.left -= payload;
            if self.left > 0 || self.rest.is_some() {
                return at;
            }
            let Some(header) = bytes[at..].first_chunk_mut::<HEADER>() else { return at };
            *header = self.begin(*header);
            at += HEADER;
        }
    }

    /// Cuts what has been read, and appends what the transport is to see of it.
    fn cut(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        loop {
            if self.left == 0
                && let Some(rest) = self.rest.take()
            {
                let header = self.begin(rest);
                out.extend_from_slice(&header);
            }
            if bytes.is_empty() {
                return;
            }
            let wanted = if self.left > 0 { self.left } else { HEADER - self.have };
            let (taken, after) = bytes.split_at(wanted.min(bytes.len()));
            bytes = after;
            if self.left > 0 {
                out.extend_from_slice(taken);
                self.left -= taken.len();
                continue;
            }
            self.header[self.have..self.have + taken.len()].copy_from_slice(taken);
            self.have += taken.len();
            if self.have == HEADER {
                self.have = 0;
                let header = self.begin(self.header);
                out.extend_from_slice(&header);
            }
        }
    }
}

impl<IO: AsyncRead + Unpin> SmallFrames<IO> {
    fn poll_more(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let waiting = &self.cut[self.passed..];
            if !waiting.is_empty() {
                let now = waiting.len().min(buf.remaining());
                buf.put_slice(&waiting[..now]);
                self.passed += now;
                if self.passed == self.cut.len() {
                    (self.cut, self.passed) = (Vec::new(), 0);
                }
                return Poll::Ready(Ok(()));
            }
            if self.cutter.have > 0 {
                // The rest of a header cannot be read into what may have no room for all of it.
                let mut few = [0; HEADER];
                let mut few = ReadBuf::new(&mut few);
                ready!(Pin::new(&mut self.io).poll_read(cx, &mut few))?;
                if few.filled().is_empty() {
                    // The end, within a header: what there is of it is of no use to anybody.
                    return Poll::Ready(Ok(()));
                }
                self.cutter.cut(few.filled(), &mut self.cut);
                continue;
            }
            let before = buf.filled().len();
            ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
            let read = &mut buf.filled_mut()[before..];
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let ready = self.cutter.cut_in_place(read);
            self.cutter.cut(&read[ready..], &mut self.cut);
            buf.set_filled(before + ready);
            if ready > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for SmallFrames<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.turn >= TURN {
            this.turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = this.poll_more(cx, buf);
        this.turn = if polled.is_pending() { 0 } else { this.turn + buf.filled().len() - before };
        polled
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
        bytes = &bytes[PREFACE..];
        let mut frames = Vec::new();
        while let Some((header, after)) = bytes.split_first_chunk::<HEADER>() {
            let (payload, after) = after.split_at(length(header));
            frames.push((header[TYPE], header[FLAGS], header[HEADER - 1], payload.to_vec()));
            bytes = after;
        }
        assert_eq!(bytes, [0_u8; 0], "nothing is left over");
        frames
    }

    /// What the transport reads of these bytes, when they come so many at a time and it has room for so many.
    async fn read(sent: &[u8], come: usize, room: usize) -> Vec<u8> {
        let (mut client, server) = tokio::io::duplex(come);
        let sent = sent.to_vec();
        tokio::spawn(async move { client.write_all(&sent).await });
        let mut small = SmallFrames::new(server);
        let (mut all, mut buffer) = (Vec::new(), vec![0; room]);
        loop {
            match small.read(&mut buffer).await.expect("it is read") {
                0 => break,
                read => all.extend_from_slice(&buffer[..read]),
            }
        }
        assert_eq!(small.cut.capacity(), 0, "the room for what was cut is given back");
        all
    }

    #[tokio::test]
    async fn big_frames_of_data_come_as_small_ones_and_all_else_as_it_was() {
        let payload: Vec<u8> = (0..3 * MOST + 100).map(|byte| u8::try_from(byte % 251).expect("a byte")).collect();
        let sent = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, &[]),
            frame(1, 4, 1, &payload),
            frame(DATA, END_STREAM, 1, &payload),
            frame(DATA, PADDED | END_STREAM, 3, &payload),
            frame(DATA, 0, 5, &payload[..2 * MOST]),
            frame(DATA, END_STREAM, 7, &payload[..MOST]),
            frame(DATA, END_STREAM, 9, &[]),
            frame(8, 0, 0, &[0, 0, 0, 1]),
        ];
        let cut = |flags: u8, stream: u8, payload: &[u8]| -> Vec<_> {
            let last = payload.len().div_ceil(MOST).saturating_sub(1);
            let chunks = payload.chunks(MOST).enumerate();
            chunks.map(|(at, of)| (DATA, if at == last { flags } else { 0 }, stream, of.to_vec())).collect()
        };
        let mut expected = vec![(4, 0, 0, vec![]), (1, 4, 1, payload.clone())];
        expected.extend(cut(END_STREAM, 1, &payload));
        expected.push((DATA, PADDED | END_STREAM, 3, payload.clone()));
        expected.extend(cut(0, 5, &payload[..2 * MOST]));
        expected.extend(cut(END_STREAM, 7, &payload[..MOST]));
        expected.extend([(DATA, END_STREAM, 9, vec![]), (8, 0, 0, vec![0, 0, 0, 1])]);
        let sent = sent.concat();
        for come in [1, 7, 9, 10, 4096, 4105, 5000, 8192, 16_384, sent.len()] {
            for room in [1, 8, 9, 1000, 4096, 8192, 65_536] {
                assert_eq!(frames(&read(&sent, come, room).await), expected, "{come} at a time into room for {room}");
            }
        }
    }

    #[tokio::test]
    async fn an_end_within_a_header_is_the_end() {
        let sent = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])[..5].to_vec()].concat();
        assert_eq!(read(&sent, 3, 100).await.len(), PREFACE);
    }
}
