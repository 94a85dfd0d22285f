//! The few protobuf and gRPC encodings that are written by hand, so that payloads stay shared.

use std::io::IoSlice;
use std::iter::Chain;
use std::{option, vec};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use smallvec::SmallVec;

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

/// The pieces of a message in order.
pub(crate) type Finished = Chain<option::IntoIter<Bytes>, vec::IntoIter<Bytes>>;

/// A message in pieces: small ones are copied together, big ones stay shared.
#[derive(Debug, Default)]
pub(crate) struct Rope {
    /// The first piece, with room for the prefix if it is a response.
    first: Option<BytesMut>,
    pieces: Vec<Bytes>,
    open: BytesMut,
    len: usize,
}

/// What is up to this size is copied rather than shared as a piece of its own.
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
    pub(crate) fn finish(mut self) -> Finished {
        self.flush_above(0);
        self.first.map(BytesMut::freeze).into_iter().chain(self.pieces)
    }

    /// The pieces of the gRPC body's message that a [`Self::response`] is; nothing if it is too big for one.
    pub(crate) fn finish_response(mut self) -> Option<Finished> {
        let len = u32::try_from(self.len).ok()?;
        self.flush_above(0);
        if let Some(prefix) = self.first.as_mut().and_then(|first| first.get_mut(1..PREFIX)) {
            prefix.copy_from_slice(&len.to_be_bytes());
        }
        Some(self.finish())
    }
}

/// Shared bytes that the transport is handed in one: it cuts its frames across pieces, and keeps a place for a handful of them
/// where it would keep one for every piece.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pieces: SmallVec<[Bytes; 1]>,
    /// The first that has not all been sent.
    at: usize,
    /// Bytes that have not been sent.
    left: usize,
}

impl Pieces {
    /// Adds a piece.
    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.left += piece.len();
            self.pieces.push(piece);
        }
    }
}

impl From<Bytes> for Pieces {
    fn from(piece: Bytes) -> Self {
        let mut pieces = Self::default();
        pieces.push(piece);
        pieces
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.get(self.at).map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pieces = slices.iter_mut().zip(&self.pieces[self.at..]);
        pieces.map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, mut sent: usize) {
        self.left = self.left.checked_sub(sent).expect("no more is sent than there is");
        while sent > 0 {
            let piece = &mut self.pieces[self.at];
            if sent < piece.len() {
                return piece.advance(sent);
            }
            sent -= piece.len();
            // Nobody waits for the rest to give it back.
            *piece = Bytes::new();
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_one_text_however_it_is_taken() {
        let texts: [&'static str; 4] = ["ab", "", "cdefg", "h"];
        for taken in 1..=8 {
            let mut pieces = Pieces::default();
            texts.into_iter().for_each(|text| pieces.push(Bytes::from_static(text.as_bytes())));
            let mut all = Vec::new();
            while pieces.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 2];
                let filled = pieces.chunks_vectored(&mut slices);
                let seen = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>();
                assert!(seen.starts_with(pieces.chunk()) && !pieces.chunk().is_empty());
                let now = taken.min(seen.len());
                all.extend_from_slice(&seen[..now]);
                pieces.advance(now);
                assert_eq!(pieces.remaining(), 8 - all.len());
            }
            assert_eq!(all, b"abcdefgh", "{taken} at a time");
            assert_eq!((pieces.chunk(), pieces.chunks_vectored(&mut [IoSlice::new(&[])])), (&[][..], 0));
        }
    }
}
