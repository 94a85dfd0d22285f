//! A client that follows the xDS protocol, without a network.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use prost::Message as _;
use sluice_auth::Caller;
use sluice_model::ResourceType;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use sluice_proto::google::rpc::Status;
use sluice_xds::AdsStream;
use sluice_xds_protocol::{Request, StreamError, XdsProtocol};

use super::fixture::{SIDECAR, SessionFixture};

/// A response of either protocol.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ReceivedResponse {
    pub(crate) type_url: String,
    pub(crate) nonce: String,
    pub(crate) version: String,
    /// Name, version, bytes. In state of the world, the name is read from the message.
    pub(crate) resources: Vec<(String, String, Bytes)>,
    pub(crate) removed: Vec<String>,
    /// Names that do not exist: resources without a message.
    pub(crate) unresolved: Vec<String>,
    /// Aliases of resources.
    pub(crate) aliases: BTreeMap<String, Vec<String>>,
}

impl ReceivedResponse {
    pub(crate) fn kind(&self) -> ResourceType {
        ResourceType::from_type_url(&self.type_url).expect("a known type")
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.resources.iter().map(|(name, ..)| name.as_str()).collect()
    }

    /// The response as `CDS +a +b -c`, for comparisons.
    pub(crate) fn text(&self) -> String {
        let name = ResourceType::from_type_url(&self.type_url).map_or("?", sluice_xds::short_name);
        let mut text = name.to_uppercase();
        for name in self.names() {
            text.push_str(&format!(" +{name}"));
        }
        for name in &self.removed {
            text.push_str(&format!(" -{name}"));
        }
        for name in &self.unresolved {
            text.push_str(&format!(" ?{name}"));
        }
        text
    }
}

pub(crate) struct ScriptedClient {
    pub(crate) protocol: XdsProtocol,
    stream: AdsStream,
    node: Option<Node>,
    /// The names of its subscriptions, of which one may be `*`; `None` is the wildcard that an empty list means.
    pub(crate) wants: BTreeMap<ResourceType, Option<BTreeSet<String>>>,
    /// The resources it holds: version and bytes.
    pub(crate) holds: BTreeMap<ResourceType, BTreeMap<String, (String, Bytes)>>,
    /// Nonce of the last response by type.
    nonces: BTreeMap<ResourceType, String>,
    /// Responses that it has not acknowledged or rejected.
    pub(crate) unanswered: VecDeque<ReceivedResponse>,
    pub(crate) now: Instant,
}

impl ScriptedClient {
    pub(crate) fn connect(mesh: &SessionFixture, protocol: XdsProtocol) -> Self {
        Self::connect_as(SIDECAR, mesh, protocol)
    }

    /// The client of a proxy.
    pub(crate) fn connect_as(proxy: &str, mesh: &SessionFixture, protocol: XdsProtocol) -> Self {
        let stream = mesh.server.open(protocol, Caller::default()).expect("the store is ready");
        Self {
            protocol,
            stream,
            node: Some(Node { id: proxy.into(), ..Node::default() }),
            wants: BTreeMap::new(),
            holds: BTreeMap::new(),
            nonces: BTreeMap::new(),
            unanswered: VecDeque::new(),
            now: Instant::now(),
        }
    }

    /// A gRPC library, which names each resource that it wants.
    pub(crate) fn connect_grpc(mesh: &SessionFixture, protocol: XdsProtocol) -> Self {
        let node = Node { id: SIDECAR.into(), cluster: "grpc".into(), ..Node::default() };
        Self { node: Some(node), ..Self::connect(mesh, protocol) }
    }

    /// The same client on a new stream, with the resources it holds.
    pub(crate) fn reconnect(self, mesh: &SessionFixture) -> Self {
        drop(self.stream);
        let fresh = Self::connect(mesh, self.protocol);
        let mut client = Self { holds: self.holds, ..fresh };
        for (kind, wants) in self.wants {
            client.subscribe(kind, wants);
        }
        client
    }

    /// The first request for a type.
    pub(crate) fn subscribe(&mut self, kind: ResourceType, wants: Option<BTreeSet<String>>) {
        let names: Vec<String> = wants.iter().flatten().cloned().collect();
        self.wants.insert(kind, wants);
        let held = self.holds.entry(kind).or_default();
        if self.protocol == XdsProtocol::Sotw {
            self.sotw(DiscoveryRequest {
                resource_names: names,
                type_url: kind.type_url().into(),
                ..DiscoveryRequest::default()
            })
        } else {
            let initial = held.iter().map(|(name, (version, _))| (name.clone(), version.clone())).collect();
            self.delta(DeltaDiscoveryRequest {
                type_url: kind.type_url().into(),
                resource_names_subscribe: names,
                initial_resource_versions: initial,
                ..DeltaDiscoveryRequest::default()
            })
        }
        .expect("a subscription");
    }

