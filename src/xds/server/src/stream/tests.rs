//! Push permits of a stream: which responses wait for one.

use prost::Message as _;
use sluice_model::{ClientProfile, Layer, Proxy, Resource, ResourceKey, Scope};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};

use sluice_xds_protocol::{EpochChanges, Store, Version};

use super::*;
use crate::metrics::Metrics;
use crate::proxy_registry::{NodeError, ProxyInput};

/// Accepts any node.
struct AnyProxyInput;

impl ProxyInput for AnyProxyInput {
    fn parse(&self, node: &Node) -> Result<Proxy, NodeError> {
        Ok(Proxy { id: node.id.as_str().into(), ..Proxy::default() })
    }

    fn profile(&self, _: &Proxy) -> ClientProfile {
        ClientProfile::default()
    }

    fn set(&self, _: ProxyKey, _: Arc<Proxy>) {}

    fn add_secret_client(&self, _: ProxyKey) {}

    fn remove(&self, _: ProxyKey) {}
}

/// An epoch that sets this many resources of a type.
fn changes(kind: ResourceType, count: usize, content: &'static str) -> EpochChanges {
    let key =
        |number: usize| ResourceKey { resource_type: kind, layer: Layer::default(), name: number.to_string().into() };
    let set = |number| (key(number), Some(Resource::Encoded(Bytes::from_static(content.as_bytes()))));
    EpochChanges { resources: (0..count).map(set).collect(), ..EpochChanges::default() }
}

/// The stream of a configured proxy that subscribes to all listeners and endpoints, this many of each.
struct ConfiguredStream {
    store: Arc<Store>,
    stream: AdsStream,
    now: Instant,
}

impl ConfiguredStream {
    const KINDS: [ResourceType; 2] = [ResourceType::Endpoint, ResourceType::Listener];

    fn new(count: usize) -> Self {
        let store = Arc::new(Store::default());
        let layers = Self::KINDS.map(|kind| (kind, [Layer::default()].into())).into();
        let scope = Arc::new(Scope { layers, ..Scope::default() });
        let scopes = vec![(ProxyKey("web".into()), Some(scope))];
        store.apply(EpochChanges { scopes, ..EpochChanges::default() }, Instant::now());
        Self::KINDS.iter().for_each(|kind| store.apply(changes(*kind, count, "1"), Instant::now()));
        store.set_ready();
        let server = DiscoveryServer::new(store.clone(), Arc::new(AnyProxyInput), Metrics::default(), false);
        let stream = server.open(XdsProtocol::Delta, Caller::default()).expect("the store is ready");
        let mut stream = Self { store, stream, now: Instant::now() };
        for kind in Self::KINDS {
            stream.request(DeltaDiscoveryRequest {
                node: Some(Node { id: "web".into(), ..Node::default() }),
                type_url: kind.type_url().into(),
                resource_names_subscribe: (0..count).map(|number| number.to_string()).collect(),
                ..DeltaDiscoveryRequest::default()
            });
            assert_eq!(stream.permit_class(), Some(AdmissionClass::New), "its first responses");
            assert_eq!(stream.response(), Some((kind, count)));
        }
        assert_eq!((stream.response(), stream.permit_class()), (None, None));
        stream.now += CONFIGURED_AFTER;
        assert_eq!(stream.permit_class(), None);
        stream
    }

    fn request(&mut self, request: DeltaDiscoveryRequest) {
        let request = Request::decode(XdsProtocol::Delta, &request.encode_to_vec().into()).expect("a valid request");
        self.stream.request(request, self.now).expect("an accepted request");
    }

    fn permit_class(&mut self) -> Option<AdmissionClass> {
        self.stream.permit_class(self.now)
    }

    /// Acknowledges the next response. Returns its type and number of resources.
    fn response(&mut self) -> Option<(ResourceType, usize)> {
        let encoded = self.stream.poll_encoded(self.now)?;
        Some(self.acknowledge(encoded))
    }

    /// The same for a response that needs no permit.
    fn endpoints(&mut self) -> Option<(ResourceType, usize)> {
        let encoded = self.stream.poll_endpoints(self.now)?;
        Some(self.acknowledge(encoded))
    }

