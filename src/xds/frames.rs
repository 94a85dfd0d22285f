//! What a client sends, in small frames.
//!
//! The transport keeps room for the biggest frame it was ever sent as long as the connection lasts, and every client's first
//! request has some of the biggest there may be. So it is shown big frames of data as several small ones, which mean the same.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most payload of a frame of data that the transport is shown. It reads into 8 KiB, and takes twice that when a frame
/// begins in the first half and does not fit after it: one of this size does, but for a few places. The biggest frames that
/// clients send are four of it.
const MOST: usize = 4096;
/// So much is read at a time. The transport hands on as much before it is given more: it keeps room for as many frames as it
/// ever held.
const READ: usize = 8 * MOST;
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

thread_local! {
    /// What the connections of a thread read into, one after the other.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A connection of HTTP/2 whose frames of data are read in small ones. What is written goes through as it is.
#[derive(Debug)]
pub(crate) struct SmallFrames<IO> {
    io: IO,
    cutter: Cutter,
    /// What was read; nothing once all of it has been passed on.
    read: Vec<u8>,
    /// Where in it what has not been passed on begins and ends.
    waiting: Range<usize>,
    /// Bytes read since the transport had its turn.
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
    /// A header that the transport is shown, and how many bytes of it it has not been.
    shown: [u8; HEADER],
    to_show: usize,
}

impl<IO> SmallFrames<IO> {
    pub(crate) fn new(io: IO) -> Self {
        Self { io, cutter: Cutter::new(), read: Vec::new(), waiting: 0..0, turn: 0 }
    }

    /// Passes on what was read, as far as there is room.
    fn pass_on(&mut self, room: &mut ReadBuf<'_>) {
        self.waiting.start += self.cutter.cut(&self.read[self.waiting.clone()], room);
        if self.waiting.is_empty() && !self.read.is_empty() {
            self.waiting = 0..0;
            ROOM.set(std::mem::take(&mut self.read));
        }
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
    fn new() -> Self {
        Self { left: PREFACE, rest: None, header: [0; HEADER], have: 0, shown: [0; HEADER], to_show: 0 }
    }

    /// Begins a frame with this header: what the transport is shown of it, and what is left for frames after that.
    fn begin(&mut self, mut header: [u8; HEADER]) {
        let whole = length(&header);
        if header[TYPE] == DATA && header[FLAGS] & PADDED == 0 && whole > MOST {
            let mut rest = header;
            set_length(&mut rest, whole - MOST);
            self.rest = Some(rest);
            header[FLAGS] &= !END_STREAM;
            set_length(&mut header, MOST);
        }
        self.left = length(&header);
        (self.shown, self.to_show) = (header, HEADER);
    }

    /// Passes bytes on as far as there is room; how many of them.
    fn cut(&mut self, bytes: &[u8], room: &mut ReadBuf<'_>) -> usize {
        let mut at = 0;
        loop {
            if self.to_show > 0 {
                let now = self.to_show.min(room.remaining());
                let from = HEADER - self.to_show;
                room.put_slice(&self.shown[from..from + now]);
                self.to_show -= now;
                if self.to_show > 0 {
                    return at;
                }
            }
            if self.left > 0 {
                let now = self.left.min(bytes.len() - at).min(room.remaining());
                if now == 0 {
                    return at;
                }
                room.put_slice(&bytes[at..at + now]);
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
            let now = (HEADER - self.have).min(bytes.len() - at);
            self.header[self.have..self.have + now].copy_from_slice(&bytes[at..at + now]);
            at += now;
            self.have += now;
            if self.have == HEADER {
                self.have = 0;
                self.begin(self.header);
            }
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for SmallFrames<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = room.filled().len();
        loop {
            this.pass_on(room);
            if room.filled().len() > before || room.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if this.turn >= READ {
                this.turn = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut into = ROOM.take();
            into.resize(READ, 0);
            let mut read = ReadBuf::new(&mut into);
            let polled = Pin::new(&mut this.io).poll_read(cx, &mut read);
            let len = read.filled().len();
            if len == 0 {
                // Nothing yet, an error, or the end; what there is of a header then is of no use to anybody.
                ROOM.set(into);
                this.turn = 0;
                return polled;
            }
            this.turn += len;
            (this.read, this.waiting) = (into, 0..len);
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
        assert_eq!(small.read.capacity(), 0, "the room for what was read is given back");
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
    async fn what_was_read_is_handed_on_before_there_is_more() {
        let sent = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(DATA, 0, 1, &vec![7; 4 * READ])].concat();
        for come in [sent.len(), READ / 2 + 1] {
            let (mut client, server) = tokio::io::duplex(come);
            let sent = sent.clone();
            tokio::spawn(async move { client.write_all(&sent).await });
            let mut small = SmallFrames::new(server);
            let mut buffer = vec![0; 8192];
            let (mut turn, mut turns, mut all) = (0, 0, 0);
            while all < 4 * READ {
                let mut room = ReadBuf::new(&mut buffer);
                let polled =
                    std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut small).poll_read(cx, &mut room))).await;
                if polled.is_pending() {
                    (turn, turns) = (0, turns + 1);
                    tokio::task::yield_now().await;
                }
                turn += room.filled().len();
                all += room.filled().len();
                assert!(turn <= 2 * READ, "{turn} bytes in one turn");
            }
            assert!(turns >= 3, "{turns} turns, {come} come at a time");
        }
    }

    #[tokio::test]
    async fn an_end_within_a_header_is_the_end() {
        let sent = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])[..5].to_vec()].concat();
        assert_eq!(read(&sent, 3, 100).await.len(), PREFACE);
    }
}
