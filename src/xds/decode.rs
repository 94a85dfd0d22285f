//! Reading requests without copying their names.

use std::ops::Range;

use bytes::Bytes;
use prost::Message;
use sluice_proto::google::rpc::Status;

use crate::xds::request::Malformed;

/// A stretch of a request's bytes. What is kept of it later shares them.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    message: &'a Bytes,
    start: usize,
    end: usize,
}

impl<'a> Piece<'a> {
    pub(crate) fn new(message: &'a Bytes) -> Self {
        Self { message, start: 0, end: message.len() }
    }

    pub(crate) fn as_slice(&self) -> &'a [u8] {
        self.message.get(self.start..self.end).unwrap_or_default()
    }

    pub(crate) fn as_str(&self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.as_slice()).map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// Whether it is a text.
    pub(crate) fn check(&self) -> Result<(), Malformed> {
        // Names nearly always are ASCII, which is quicker to see.
        if self.as_slice().is_ascii() { Ok(()) } else { self.as_str().map(drop) }
    }

    /// The bytes it is a stretch of.
    pub(crate) fn message(&self) -> &'a Bytes {
        self.message
    }

    /// Where it is there.
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    pub(crate) fn text(&self) -> Result<String, Malformed> {
        self.as_str().map(str::to_owned)
    }

    /// The length-delimited fields of the message that it is, in order; all others are skipped.
    pub(crate) fn fields(&self) -> Fields<'a> {
        Fields { rest: *self }
    }
}

/// See [`Piece::fields`].
pub(crate) struct Fields<'a> {
    rest: Piece<'a>,
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for (at, byte) in self.rest.as_slice().iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(at).unwrap_or(u32::MAX)).unwrap_or(0);
            if *byte < 0x80 {
                self.rest.start += at + 1;
                return Ok(value);
            }
        }
        Err(Malformed("a number does not end"))
    }

    fn take(&mut self, len: u64) -> Result<Piece<'a>, Malformed> {
        match usize::try_from(len) {
            Ok(len) if len <= self.rest.end - self.rest.start => {
                let end = self.rest.start + len;
                let piece = Piece { end, ..self.rest };
                self.rest.start = end;
                Ok(piece)
            }
            _ => Err(Malformed("a field is longer than the message")),
        }
    }

    fn read(&mut self) -> Result<Option<(u64, Piece<'a>)>, Malformed> {
        while self.rest.start < self.rest.end {
            let key = self.varint()?;
            match key & 7 {
                0 => drop(self.varint()?),
                1 => drop(self.take(8)?),
                2 => {
                    let len = self.varint()?;
                    return Ok(Some((key >> 3, self.take(len)?)));
                }
                5 => drop(self.take(4)?),
                _ => return Err(Malformed("a field has no known form")),
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Piece<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.rest.start = self.rest.end;
        }
        read.transpose()
    }
}

/// Reads the message that the piece is into `into`.
pub(crate) fn merge<M: Message>(into: &mut M, piece: Piece<'_>) -> Result<(), Malformed> {
    into.merge(piece.as_slice()).map_err(|_| Malformed("a message in it is no such message"))
}

/// Code and message of a `google.rpc.Status`.
pub(crate) fn error(piece: Piece<'_>) -> Result<(i32, String), Malformed> {
    let mut status = Status::default();
    merge(&mut status, piece)?;
    Ok((status.code, status.message))
}

#[cfg(test)]
mod tests {
    use sluice_proto::envoy::config::core::v3::Node;
    use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};

    use crate::xds::request::{Interest, Protocol, Request};
    use crate::xds::version::Version;

    use super::*;

    #[test]
    fn requests_are_read_as_prost_wrote_them() {
        let node = Some(Node { id: "id".into(), cluster: "c".into(), ..Node::default() });
        let sotw = DiscoveryRequest {
            version_info: "v".into(),
            node: node.clone(),
            resource_names: vec!["a".into(), "ü".into()],
            type_url: "t".into(),
            response_nonce: "n".into(),
            error_detail: Some(Status { code: 3, message: "bad".into(), ..Status::default() }),
            ..DiscoveryRequest::default()
        };
        let read = Request::decode(Protocol::Sotw, &sotw.encode_to_vec().into()).expect("a request");
        assert_eq!((read.node, read.type_url.as_str(), read.nonce.as_str()), (node.clone(), "t", "n"));
        assert_eq!(read.error, Some((3, "bad".into())));
        let Interest::Exactly(names) = read.interest else { panic!("state of the world") };
        assert_eq!(names.iter().collect::<Vec<_>>(), ["a", "ü"]);

        let delta = DeltaDiscoveryRequest {
            node: node.clone(),
            type_url: "t".into(),
            resource_names_subscribe: vec!["a".into()],
            resource_names_unsubscribe: vec!["b".into()],
            initial_resource_versions: [("x", "1"), ("y", "0123456789abcdef")]
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .into(),
            response_nonce: "n".into(),
            ..DeltaDiscoveryRequest::default()
        };
        let read = Request::decode(Protocol::Delta, &delta.encode_to_vec().into()).expect("a request");
        assert_eq!((read.node, read.type_url.as_str(), read.nonce.as_str(), read.error), (node, "t", "n", None));
        let Interest::Change { subscribe, unsubscribe, holds } = read.interest else { panic!("delta") };
        assert!(subscribe.iter().eq(["a"]) && unsubscribe.iter().eq(["b"]));
        let mut holds: Vec<_> = holds.iter().collect();
        holds.sort_unstable();
        assert_eq!(holds, [("x", None), ("y", Version::parse("0123456789abcdef"))]);
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        for bytes in [&b"\x1a\x05ab"[..], b"\x1a\x02\xff\xfe", b"\x1a", &[0x80; 64], b"\x0b", b"\x12\x01\x0a"] {
            assert!(Request::decode(Protocol::Sotw, &Bytes::copy_from_slice(bytes)).is_err(), "{bytes:?}");
        }
        // Fields we do not know are skipped.
        let unknown = b"\xa0\x06\x01\xa1\x0612345678\xa5\x061234\xa2\x06\x01x";
        assert!(Request::decode(Protocol::Delta, &Bytes::from_static(unknown)).is_ok());
    }
}
