//! The discovery messages that a simulated proxy reads and writes. Payloads stay slices of the received bytes.
//!
//! Numbers are those of envoy/service/discovery/v3/discovery.proto.

use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::google::rpc::Status;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Any {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) type_url: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

/// A `DeltaDiscoveryRequest` without subscribed names and held versions, which [`DeltaRequest::with`] adds.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeltaRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) node: Option<Node>,
    #[prost(string, tag = "2")]
    pub(crate) type_url: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) unsubscribe: Vec<String>,
    #[prost(string, tag = "6")]
    pub(crate) nonce: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) error: Option<Status>,
}

impl DeltaRequest {
    /// The encoded request with subscribed names, and with the names and versions of held resources.
    pub(crate) fn with<'a>(
        &self,
        subscribe: &SubscribeFields,
        held: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Vec<u8> {
        const INITIAL_RESOURCE_VERSIONS: u32 = 5;
        let mut out = Vec::with_capacity(self.encoded_len() + subscribe.0.len());
        // A vector grows as needed, so that this cannot fail.
        let _ = self.encode(&mut out);
        out.extend_from_slice(&subscribe.0);
        let field = |text: &str| 1 + encoded_len_varint(text.len() as u64) + text.len();
        for (name, version) in held {
            encode_key(INITIAL_RESOURCE_VERSIONS, WireType::LengthDelimited, &mut out);
            encode_varint((field(name) + field(version)) as u64, &mut out);
            put(1, name, &mut out);
            put(2, version, &mut out);
        }
        out
    }
}

/// Names that are subscribed, as fields of a delta request.
#[derive(Clone, Debug, Default)]
pub(crate) struct SubscribeFields(Vec<u8>);

impl SubscribeFields {
    pub(crate) fn add(&mut self, name: &str) {
        put(3, name, &mut self.0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The last large requests. Thousands of proxies send the same one, each with megabytes of names.
#[derive(Debug, Default)]
pub(crate) struct RecentRequests(Mutex<VecDeque<Bytes>>);

impl RecentRequests {
    /// A request of at least this size is large.
    const LARGE_REQUEST_BYTES: usize = 64 << 10;
    const MAX_REQUESTS: usize = 8;

    /// The request, shared with other proxies that sent the same one recently.
    pub(crate) fn share(&self, request: Vec<u8>) -> Bytes {
        if request.len() < Self::LARGE_REQUEST_BYTES {
            return request.into();
        }
        let mut recent = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(same) = recent.iter().find(|same| **same == request) {
            return same.clone();
        }
        let request = Bytes::from(request);
        recent.truncate(Self::MAX_REQUESTS - 1);
        recent.push_front(request.clone());
        request
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

#[cfg(test)]
mod tests {
    use sluice_proto::envoy::service::discovery::v3::DeltaDiscoveryRequest;

    use super::*;

    #[test]
    fn first_request_reports_held_versions() {
        let request = DeltaRequest { type_url: "t".into(), ..DeltaRequest::default() };
        let mut subscribe = SubscribeFields::default();
        subscribe.add("a");
        subscribe.add("b");
        let bytes = request.with(&subscribe, [("a", "1"), ("c", "22")].into_iter());
        let read = DeltaDiscoveryRequest::decode(&*bytes).expect("a request");
        assert_eq!((&*read.type_url, &read.resource_names_subscribe[..]), ("t", &["a".to_owned(), "b".to_owned()][..]));
        let held = [("a", "1"), ("c", "22")].map(|(name, version)| (name.to_owned(), version.to_owned()));
        assert_eq!(
            read.initial_resource_versions.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            held.into()
        );
    }

    #[test]
    fn equal_large_requests_share_memory() {
        let recent = RecentRequests::default();
        let big = |byte| vec![byte; RecentRequests::LARGE_REQUEST_BYTES];
        let first = recent.share(big(1));
        assert_eq!(recent.share(big(1)).as_ptr(), first.as_ptr());
        for byte in 2..10 {
            assert_eq!(recent.share(big(byte)), big(byte));
        }
        let again = recent.share(big(1));
        assert_ne!(again.as_ptr(), first.as_ptr(), "only the last requests are kept");
        assert_eq!(recent.share(vec![1]), [1].as_slice());
    }
}
