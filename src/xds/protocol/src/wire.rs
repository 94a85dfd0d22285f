//! The few protobuf and gRPC encodings that are written by hand, so that payloads stay shared.

use std::io::IoSlice;
use std::iter::Chain;
use std::{option, vec};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use smallvec::SmallVec;

/// Tag of a length-delimited field.
const fn tag(field: u8) -> u8 {
    (field << 3) | 2
}

/// Size of a varint.
const fn varint_len(value: usize) -> usize {
    let bits = usize::BITS - value.leading_zeros();
    if bits == 0 { 1 } else { bits.div_ceil(7) as usize }
}

/// Size of a length-delimited field with a tag of one byte.
#[must_use]
pub const fn field_len(value: usize) -> usize {
    1 + varint_len(value) + value
}

/// Writes a varint.
#[expect(clippy::cast_possible_truncation, reason = "seven bits are taken at a time")]
fn put_varint(mut value: usize, out: &mut BytesMut) {
    while value >= 0x80 {
        out.put_u8((value as u8) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Writes the tag and the length of a field whose value follows.
pub fn put_head(field: u8, len: usize, out: &mut BytesMut) {
    out.put_u8(tag(field));
    put_varint(len, out);
}

/// Writes a length-delimited field.
pub fn put_field(field: u8, value: &[u8], out: &mut BytesMut) {
    put_head(field, value.len(), out);
    out.put_slice(value);
}

/// Size of the flag and length that precede a message in a gRPC body.
pub const GRPC_PREFIX_BYTES: usize = 5;
/// Initial capacity of a response; most responses fit.
const INITIAL_BUFFER_BYTES: usize = 2048;

/// The chunks of a message in order.
pub type BufferChunks = Chain<option::IntoIter<Bytes>, vec::IntoIter<Bytes>>;

/// A message as a list of chunks. Small chunks are copied together, large ones stay shared.
#[derive(Debug, Default)]
pub struct ResponseBuffer {
    /// The first chunk, with space for the gRPC prefix if the message is a response.
    first: Option<BytesMut>,
    chunks: Vec<Bytes>,
    open: BytesMut,
    len: usize,
}

/// Chunks up to this size are copied instead of shared.
const MAX_COPIED_BYTES: usize = 4096;

impl ResponseBuffer {
    /// A buffer for a message of a gRPC body.
    #[must_use]
    pub fn response() -> Self {
        let mut open = BytesMut::with_capacity(INITIAL_BUFFER_BYTES);
        open.put_bytes(0, GRPC_PREFIX_BYTES);
        Self { open, ..Self::default() }
    }

    /// Size of the message in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the message has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends bytes; large ones stay shared.
    pub fn push(&mut self, bytes: Bytes) {
        self.len += bytes.len();
        if bytes.len() <= MAX_COPIED_BYTES {
            self.open.put_slice(&bytes);
            self.flush_above(4 * MAX_COPIED_BYTES);
        } else {
            self.flush_above(0);
            self.chunks.push(bytes);
        }
    }

    /// Appends what `write` writes to the buffer.
    pub fn write(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let before = self.open.len();
        write(&mut self.open);
        self.len += self.open.len() - before;
        self.flush_above(4 * MAX_COPIED_BYTES);
    }

    fn flush_above(&mut self, size: usize) {
        if self.open.len() > size {
            let chunk = self.open.split();
            match self.first {
                None if self.chunks.is_empty() => self.first = Some(chunk),
                _ => self.chunks.push(chunk.freeze()),
            }
        }
    }

    /// The chunks in order.
    pub fn finish(mut self) -> BufferChunks {
        self.flush_above(0);
        self.first.map(BytesMut::freeze).into_iter().chain(self.chunks)
    }

    /// The chunks of a [`Self::response`] with the gRPC prefix filled in; `None` if the message exceeds 4 GiB.
    #[must_use]
    pub fn finish_response(mut self) -> Option<BufferChunks> {
        let len = u32::try_from(self.len).ok()?;
        self.flush_above(0);
        if let Some(prefix) = self.first.as_mut().and_then(|first| first.get_mut(1..GRPC_PREFIX_BYTES)) {
            prefix.copy_from_slice(&len.to_be_bytes());
        }
        Some(self.finish())
    }
}

/// Several chunks that are passed to the transport as one HTTP/2 data frame. The transport keeps a fixed-size entry for each
/// buffer it holds, so one buffer for several chunks needs less memory than one for each.
#[derive(Debug, Default)]
pub struct ResponseFrame {
    chunks: SmallVec<[Bytes; 1]>,
    /// Index of the first chunk that is not completely sent.
    at: usize,
    /// Number of bytes that are not sent.
    left: usize,
}

impl ResponseFrame {
    /// Appends a chunk.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.left += chunk.len();
            self.chunks.push(chunk);
        }
    }
}

impl From<Bytes> for ResponseFrame {
    fn from(chunk: Bytes) -> Self {
        let mut frame = Self::default();
        frame.push(chunk);
        frame
    }
}

impl Buf for ResponseFrame {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.get(self.at).map_or(&[], |chunk| chunk)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let chunks = slices.iter_mut().zip(&self.chunks[self.at..]);
        chunks.map(|(slice, chunk)| *slice = IoSlice::new(chunk)).count()
    }

    fn advance(&mut self, mut sent: usize) {
        self.left = self.left.checked_sub(sent).expect("the transport sends at most what remains");
        while sent > 0 {
            let chunk = &mut self.chunks[self.at];
            if sent < chunk.len() {
                return chunk.advance(sent);
            }
            sent -= chunk.len();
            // The memory is released before the rest of the frame is sent.
            *chunk = Bytes::new();
            self.at += 1;
        }
    }
}

