//! The header `:authority` of clients on a Unix socket.
//!
//! gRPC libraries of C++ and Python send the percent-encoded path of the socket, such as `etc%2Fistio%2Fproxy%2FXDS`. The server
//! rejects streams with such an authority, because a percent sign has no meaning there in HTTP. The agent does not read the
//! authority, so bytes that may be invalid are replaced in the received header, without a change of its length.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

/// Length of the text that a client sends first in HTTP/2 (RFC 9113, 3.4).
const PREFACE_BYTES: u32 = 24;
/// Length of the header of a frame (RFC 9113, 4.1).
const FRAME_HEADER_BYTES: usize = 9;
const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Length of the fields that the flag `PRIORITY` adds.
const PRIORITY_BYTES: u8 = 5;
const AUTHORITY: &[u8] = b":authority";
/// Index of `:authority` in the static table of HPACK (RFC 7541, appendix A).
const AUTHORITY_INDEX: u32 = 1;

/// A connection whose requests have a valid `:authority`.
pub(super) struct AuthorityStream {
    stream: UnixStream,
    frames: Frames,
}

impl AuthorityStream {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, frames: Frames::default() }
    }
}

impl Connected for AuthorityStream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for AuthorityStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.frames.replace(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AuthorityStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Position in the frames of a client.
struct Frames {
    /// Bytes that are passed on unchanged before the next frame header: the preface, or the payload of a frame without headers.
    skipped: u32,
    /// The frame header so far.
    header: Vec<u8>,
    /// Rest of the payload of a frame with headers.
    block: u32,
    /// Bytes at the start of that payload that are not headers; `None` before the length of the padding is read.
    prefix: Option<u8>,
    /// Length of the padding at its end.
    padding: u8,
    /// Whether the frame has fields of a priority.
    priority: bool,
    fields: Fields,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            skipped: PREFACE_BYTES,
            header: Vec::new(),
            block: 0,
            prefix: Some(0),
            padding: 0,
            priority: false,
            fields: Fields::default(),
        }
    }
}

impl Frames {
    /// Reads the next received bytes, and replaces those of authorities.
    fn replace(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            if self.skipped > 0 {
                let skipped = bytes.len().min(usize::try_from(self.skipped).unwrap_or(usize::MAX));
                self.skipped -= u32::try_from(skipped).unwrap_or(self.skipped);
                bytes = &mut bytes[skipped..];
                continue;
            }
            let (byte, rest) = bytes.split_at_mut(1);
            if self.block > 0 {
                self.block -= 1;
                self.in_block(&mut byte[0]);
            } else {
                self.header.push(byte[0]);
                if self.header.len() == FRAME_HEADER_BYTES {
                    self.begin();
                }
            }
            bytes = rest;
        }
    }

    /// Begins the frame whose header is complete.
    fn begin(&mut self) {
        let length = self.header[..3].iter().fold(0, |length, byte| length << 8 | u32::from(*byte));
        let (kind, flags) = (self.header[3], self.header[4]);
        self.header.clear();
        match kind {
            HEADERS => {
                self.block = length;
                self.padding = 0;
                self.priority = flags & PRIORITY != 0;
                let prefix = if self.priority { PRIORITY_BYTES } else { 0 };
                self.prefix = (flags & PADDED == 0).then_some(prefix);
                self.fields = Fields::default();
            }
            // It continues the headers of the frame before it.
            CONTINUATION => (self.block, self.prefix, self.padding) = (length, Some(0), 0),
            _ => self.skipped = length,
        }
    }

    fn in_block(&mut self, byte: &mut u8) {
        match &mut self.prefix {
            None => {
                self.padding = *byte;
                self.prefix = Some(if self.priority { PRIORITY_BYTES } else { 0 });
            }
            Some(0) if self.block >= u32::from(self.padding) => self.fields.read(byte),
            Some(0) => {}
            Some(prefix) => *prefix -= 1,
        }
    }
}

/// Position in a header block (RFC 7541, 6).
struct Fields {
    next: Part,
    /// The field is an authority.
    authority: bool,
}

impl Default for Fields {
    fn default() -> Self {
        Self { next: Part::Field, authority: false }
    }
}

/// What the next byte is.
enum Part {
    /// The start of a field.
    Field,
    /// A further byte of the index of a name, or of a field without a value.
    Index { value: Integer, has_value: bool },
    /// The start of the length of a text.
    Length { of_name: bool },
    /// A further byte of such a length.
    LengthRest { value: Integer, of_name: bool, compressed: bool },
    /// A byte of a name. The name so far is equal to the start of `:authority`.
    Name { left: u32, equal: Option<usize> },
    /// A byte of a value.
    Value { left: u32, compressed: bool },
}

/// An integer of several bytes (RFC 7541, 5.1). One that is too large is not read further: the server rejects it.
struct Integer {
    value: u32,
    shift: u32,
}

impl Integer {
    /// Adds a byte. Returns whether it is the last one.
    fn add(&mut self, byte: u8) -> bool {
        let digits = u32::from(byte & 0x7f).checked_shl(self.shift).unwrap_or_default();
        self.value = self.value.saturating_add(digits);
        self.shift += 7;
        byte & 0x80 == 0
    }
}

/// The number in the low bits of a byte; an error with a start if further bytes follow.
fn low_bits(byte: u8, bits: u8) -> Result<u32, Integer> {
    let max = (1_u8 << bits) - 1;
    match byte & max {
        value if value < max => Ok(value.into()),
        value => Err(Integer { value: value.into(), shift: 0 }),
    }
}