    fn acknowledge(&mut self, encoded: EncodedResponse) -> (ResourceType, usize) {
        let response = DeltaDiscoveryResponse::decode(encoded.bytes()).expect("a response");
        let kind = ResourceType::from_type_url(&response.type_url).expect("a known type");
        let (type_url, response_nonce) = (response.type_url, response.nonce);
        self.request(DeltaDiscoveryRequest { type_url, response_nonce, ..DeltaDiscoveryRequest::default() });
        (kind, response.resources.len())
    }
}

#[test]
fn large_change_needs_a_permit_and_small_change_does_not() {
    let mut stream = ConfiguredStream::new(2 * LARGE_RESPONSE_RESOURCES);
    let listeners = |count| Some((ResourceType::Listener, count));
    stream.store.apply(changes(ResourceType::Listener, LARGE_RESPONSE_RESOURCES, "2"), Instant::now());
    assert_eq!(
        (stream.permit_class(), stream.response()),
        (None, listeners(LARGE_RESPONSE_RESOURCES)),
        "a small change"
    );
    stream.store.apply(changes(ResourceType::Listener, LARGE_RESPONSE_RESOURCES + 1, "3"), Instant::now());
    assert_eq!(stream.permit_class(), Some(AdmissionClass::Configured));
    assert_eq!(stream.response(), listeners(LARGE_RESPONSE_RESOURCES + 1));
    assert_eq!((stream.response(), stream.permit_class()), (None, None), "all is sent");
}

#[test]
fn few_endpoints_are_sent_while_a_large_change_waits() {
    let mut stream = ConfiguredStream::new(2 * LARGE_RESPONSE_RESOURCES);
    stream.store.apply(changes(ResourceType::Listener, 2 * LARGE_RESPONSE_RESOURCES, "2"), Instant::now());
    assert_eq!(
        (stream.permit_class(), stream.endpoints()),
        (Some(AdmissionClass::Configured), None),
        "no endpoints changed"
    );
    for content in ["2", "3"] {
        stream.store.apply(changes(ResourceType::Endpoint, 1, content), Instant::now());
        assert_eq!(stream.endpoints(), Some((ResourceType::Endpoint, 1)));
    }
    assert_eq!(
        (stream.permit_class(), stream.endpoints()),
        (Some(AdmissionClass::Configured), None),
        "the listeners still wait"
    );
    stream.store.apply(changes(ResourceType::Endpoint, LARGE_RESPONSE_RESOURCES + 1, "4"), Instant::now());
    assert_eq!(stream.endpoints(), None, "many endpoints wait too");
    assert_eq!(stream.response(), Some((ResourceType::Endpoint, LARGE_RESPONSE_RESOURCES + 1)));
    assert_eq!(stream.response(), Some((ResourceType::Listener, 2 * LARGE_RESPONSE_RESOURCES)));
    assert_eq!((stream.response(), stream.permit_class()), (None, None), "all is sent");
}

#[test]
fn the_list_of_held_resources_is_dropped_where_the_client_holds_what_it_should() {
    let configured = ConfiguredStream::new(3);
    let keeps_list = |content: &str| {
        let held = (0..3).map(|number| (number.to_string(), Version::of(content.as_bytes()).to_string()));
        let request = DeltaDiscoveryRequest {
            node: Some(Node { id: "web".into(), ..Node::default() }),
            type_url: ResourceType::Listener.type_url().into(),
            initial_resource_versions: held.collect(),
            ..DeltaDiscoveryRequest::default()
        };
        let request = Request::decode(XdsProtocol::Delta, &request.encode_to_vec().into()).expect("a valid request");
        let mut stream = configured.stream.server().open(XdsProtocol::Delta, Caller::default()).expect("ready");
        stream.request(request, configured.now).expect("an accepted request");
        let keeps_list = stream.keeps_requests();
        let response = stream.poll(configured.now).expect("a response");
        (keeps_list, response.versions().len())
    };
    assert_eq!(keeps_list("1"), (false, 0));
    assert_eq!(keeps_list("2"), (true, 3), "resources that differ are sent");
}
