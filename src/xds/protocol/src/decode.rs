//! Reads requests without copying their names.

use std::ops::Range;

use bytes::Bytes;
use prost::Message;

/// Groups in groups that are skipped, as in prost.
const MAX_GROUP_DEPTH: usize = 100;

/// The bytes are not a request of the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a discovery request: {0}")]
pub struct DecodeError(pub(crate) &'static str);

impl DecodeError {
    /// An entry of a map has another wire type than a message. prost reads the length of a message from it, other readers skip it.
    pub const WIRE_TYPE_OF_MAP: Self = Self("an entry of a map has another wire type than a message");
}

/// A slice of a request's bytes. It keeps the message that it is part of, so that names can share it.
#[derive(Clone, Copy)]
pub(crate) struct MessageSlice<'a> {
    message: &'a Bytes,
    start: usize,
    end: usize,
}

impl<'a> MessageSlice<'a> {
    pub(crate) fn new(message: &'a Bytes) -> Self {
        Self { message, start: 0, end: message.len() }
    }

    pub(crate) fn as_slice(&self) -> &'a [u8] {
        self.message.get(self.start..self.end).unwrap_or_default()
    }

    pub(crate) fn as_str(&self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.as_slice()).map_err(|_| DecodeError("a string is not UTF-8"))
    }

    /// Checks that the slice is UTF-8.
    pub(crate) fn check(&self) -> Result<(), DecodeError> {
        // Nearly all names are ASCII, and that check is faster.
        if self.as_slice().is_ascii() { Ok(()) } else { self.as_str().map(drop) }
    }

    /// The whole message.
    pub(crate) fn message(&self) -> &'a Bytes {
        self.message
    }

    /// The position of the slice in the message.
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    pub(crate) fn text(&self) -> Result<String, DecodeError> {
        self.as_str().map(str::to_owned)
    }

    /// The length-delimited fields of the protobuf message in this slice, in order; other fields are skipped.
    pub(crate) fn fields(&self) -> Fields<'a> {
        Fields { rest: *self, map: None }
    }

    /// The same of a message whose field `map` is a map.
    ///
    /// # Errors
    /// Also [`DecodeError::WIRE_TYPE_OF_MAP`]: a message would be another one for prost than for its client.
    pub(crate) fn fields_of_map(&self, map: u64) -> Fields<'a> {
        Fields { rest: *self, map: Some(map) }
    }
}

/// Iterator of [`MessageSlice::fields`] and [`MessageSlice::fields_of_map`].
pub(crate) struct Fields<'a> {
    rest: MessageSlice<'a>,
    map: Option<u64>,
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for (at, byte) in self.rest.as_slice().iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(at).unwrap_or(u32::MAX)).unwrap_or(0);
            if *byte < 0x80 {
                self.rest.start += at + 1;
                return Ok(value);
            }
        }
        Err(DecodeError("a varint is truncated"))
    }

    fn take(&mut self, len: u64) -> Result<MessageSlice<'a>, DecodeError> {
        match usize::try_from(len) {
            Ok(len) if len <= self.rest.end - self.rest.start => {
                let end = self.rest.start + len;
                let slice = MessageSlice { end, ..self.rest };
                self.rest.start = end;
                Ok(slice)
            }
            _ => Err(DecodeError("a field is longer than the message")),
        }
    }

    fn read(&mut self) -> Result<Option<(u64, MessageSlice<'a>)>, DecodeError> {
        while self.rest.start < self.rest.end {
            let key = self.varint()?;
            if key & 7 == 2 {
                let len = self.varint()?;
                return Ok(Some((key >> 3, self.take(len)?)));
            }
            if self.map == Some(key >> 3) {
                return Err(DecodeError::WIRE_TYPE_OF_MAP);
            }
            self.skip(key)?;
        }
        Ok(None)
    }

    /// Skips the rest of a field that is not length-delimited. Groups are skipped as in any protobuf reader.
    fn skip(&mut self, key: u64) -> Result<(), DecodeError> {
        let mut open = Vec::new();
        let mut key = key;
        loop {
            match key & 7 {
                0 => drop(self.varint()?),
                1 => drop(self.take(8)?),
                2 => {
                    let len = self.varint()?;
                    self.take(len)?;
                }
                3 if open.len() < MAX_GROUP_DEPTH => open.push(key >> 3),
                4 if open.last() == Some(&(key >> 3)) => drop(open.pop()),
                5 => drop(self.take(4)?),
                _ => return Err(DecodeError("a field has an unknown wire type, or a group does not end")),
            }
            if open.is_empty() {
                return Ok(());
            }
            key = self.varint()?;
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, MessageSlice<'a>), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.rest.start = self.rest.end;
        }
        read.transpose()
    }
}

/// Merges the protobuf message in the slice into `into`.
pub(crate) fn merge<M: Message>(into: &mut M, slice: MessageSlice<'_>) -> Result<(), DecodeError> {
    into.merge(slice.as_slice()).map_err(|_| DecodeError("a nested message is malformed"))
}

/// What is read of a `google.rpc.Status`: its details can take many times the bytes that they have in the request.
#[derive(Message)]
struct ReadStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Code and message of the `google.rpc.Status` in the slice.
pub(crate) fn error(slice: MessageSlice<'_>) -> Result<(i32, String), DecodeError> {
    let mut status = ReadStatus::default();
    merge(&mut status, slice)?;
    Ok((status.code, status.message))
}