    pub(crate) fn want(&mut self, kind: ResourceType, names: &[&str]) {
        self.subscribe(kind, Some(names.iter().map(|name| (*name).to_owned()).collect()));
    }

    pub(crate) fn want_all(&mut self, kind: ResourceType) {
        self.subscribe(kind, None);
    }

    /// Changes the names of a subscription.
    pub(crate) fn change(&mut self, kind: ResourceType, add: &[&str], remove: &[&str]) {
        let Some(Some(names)) = self.wants.get_mut(&kind) else { panic!("{kind:?} is not subscribed by name") };
        names.extend(add.iter().map(|name| (*name).to_owned()));
        names.retain(|name| !remove.contains(&name.as_str()));
        let names: Vec<String> = names.iter().cloned().collect();
        let held = self.holds.entry(kind).or_default();
        held.retain(|name, _| !remove.contains(&name.as_str()));
        if self.protocol == XdsProtocol::Sotw {
            let nonce = self.nonces.get(&kind).cloned().unwrap_or_default();
            let request = DiscoveryRequest {
                resource_names: names,
                type_url: kind.type_url().into(),
                response_nonce: nonce,
                ..DiscoveryRequest::default()
            };
            self.sotw(request).expect("a change of names");
        } else {
            let request = DeltaDiscoveryRequest {
                type_url: kind.type_url().into(),
                resource_names_subscribe: add.iter().map(|name| (*name).to_owned()).collect(),
                resource_names_unsubscribe: remove.iter().map(|name| (*name).to_owned()).collect(),
                ..DeltaDiscoveryRequest::default()
            };
            self.delta(request).expect("a change of names");
        }
    }

    /// Requests names on demand, without a subscription.
    pub(crate) fn ask(&mut self, kind: ResourceType, names: &[&str]) {
        self.delta(DeltaDiscoveryRequest {
            type_url: kind.type_url().into(),
            resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
            ..DeltaDiscoveryRequest::default()
        })
        .expect("names on demand");
    }

    /// Receives the next response and applies it, without acknowledging it.
    pub(crate) fn receive(&mut self) -> Option<ReceivedResponse> {
        let bytes = self.stream.poll_encoded(self.now)?.bytes();
        Some(self.apply(bytes))
    }

    /// The same for endpoints, which are sent while other types wait for a push permit.
    pub(crate) fn receive_endpoints(&mut self) -> Option<ReceivedResponse> {
        let bytes = self.stream.poll_endpoints(self.now)?.bytes();
        Some(self.apply(bytes))
    }

    fn apply(&mut self, bytes: Bytes) -> ReceivedResponse {
        let response = match self.protocol {
            XdsProtocol::Sotw => {
                let response = DiscoveryResponse::decode(bytes).expect("a DiscoveryResponse");
                let resources = response.resources.into_iter().map(|any| {
                    assert_eq!(any.type_url, response.type_url);
                    (name_in(&any.value), String::new(), any.value.into())
                });
                ReceivedResponse {
                    resources: resources.collect(),
                    type_url: response.type_url,
                    nonce: response.nonce,
                    version: response.version_info,
                    removed: Vec::new(),
                    unresolved: Vec::new(),
                    aliases: BTreeMap::new(),
                }
            }
            XdsProtocol::Delta => {
                let mut response = DeltaDiscoveryResponse::decode(bytes).expect("a DeltaDiscoveryResponse");
                let empty = response.resources.extract_if(.., |resource| resource.resource.is_none());
                let unresolved = empty.map(|resource| {
                    assert_eq!(resource.aliases, [&*resource.name], "Envoy reads only the aliases");
                    resource.name
                });
                let unresolved = unresolved.collect();
                let aliases = response.resources.iter().map(|it| (it.name.clone(), it.aliases.clone())).collect();
                let resources = response.resources.into_iter().map(|resource| {
                    let any = resource.resource.expect("a resource");
                    assert_eq!(any.type_url, response.type_url);
                    (resource.name, resource.version, any.value.into())
                });
                ReceivedResponse {
                    resources: resources.collect(),
                    type_url: response.type_url,
                    nonce: response.nonce,
                    version: response.system_version_info,
                    removed: response.removed_resources,
                    unresolved,
                    aliases,
                }
            }
        };
        if let Some(kind) = ResourceType::from_type_url(&response.type_url) {
            self.nonces.insert(kind, response.nonce.clone());
            let held = self.holds.entry(kind).or_default();
            let named = self.wants.get(&kind).and_then(Option::as_ref);
            if self.protocol == XdsProtocol::Sotw && kind.is_wildcard() {
                held.clear();
            }
            for (name, version, bytes) in &response.resources {
                // A resource may be subscribed to by an alias, so every sent one is accepted.
                let on_demand = matches!(kind, ResourceType::Address | ResourceType::Workload);
                let part = name.rsplit_once('/').filter(|_| kind == ResourceType::VirtualHost);
                let is_in_subscribed_table =
                    |names: &BTreeSet<String>| part.is_some_and(|(whole, _)| names.contains(whole));
                let covers = |names: &BTreeSet<String>| names.contains("*") || names.contains(name);
                if on_demand || named.is_none_or(|names| covers(names) || is_in_subscribed_table(names)) {
                    held.insert(name.clone(), (version.clone(), bytes.clone()));
                }
            }
            for name in &response.removed {
                held.remove(name);
            }
        }
        self.unanswered.push_back(response.clone());
        response
    }

