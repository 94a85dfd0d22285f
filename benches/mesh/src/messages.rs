//! The discovery messages with payloads that stay pieces of the received frame.
//!
//! Numbers are those of envoy/service/discovery/v3/discovery.proto.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::google::rpc::Status;

/// Its type is that of the response.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Any {
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

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
    #[prost(btree_map = "string, string", tag = "5")]
    pub(crate) holds: BTreeMap<String, String>,
    #[prost(string, tag = "6")]
    pub(crate) nonce: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) error: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeltaResource {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) resource: Option<Any>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
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