impl Fields {
    fn read(&mut self, byte: &mut u8) {
        self.next = match std::mem::replace(&mut self.next, Part::Field) {
            Part::Field => {
                // Indexed fields and changes of the size of the table have no value.
                let (bits, has_value) = match *byte {
                    0x80.. => (7, false),
                    0x40..=0x7f => (6, true),
                    0x20..=0x3f => (5, false),
                    _ => (4, true),
                };
                match low_bits(*byte, bits) {
                    Ok(index) => self.after_index(index, has_value),
                    Err(value) => Part::Index { value, has_value },
                }
            }
            Part::Index { mut value, has_value } => match value.add(*byte) {
                true => self.after_index(value.value, has_value),
                false => Part::Index { value, has_value },
            },
            Part::Length { of_name } => {
                let compressed = *byte & 0x80 != 0;
                match low_bits(*byte, 7) {
                    Ok(length) => self.after_length(length, of_name, compressed),
                    Err(value) => Part::LengthRest { value, of_name, compressed },
                }
            }
            Part::LengthRest { mut value, of_name, compressed } => match value.add(*byte) {
                true => self.after_length(value.value, of_name, compressed),
                false => Part::LengthRest { value, of_name, compressed },
            },
            Part::Name { left, equal } => {
                let equal = equal.filter(|at| AUTHORITY.get(*at) == Some(byte)).map(|at| at + 1);
                self.authority = equal == Some(AUTHORITY.len());
                if left > 1 { Part::Name { left: left - 1, equal } } else { Part::Length { of_name: false } }
            }
            Part::Value { left, compressed } => {
                let is_valid = byte.is_ascii_alphanumeric() || b".-_".contains(byte);
                if self.authority && !compressed && !is_valid {
                    *byte = b'-';
                }
                if left > 1 { Part::Value { left: left - 1, compressed } } else { Part::Field }
            }
        };
    }

    fn after_index(&mut self, index: u32, has_value: bool) -> Part {
        self.authority = index == AUTHORITY_INDEX;
        match (has_value, index) {
            (false, _) => Part::Field,
            (true, 0) => Part::Length { of_name: true },
            (true, _) => Part::Length { of_name: false },
        }
    }

    fn after_length(&mut self, left: u32, of_name: bool, compressed: bool) -> Part {
        match (of_name, left) {
            (true, 0) => Part::Length { of_name: false },
            (true, _) => Part::Name { left, equal: (!compressed).then_some(0) },
            (false, 0) => Part::Field,
            (false, _) => Part::Value { left, compressed },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("a length").to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// The bytes after the preface that the server reads, if they arrive in pieces of this length.
    fn read(frames: &[u8], piece: usize) -> Vec<u8> {
        let mut bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", frames].concat();
        let mut reader = Frames::default();
        bytes.chunks_mut(piece).for_each(|piece| reader.replace(piece));
        bytes.split_off(24)
    }

    /// A literal field with incremental indexing and a new name.
    fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
        let length = |text: &[u8]| u8::try_from(text.len()).expect("a length");
        [&[0x40, length(name)], name, &[length(value)], value].concat()
    }

    fn check(frames: &[u8], expected: &[u8]) {
        assert_eq!(frames.len(), expected.len());
        for piece in 1..=frames.len() {
            assert_eq!(read(frames, piece), expected, "in pieces of {piece} bytes");
        }
    }

    #[test]
    fn percent_signs_of_the_authority_are_replaced() {
        let block = |authority: &[u8]| {
            let fields = [
                literal(b":path", b"/a%2Fb"),
                literal(b":authority", authority),
                vec![0x83, 0x86, 0xff, 0x04],
                literal(b":authority-like", b"a%2Fb"),
            ];
            frame(HEADERS, 4, &fields.concat())
        };
        let data = frame(0, 0, &literal(b":authority", b"a%2Fb"));
        check(
            &[block(b"tmp%2Fa.b%2FXDS"), data.clone(), block(b"a%2FX")].concat(),
            &[block(b"tmp-2Fa.b-2FXDS"), data, block(b"a-2FX")].concat(),
        );
    }

    #[test]
    fn padded_continued_and_indexed_fields_are_read() {
        let long = vec![b'x'; 300];
        // The length 300 is 127 + 173; the index 1 of the static table is the name `:authority`.
        let of_name = [&[0x41, 0x7f, 0xad, 0x01], &*long].concat();
        let blocks = |sign: u8| {
            let value = [0x01, 4, b'a', sign, b'2', b'F'];
            let padded = [&[3, 0, 0, 0, 0, 9], &*of_name, &value[..3], &[b'%'; 3]].concat();
            [frame(HEADERS, PADDED | PRIORITY, &padded), frame(CONTINUATION, 4, &value[3..])].concat()
        };
        check(&blocks(b'%'), &blocks(b'-'));
    }

    #[test]
    fn compressed_values_are_unchanged() {
        let compressed = frame(HEADERS, 4, &[0x41, 0x83, b'%', b'%', b'%']);
        check(&compressed, &compressed);
    }

    #[test]
    fn integer_that_is_too_large_is_no_error() {
        let block = [&[0x7f][..], &[0xff; 20]].concat();
        check(&frame(HEADERS, 4, &block), &frame(HEADERS, 4, &block));
    }
}
