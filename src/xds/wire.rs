//! The few protobuf and gRPC encodings that are written by hand, so that payloads stay shared.

use bytes::{BufMut, Bytes, BytesMut};

/// Tag of a length-delimited field.
pub(crate) const fn tag(field: u8) -> u8 {
    (field << 3) | 2
}

/// Size of a varint.
pub(crate) const fn varint_len(value: usize) -> usize {
    let bits = usize::BITS - value.leading_zeros();
    if bits == 0 { 1 } else { bits.div_ceil(7) as usize }
}

/// Size of a length-delimited field with a tag of one byte.
pub(crate) const fn field_len(value: usize) -> usize {
    1 + varint_len(value) + value
}

/// Writes a varint.
#[expect(clippy::cast_possible_truncation, reason = "seven bits are taken at a time")]
pub(crate) fn put_varint(mut value: usize, out: &mut BytesMut) {
    while value >= 0x80 {
        out.put_u8((value as u8) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Writes the tag and the length of a field whose value follows.
pub(crate) fn put_head(field: u8, len: usize, out: &mut BytesMut) {
    out.put_u8(tag(field));
    put_varint(len, out);
}

/// Writes a length-delimited field.
pub(crate) fn put_field(field: u8, value: &[u8], out: &mut BytesMut) {
    put_head(field, value.len(), out);
    out.put_slice(value);
}

/// Flag and length before a message in a gRPC body.
pub(crate) const PREFIX: usize = 5;
/// What most responses fit in.
const ROOM: usize = 2048;

/// A message in pieces: small ones are copied together, big ones stay shared.
#[derive(Debug, Default)]
pub(crate) struct Rope {
    /// The first piece, with room for the prefix if it is a response.
    first: Option<BytesMut>,
    pieces: Vec<Bytes>,
    open: BytesMut,
    len: usize,
}

/// Pieces up to this size are copied rather than sent as a frame of their own.
const COPIED: usize = 4096;

impl Rope {
    /// One that will be a message of a gRPC body.
    pub(crate) fn response() -> Self {
        let mut open = BytesMut::with_capacity(ROOM);
        open.put_bytes(0, PREFIX);
        Self { open, ..Self::default() }
    }

    /// Bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds bytes that are shared if it pays.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.len += bytes.len();
        if bytes.len() <= COPIED {
            self.open.put_slice(&bytes);
            self.flush_above(4 * COPIED);
        } else {
            self.flush_above(0);
            self.pieces.push(bytes);
        }
    }

    /// Adds what `write` appends to the buffer.
    pub(crate) fn write(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let before = self.open.len();
        write(&mut self.open);
        self.len += self.open.len() - before;
        self.flush_above(4 * COPIED);
    }

    fn flush_above(&mut self, size: usize) {
        if self.open.len() > size {
            let piece = self.open.split();
            match self.first {
                None if self.pieces.is_empty() => self.first = Some(piece),
                _ => self.pieces.push(piece.freeze()),
            }
        }
    }

    /// The pieces in order.
    pub(crate) fn finish(mut self) -> impl Iterator<Item = Bytes> {
        self.flush_above(0);
        self.first.map(BytesMut::freeze).into_iter().chain(self.pieces)
    }

    /// The pieces of the gRPC body's message that a [`Self::response`] is; nothing if it is too big for one.
    pub(crate) fn finish_response(mut self) -> Option<impl Iterator<Item = Bytes>> {
        let len = u32::try_from(self.len).ok()?;
        self.flush_above(0);
        if let Some(prefix) = self.first.as_mut().and_then(|first| first.get_mut(1..PREFIX)) {
            prefix.copy_from_slice(&len.to_be_bytes());
        }
        Some(self.finish())
    }
}
