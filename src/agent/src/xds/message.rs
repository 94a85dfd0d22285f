//! The few fields of discovery messages that are looked at, and the messages the agent sends itself.

use bytes::Bytes;
use prost::Message as _;
use sluice_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use sluice_proto::google::rpc::Status;
use sluice_proto::wire;

/// State of the world or incremental.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Protocol {
    Sotw,
    Delta,
}

/// gRPC's code for an internal error.
const INTERNAL: i32 = 13;

/// A response to the agent itself.
pub(super) struct Answer {
    pub(super) version: String,
    pub(super) nonce: String,
    /// The first resource; there is never another of these types.
    pub(super) resource: Option<Bytes>,
}

impl Protocol {
    /// The type a request is about.
    pub(super) fn request_type(self, request: &[u8]) -> &str {
        // The numbers of the fields are those of the protocol.
        text(request, if self == Self::Sotw { 4 } else { 2 })
    }

    /// The version that a request takes, which only state of the world says; empty if there is none yet.
    pub(super) fn accepted_version(self, request: &[u8]) -> &str {
        if self == Self::Sotw { text(request, 1) } else { "" }
    }

    /// The type a response is about.
    pub(super) fn response_type(self, response: &[u8]) -> &str {
        text(response, 4)
    }

    /// Asks for a type.
    pub(super) fn subscribe(self, type_url: &str) -> Bytes {
        self.request(type_url, "", "", None)
    }

    /// Says that the workload is healthy, or why not.
    pub(super) fn health(self, type_url: &str, health: &Result<(), String>) -> Bytes {
        self.request(type_url, "", "", health.as_ref().err().map(String::as_str))
    }

    /// Takes or refuses an answer.
    pub(super) fn acknowledge(self, type_url: &str, answer: &Answer, error: Option<&str>) -> Bytes {
        self.request(type_url, &answer.version, &answer.nonce, error)
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

    /// What of a response has to be said to refuse it: its nonce. Which version is held is for others to say.
    pub(super) fn to_refuse(self, response: &[u8]) -> Answer {
        Answer { version: String::new(), nonce: text(response, 5).to_owned(), resource: None }
    }

    /// Reads a response that is for the agent; nothing if it is none.
    pub(super) fn answer(self, response: &[u8]) -> Option<Answer> {
        match self {
            Self::Sotw => {
                let response = DiscoveryResponse::decode(response).ok()?;
                let resource = response.resources.into_iter().next().map(|any| Bytes::from(any.value));
                Some(Answer { version: response.version_info, nonce: response.nonce, resource })
            }
            Self::Delta => {
                let response = DeltaDiscoveryResponse::decode(response).ok()?;
                let resource = response.resources.into_iter().find_map(|resource| resource.resource);
                let resource = resource.map(|any| Bytes::from(any.value));
                Some(Answer { version: String::new(), nonce: response.nonce, resource })
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
    fn types_are_found_without_decoding() {
        let sotw = DiscoveryRequest { type_url: "t".into(), version_info: "v".into(), ..Default::default() };
        assert_eq!(Protocol::Sotw.request_type(&sotw.encode_to_vec()), "t");
        let delta = DeltaDiscoveryRequest { type_url: "t".into(), response_nonce: "n".into(), ..Default::default() };
        assert_eq!(Protocol::Delta.request_type(&delta.encode_to_vec()), "t");
        let sotw = DiscoveryResponse { type_url: "t".into(), nonce: "n".into(), ..Default::default() };
        assert_eq!(Protocol::Sotw.response_type(&sotw.encode_to_vec()), "t");
        let delta = DeltaDiscoveryResponse { type_url: "t".into(), nonce: "n".into(), ..Default::default() };
        assert_eq!(Protocol::Delta.response_type(&delta.encode_to_vec()), "t");
        assert_eq!(Protocol::Delta.response_type(b"\xff\xff"), "");
    }

    #[test]
    fn an_answer_is_refused_with_its_nonce_and_the_reason() {
        let answer = Answer { version: "1".into(), nonce: "n".into(), resource: None };
        let refused = Protocol::Sotw.acknowledge("t", &answer, Some("bad"));
        let refused = DiscoveryRequest::decode(refused).expect("a request");
        assert_eq!((refused.type_url.as_str(), refused.response_nonce.as_str()), ("t", "n"));
        assert_eq!(refused.error_detail.map(|detail| detail.message).as_deref(), Some("bad"));
        let taken = DeltaDiscoveryRequest::decode(Protocol::Delta.acknowledge("t", &answer, None)).expect("a request");
        assert!(taken.error_detail.is_none() && taken.response_nonce == "n");
    }

    #[test]
    fn health_is_an_error_or_none() {
        let healthy = DiscoveryRequest::decode(Protocol::Sotw.health("h", &Ok(()))).expect("a request");
        assert!(healthy.error_detail.is_none());
        let ill = DeltaDiscoveryRequest::decode(Protocol::Delta.health("h", &Err("dead".into()))).expect("a request");
        assert_eq!(ill.error_detail.map(|detail| detail.code), Some(INTERNAL));
    }
}