    /// Acknowledges the oldest response, or rejects it with a reason.
    pub(crate) fn answer(&mut self, error: Option<&str>) -> bool {
        let Some(response) = self.unanswered.pop_front() else { return false };
        self.answer_to(&response, error);
        true
    }

    pub(crate) fn answer_to(&mut self, response: &ReceivedResponse, error: Option<&str>) {
        let error_detail = error.map(|message| Status { code: 13, message: message.into(), ..Status::default() });
        if self.protocol == XdsProtocol::Sotw {
            let names = ResourceType::from_type_url(&response.type_url).and_then(|kind| self.wants.get(&kind));
            let request = DiscoveryRequest {
                version_info: response.version.clone(),
                resource_names: names.cloned().flatten().into_iter().flatten().collect(),
                type_url: response.type_url.clone(),
                response_nonce: response.nonce.clone(),
                error_detail,
                ..DiscoveryRequest::default()
            };
            self.sotw(request).expect("an answer");
        } else {
            let request = DeltaDiscoveryRequest {
                type_url: response.type_url.clone(),
                response_nonce: response.nonce.clone(),
                error_detail,
                ..DeltaDiscoveryRequest::default()
            };
            self.delta(request).expect("an answer");
        }
    }

    /// Receives and acknowledges responses until there are no more, and returns them.
    pub(crate) fn settle(&mut self) -> Vec<ReceivedResponse> {
        let mut all = Vec::new();
        loop {
            while self.answer(None) {}
            match self.receive() {
                Some(response) => all.push(response),
                None => return all,
            }
            assert!(all.len() < 1000, "the responses do not end");
        }
    }

    /// [`Self::settle`], as text.
    pub(crate) fn settled(&mut self) -> Vec<String> {
        self.settle().iter().map(ReceivedResponse::text).collect()
    }

    /// Receives responses until there are no more, without acknowledging them; as text.
    pub(crate) fn received(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.receive().map(|response| response.text())).collect()
    }

    pub(crate) fn sotw(&mut self, mut request: DiscoveryRequest) -> Result<(), StreamError> {
        request.node = self.node.take();
        self.stream.request(sotw(&request), self.now)
    }

    pub(crate) fn delta(&mut self, mut request: DeltaDiscoveryRequest) -> Result<(), StreamError> {
        request.node = self.node.take();
        self.stream.request(delta(&request), self.now)
    }
}

/// The request as the server reads it.
pub(crate) fn sotw(request: &DiscoveryRequest) -> Request {
    Request::decode(XdsProtocol::Sotw, &request.encode_to_vec().into()).expect("a request")
}

/// The request as the server reads it.
pub(crate) fn delta(request: &DeltaDiscoveryRequest) -> Request {
    Request::decode(XdsProtocol::Delta, &request.encode_to_vec().into()).expect("a request")
}

/// The name in a message: its first field in clusters, listeners, routes and the messages of tests.
fn name_in(message: &[u8]) -> String {
    #[derive(Clone, PartialEq, prost::Message)]
    struct NamedMessage {
        #[prost(string, tag = "1")]
        name: String,
    }
    NamedMessage::decode(message).expect("a message with a name").name
}

/// A test message that can stand for any type: field 1 is the name, field 2 the content.
pub(crate) fn message(name: &str, content: &str) -> Vec<u8> {
    #[derive(Clone, PartialEq, prost::Message)]
    struct TestMessage {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, tag = "1000")]
        content: String,
    }
    TestMessage { name: name.into(), content: content.into() }.encode_to_vec()
}
