//! The fields of discovery messages that the agent reads, and the messages that it sends.

use bytes::Bytes;
use prost::Message as _;
use sluice_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use sluice_proto::google::rpc::Status;
use sluice_proto::wire;

use crate::health::Unhealthy;

/// State-of-the-world or incremental.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum XdsProtocol {
    Sotw,
    Delta,
}

/// The gRPC status code `INTERNAL`.
const INTERNAL: i32 = 13;

/// A response that the agent handles or rejects.
pub(super) struct AgentResponse {
    pub(super) version: String,
    pub(super) nonce: String,
    /// The first resource; types of the agent have only one.
    pub(super) resource: Option<Bytes>,
}

impl XdsProtocol {
    /// The type URL of a request.
    pub(super) fn request_type(self, request: &[u8]) -> &str {
        // The field numbers of `type_url` in both messages.
        text(request, if self == Self::Sotw { 4 } else { 2 })
    }

    /// The accepted version of a state-of-the-world request; empty before the first response, and for incremental requests.
    pub(super) fn accepted_version(self, request: &[u8]) -> &str {
        if self == Self::Sotw { text(request, 1) } else { "" }
    }

    /// The type URL of a response.
    pub(super) fn response_type(self, response: &[u8]) -> &str {
        text(response, 4)
    }

    /// A subscription to a type.
    pub(super) fn subscribe(self, type_url: &str) -> Bytes {
        self.request(type_url, "", "", None)
    }

    /// A report of the workload's health.
    pub(super) fn health(self, type_url: &str, health: &Result<(), Unhealthy>) -> Bytes {
        self.request(type_url, "", "", health.as_ref().err().map(ToString::to_string).as_deref())
    }

    /// Acknowledges a response (ACK), or rejects it with an error (NACK).
    pub(super) fn acknowledge(self, type_url: &str, response: &AgentResponse, error: Option<&str>) -> Bytes {
        self.request(type_url, &response.version, &response.nonce, error)
    }

    fn request(self, type_url: &str, version: &str, nonce: &str, error: Option<&str>) -> Bytes {
        let error_detail =
            error.map(|message| Status { code: INTERNAL, message: message.to_owned(), details: Vec::new() });
        let (type_url, response_nonce) = (type_url.to_owned(), nonce.to_owned());
        let bytes = match self {
            Self::Sotw => {
                let version_info = version.to_owned();
                DiscoveryRequest { type_url, response_nonce, version_info, error_detail, ..Default::default() }
                    .encode_to_vec()
            }
            Self::Delta => {
                DeltaDiscoveryRequest { type_url, response_nonce, error_detail, ..Default::default() }.encode_to_vec()
            }
        };
        bytes.into()
    }

    /// The part of a response that a rejection needs: its nonce. The caller sets the version that Envoy has.
    pub(super) fn nonce_of(self, response: &[u8]) -> AgentResponse {
        AgentResponse { version: String::new(), nonce: text(response, 5).to_owned(), resource: None }
    }

    /// Decodes a response for the agent; `None` if it is malformed.
    pub(super) fn decode(self, response: &[u8]) -> Option<AgentResponse> {
        match self {
            Self::Sotw => {
                let response = DiscoveryResponse::decode(response).ok()?;
                let resource = response.resources.into_iter().next().map(|any| Bytes::from(any.value));
                Some(AgentResponse { version: response.version_info, nonce: response.nonce, resource })
            }
            Self::Delta => {
                let response = DeltaDiscoveryResponse::decode(response).ok()?;
                let resource = response.resources.into_iter().find_map(|resource| resource.resource);
                let resource = resource.map(|any| Bytes::from(any.value));
                Some(AgentResponse { version: String::new(), nonce: response.nonce, resource })
            }
        }
    }
}

fn text(message: &[u8], field: u32) -> &str {
    wire::contents(message, field).last().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_is_read_without_decoding_the_message() {
        let sotw = DiscoveryRequest { type_url: "t".into(), version_info: "v".into(), ..Default::default() };
        assert_eq!(XdsProtocol::Sotw.request_type(&sotw.encode_to_vec()), "t");
        let delta = DeltaDiscoveryRequest { type_url: "t".into(), response_nonce: "n".into(), ..Default::default() };
        assert_eq!(XdsProtocol::Delta.request_type(&delta.encode_to_vec()), "t");
        let sotw = DiscoveryResponse { type_url: "t".into(), nonce: "n".into(), ..Default::default() };
        assert_eq!(XdsProtocol::Sotw.response_type(&sotw.encode_to_vec()), "t");
        let delta = DeltaDiscoveryResponse { type_url: "t".into(), nonce: "n".into(), ..Default::default() };
        assert_eq!(XdsProtocol::Delta.response_type(&delta.encode_to_vec()), "t");
        assert_eq!(XdsProtocol::Delta.response_type(b"\xff\xff"), "");
    }

    #[test]
    fn rejection_holds_nonce_and_reason() {
        let response = AgentResponse { version: "1".into(), nonce: "n".into(), resource: None };
        let nack = XdsProtocol::Sotw.acknowledge("t", &response, Some("bad"));
        let nack = DiscoveryRequest::decode(nack).expect("a request");
        assert_eq!((nack.type_url.as_str(), nack.response_nonce.as_str()), ("t", "n"));
        assert_eq!(nack.error_detail.map(|detail| detail.message).as_deref(), Some("bad"));
        let ack =
            DeltaDiscoveryRequest::decode(XdsProtocol::Delta.acknowledge("t", &response, None)).expect("a request");
        assert!(ack.error_detail.is_none() && ack.response_nonce == "n");
    }

    #[test]
    fn health_report_holds_an_error_if_unhealthy() {
        let healthy = DiscoveryRequest::decode(XdsProtocol::Sotw.health("h", &Ok(()))).expect("a request");
        assert!(healthy.error_detail.is_none());
        let unhealthy = DeltaDiscoveryRequest::decode(XdsProtocol::Delta.health("h", &Err(Unhealthy::NoCommand)))
            .expect("a request");
        assert_eq!(unhealthy.error_detail.map(|detail| detail.code), Some(INTERNAL));
    }
}
