//! Reading requests without copying their names.

use bytes::{Buf as _, Bytes};
use prost::Message;
use sluice_proto::google::rpc::Status;

use crate::xds::request::{Malformed, Name};

/// The length-delimited fields of a message in order, as pieces of its bytes; all others are skipped.
pub(crate) struct Cut {
    rest: Bytes,
}

impl Cut {
    pub(crate) fn new(message: &Bytes) -> Self {
        Self { rest: message.clone() }
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for (at, byte) in self.rest.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(at).unwrap_or(u32::MAX)).unwrap_or(0);
            if *byte < 0x80 {
                self.rest.advance(at + 1);
                return Ok(value);
            }
        }
        Err(Malformed("a number does not end"))
    }

    fn take(&mut self, len: u64) -> Result<Bytes, Malformed> {
        match usize::try_from(len) {
            Ok(len) if len <= self.rest.len() => Ok(self.rest.split_to(len)),
            _ => Err(Malformed("a field is longer than the message")),
        }
    }

    fn read(&mut self) -> Result<Option<(u64, Bytes)>, Malformed> {
        while self.rest.has_remaining() {
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

impl Iterator for Cut {
    type Item = Result<(u64, Bytes), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.rest.clear();
        }
        read.transpose()
    }
}

/// Reads the message in the bytes into `into`.
pub(crate) fn merge<M: Message>(into: &mut M, bytes: &Bytes) -> Result<(), Malformed> {
    into.merge(bytes.clone()).map_err(|_| Malformed("a message in it is no such message"))
}

pub(crate) fn name(bytes: Bytes) -> Result<Name, Malformed> {
    Name::new(bytes).map_err(|_| Malformed("a text is not UTF-8"))
}

pub(crate) fn text(bytes: &Bytes) -> Result<String, Malformed> {
    name(bytes.clone()).map(|name| name.as_str().to_owned())
}

/// Code and message of a `google.rpc.Status`.
pub(crate) fn error(bytes: &Bytes) -> Result<(i32, String), Malformed> {
    let mut status = Status::default();
    merge(&mut status, bytes)?;
    Ok((status.code, status.message))
}

#[cfg(test)]
mod tests {
    use sluice_proto::envoy::config::core::v3::Node;
    use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};

    use crate::xds::request::{Interest, Protocol, Request};

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
        assert_eq!(names.iter().map(Name::as_str).collect::<Vec<_>>(), ["a", "ü"]);

        let delta = DeltaDiscoveryRequest {
            node: node.clone(),
            type_url: "t".into(),
            resource_names_subscribe: vec!["a".into()],
            resource_names_unsubscribe: vec!["b".into()],
            initial_resource_versions: [("x".to_owned(), "1".to_owned())].into(),
            response_nonce: "n".into(),
            ..DeltaDiscoveryRequest::default()
        };
        let read = Request::decode(Protocol::Delta, &delta.encode_to_vec().into()).expect("a request");
        assert_eq!((read.node, read.type_url.as_str(), read.nonce.as_str(), read.error), (node, "t", "n", None));
        let Interest::Change { subscribe, unsubscribe, holds } = read.interest else { panic!("delta") };
        let name = |text: &str| Name::from(text.to_owned());
        assert_eq!((subscribe, unsubscribe, holds), (vec![name("a")], vec![name("b")], vec![(name("x"), name("1"))]));
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