/// Size of a `google.protobuf.Any` whose value has this size.
#[must_use]
pub fn any_len(type_url: &str, value: usize) -> usize {
    field_len(type_url.len()) + field_len(value)
}

/// The field of a `google.protobuf.Any` with its value.
pub const ANY_VALUE: u8 = 2;

/// Writes a `google.protobuf.Any` as this field, up to [`ANY_VALUE`].
pub fn put_any_head(field: u8, type_url: &str, value: usize, out: &mut BytesMut) {
    const TYPE_URL: u8 = 1;
    put_head(field, any_len(type_url, value), out);
    put_field(TYPE_URL, type_url.as_bytes(), out);
}

/// Writes a resource in chunks as a length-delimited field.
pub(crate) fn put_chunks(field: u8, chunks: &[Bytes], buffer: &mut ResponseBuffer) {
    if let [one] = chunks
        && one.len() <= MAX_COPIED_BYTES
    {
        buffer.write(|out| put_field(field, one, out));
        return;
    }
    let len = chunks.iter().map(Bytes::len).sum();
    buffer.write(|out| put_head(field, len, out));
    for chunk in chunks {
        buffer.push(chunk.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_reads_as_the_concatenation_of_its_chunks() {
        let texts: [&'static str; 4] = ["ab", "", "cdefg", "h"];
        for taken in 1..=8 {
            let mut frame = ResponseFrame::default();
            texts.into_iter().for_each(|text| frame.push(Bytes::from_static(text.as_bytes())));
            let mut all = Vec::new();
            while frame.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 2];
                let filled = frame.chunks_vectored(&mut slices);
                let seen = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>();
                assert!(seen.starts_with(frame.chunk()) && !frame.chunk().is_empty());
                let now = taken.min(seen.len());
                all.extend_from_slice(&seen[..now]);
                frame.advance(now);
                assert_eq!(frame.remaining(), 8 - all.len());
            }
            assert_eq!(all, b"abcdefgh", "{taken} at a time");
            assert_eq!((frame.chunk(), frame.chunks_vectored(&mut [IoSlice::new(&[])])), (&[][..], 0));
        }
    }
}
