//! The discovery messages with payloads that stay pieces of the received frame.
//!
//! Numbers are those of envoy/service/discovery/v3/discovery.proto.

use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::google::rpc::Status;

/// Its type is that of the response.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Any {
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

/// Without what is held, which [`DeltaRequest::first`] adds.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeltaRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) node: Option<Node>,
    #[prost(string, tag = "2")]
    pub(crate) type_url: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) subscribe: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) unsubscribe: Vec<String>,
    #[prost(string, tag = "6")]
    pub(crate) nonce: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) error: Option<Status>,
}

impl DeltaRequest {
    /// It, encoded, with more names that are subscribed and the names and versions of what is held.
    pub(crate) fn first<'a>(
        &self,
        subscribe: impl Iterator<Item = &'a str>,
        holds: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Vec<u8> {
        const SUBSCRIBE: u32 = 3;
        const HOLDS: u32 = 5;
        let mut out = self.encode_to_vec();
        for name in subscribe {
            put(SUBSCRIBE, name, &mut out);
        }
        let field = |text: &str| 1 + encoded_len_varint(text.len() as u64) + text.len();
        for (name, version) in holds {
            encode_key(HOLDS, WireType::LengthDelimited, &mut out);
            encode_varint((field(name) + field(version)) as u64, &mut out);
            put(1, name, &mut out);
            put(2, version, &mut out);
        }
        out
    }
}

/// Writes a text field.
fn put(field: u32, text: &str, out: &mut Vec<u8>) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeltaResource {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) version: Bytes,
    #[prost(message, optional, tag = "2")]
    pub(crate) resource: Option<Any>,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) name: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeltaResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) resources: Vec<DeltaResource>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) nonce: String,
    #[prost(string, repeated, tag = "6")]
    pub(crate) removed: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) node: Option<Node>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) names: Vec<String>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) nonce: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Response {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) resources: Vec<Any>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) nonce: String,
}

#[cfg(test)]
mod tests {
    use sluice_proto::envoy::service::discovery::v3::DeltaDiscoveryRequest;

    use super::*;

    #[test]
    fn a_first_request_has_what_is_held() {
        let request = DeltaRequest { type_url: "t".into(), ..DeltaRequest::default() };
        let bytes = request.first(["a", "b"].into_iter(), [("a", "1"), ("c", "22")].into_iter());
        let read = DeltaDiscoveryRequest::decode(&*bytes).expect("a request");
        assert_eq!((&*read.type_url, &read.resource_names_subscribe[..]), ("t", &["a".to_owned(), "b".to_owned()][..]));
        let holds = [("a", "1"), ("c", "22")].map(|(name, version)| (name.to_owned(), version.to_owned()));
        assert_eq!(
            read.initial_resource_versions.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            holds.into()
        );
    }
}
