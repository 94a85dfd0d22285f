//! Decodes requests and encodes responses in either protocol.

use bytes::Bytes;

use crate::decode::DecodeError;
use crate::request::{Request, XdsProtocol};
use crate::response::Response;
use crate::wire::ResponseBuffer;
use crate::{delta, sotw};

impl Request {
    /// Decodes a request. Its names share the bytes.
    ///
    /// # Errors
    /// The bytes are not a request of the protocol.
    pub fn decode(protocol: XdsProtocol, bytes: &Bytes) -> Result<Self, DecodeError> {
        match protocol {
            XdsProtocol::Sotw => sotw::decode(bytes),
            XdsProtocol::Delta => delta::decode(bytes),
        }
    }
}

/// Encodes a response as a message of a gRPC body.
#[must_use]
pub fn encode(protocol: XdsProtocol, response: &Response) -> ResponseBuffer {
    match protocol {
        XdsProtocol::Sotw => sotw::encode(response),
        XdsProtocol::Delta => delta::encode(response),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use sluice_proto::envoy::config::core::v3::Node;
    use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
    use sluice_proto::google::rpc::Status;

    use super::*;
    use crate::request::Interest;
    use crate::version::Version;

    #[test]
    fn requests_encoded_by_prost_are_decoded() {
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
        let read = Request::decode(XdsProtocol::Sotw, &sotw.encode_to_vec().into()).expect("a request");
        assert_eq!((read.node, read.type_url.as_str(), read.nonce.as_str()), (node.clone(), "t", "n"));
        assert_eq!(read.error, Some((3, "bad".into())));
        let Interest::Exactly(names) = read.interest else { panic!("a state-of-the-world interest") };
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
        let read = Request::decode(XdsProtocol::Delta, &delta.encode_to_vec().into()).expect("a request");
        assert_eq!((read.node, read.type_url.as_str(), read.nonce.as_str(), read.error), (node, "t", "n", None));
        let Interest::Change { subscribe, unsubscribe, holds } = read.interest else { panic!("a delta interest") };
        assert!(subscribe.iter().eq(["a"]) && unsubscribe.iter().eq(["b"]));
        let mut holds: Vec<_> = holds.iter().collect();
        holds.sort_unstable();
        assert_eq!(holds, [("x", None), ("y", Version::parse("0123456789abcdef"))]);
    }

    #[test]
    fn malformed_requests_are_rejected() {
        let open_groups = [0x73; 101];
        for bytes in [
            &b"\x1a\x05ab"[..],
            b"\x1a\x02\xff\xfe",
            b"\x1a",
            &[0x80; 64],
            b"\x0b",
            b"\x0c",
            b"\x73\x7c",
            &open_groups,
            b"\x12\x01\x0a",
        ] {
            assert!(Request::decode(XdsProtocol::Sotw, &Bytes::copy_from_slice(bytes)).is_err(), "{bytes:?}");
        }
        // Unknown fields are skipped.
        let unknown = b"\xa0\x06\x01\xa1\x0612345678\xa5\x061234\xa2\x06\x01x\x73\x7b\x08\x01\x12\x01x\x7c\x74";
        assert!(Request::decode(XdsProtocol::Delta, &Bytes::from_static(unknown)).is_ok());
    }
}
