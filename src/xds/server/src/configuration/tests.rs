//! Subscriptions to configuration, without a stream.

use std::sync::Mutex;
use std::task::Waker;

use bytes::Bytes;
use prost::Message as _;
use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};
use sluice_xds_protocol::wire::GRPC_PREFIX_BYTES;

use super::*;

const ROUTES: &str = "networking.istio.io/v1/VirtualService";
const RULES: &str = "networking.istio.io/v1/DestinationRule";
/// A type that cannot be listed.
const BROKEN: &str = "networking.istio.io/v1/Sidecar";

/// Configuration in memory, for callers of one namespace.
struct MemoryStore {
    objects: Mutex<BTreeMap<&'static str, Arc<[NamedResource]>>>,
    version: watch::Sender<u64>,
}

impl MemoryStore {
    fn new() -> Self {
        Self { objects: Mutex::default(), version: watch::Sender::default() }
    }

    fn set(&self, type_url: &'static str, objects: &[(&str, &str)]) {
        let resource = |(name, content): &(&str, &str)| NamedResource {
            name: (*name).to_owned(),
            type_url: "type.googleapis.com/example".to_owned(),
            bytes: Bytes::copy_from_slice(content.as_bytes()),
        };
        self.objects.lock().expect("no panic").insert(type_url, objects.iter().map(resource).collect());
        self.version.send_modify(|version| *version += 1);
    }
}

impl ConfigurationStore for MemoryStore {
    fn has_type(&self, type_url: &str) -> bool {
        type_url.contains(".istio.io/")
    }

    fn authorize(&self, identity: Option<&Identity>) -> Result<(), StreamError> {
        match identity {
            None => Err(StreamError::Unauthenticated("anonymous".to_owned())),
            Some(identity) if identity.namespace == *"istio-system" => Ok(()),
            Some(_) => Err(StreamError::Denied("another namespace".to_owned())),
        }
    }

    fn list(&self, type_url: &str) -> ListedResources {
        if type_url == BROKEN {
            return Box::pin(std::future::ready(Err(StreamError::Unavailable("it cannot be listed".to_owned()))));
        }
        let found = self.objects.lock().expect("no panic").get(type_url).cloned();
        Box::pin(std::future::ready(Ok(found.unwrap_or_else(|| Arc::from([])))))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

/// Type, contents by name, and removed names of a response.
type Content = (String, Vec<(String, String)>, Vec<String>);

/// A stream of an authorized caller.
struct Client {
    store: MemoryStore,
    requests: ConfigurationRequests,
    protocol: XdsProtocol,
}

impl Client {
    fn new(protocol: XdsProtocol) -> Self {
        Self { store: MemoryStore::new(), requests: ConfigurationRequests::default(), protocol }
    }

    fn send(&mut self, type_url: &str, nonce: &str) {
        let identity = Some(Identity::new("cluster.local", "istio-system", "istiod"));
        let request = Request { type_url: type_url.to_owned(), nonce: nonce.to_owned(), ..Request::default() };
        self.requests.add(request, self.protocol, &self.store, identity).expect("accepted");
    }

    fn poll(&mut self) -> Option<NamedResponse> {
        match self.requests.poll(&mut Context::from_waker(Waker::noop()), &self.store) {
            Poll::Ready(response) => Some(response.expect("authorized")),
            Poll::Pending => None,
        }
    }

    /// The next response.
    fn next(&mut self) -> Option<Content> {
        let response = self.poll()?;
        let content =
            |resource: NamedResource| (resource.name, String::from_utf8(resource.bytes.to_vec()).expect("text"));
        Some((response.type_url, response.resources.into_iter().map(content).collect(), response.removed))
    }
}

fn owned(objects: &[(&str, &str)]) -> Vec<(String, String)> {
    objects.iter().map(|(name, content)| ((*name).to_owned(), (*content).to_owned())).collect()
}

#[test]
fn each_subscribed_type_has_a_response_and_a_further_one_when_its_objects_change() {
    let mut client = Client::new(XdsProtocol::Sotw);
    client.store.set(ROUTES, &[("shop/a", "1")]);
    client.send(ROUTES, "a made-up nonce");
    client.send(RULES, "");
    assert_eq!(client.next(), Some((RULES.to_owned(), Vec::new(), Vec::new())), "an empty list is answered");
    assert_eq!(client.next(), Some((ROUTES.to_owned(), owned(&[("shop/a", "1")]), Vec::new())));
    assert_eq!(client.next(), None);
    // Acknowledgements are not answered.
    client.send(ROUTES, "configuration-2");
    client.send(RULES, "configuration-1");
    assert_eq!(client.next(), None);

    let all = [("shop/a", "1"), ("shop/b", "2")];
    client.store.set(ROUTES, &all);
    assert_eq!(client.next(), Some((ROUTES.to_owned(), owned(&all), Vec::new())), "the rules have not changed");
    client.store.set(ROUTES, &all);
    assert_eq!(client.next(), None, "the objects are the same");
    client.send(ROUTES, "");
    assert_eq!(client.next(), Some((ROUTES.to_owned(), owned(&all), Vec::new())), "a new subscription");
}

#[test]
fn delta_response_has_the_difference() {
    let mut client = Client::new(XdsProtocol::Delta);
    client.store.set(ROUTES, &[("a", "1"), ("b", "1"), ("c", "1")]);
    client.send(ROUTES, "");
    assert_eq!(client.next().map(|(_, objects, _)| objects.len()), Some(3));
    client.store.set(ROUTES, &[("b", "2"), ("c", "1"), ("d", "1")]);
    let expected = (ROUTES.to_owned(), owned(&[("b", "2"), ("d", "1")]), vec!["a".to_owned()]);
    assert_eq!(client.next(), Some(expected));
    client.store.set(ROUTES, &[]);
    assert_eq!(client.next().map(|(_, _, removed)| removed), Some(vec!["b".into(), "c".into(), "d".into()]));
}

#[test]
fn caller_of_another_namespace_is_refused() {
    let store = MemoryStore::new();
    let mut requests = ConfigurationRequests::default();
    let mut send = |identity| {
        let request = Request { type_url: ROUTES.to_owned(), ..Request::default() };
        requests.add(request, XdsProtocol::Sotw, &store, identity)
    };
    assert!(matches!(send(None), Err(StreamError::Unauthenticated(_))));
    let shop = Identity::new("cluster.local", "shop", "istiod");
    assert!(matches!(send(Some(shop)), Err(StreamError::Denied(_))));
    assert!(requests.types.is_empty(), "nothing is subscribed");
}

#[test]
fn type_that_cannot_be_listed_ends_the_stream_without_an_empty_response() {
    let mut client = Client::new(XdsProtocol::Sotw);
    client.send(BROKEN, "");
    let response = client.requests.poll(&mut Context::from_waker(Waker::noop()), &client.store);
    assert!(matches!(response, Poll::Ready(Err(StreamError::Unavailable(_)))));
}

#[test]
fn stream_has_a_limited_number_of_types() {
    let mut client = Client::new(XdsProtocol::Sotw);
    for number in 0..MAX_CONFIGURATION_TYPES {
        client.send(&format!("networking.istio.io/v1/Kind{number}"), "");
    }
    let identity = Some(Identity::new("cluster.local", "istio-system", "istiod"));
    let request = Request { type_url: ROUTES.to_owned(), ..Request::default() };
    let refused = client.requests.add(request, XdsProtocol::Sotw, &client.store, identity);
    assert!(matches!(refused, Err(StreamError::Exhausted(_))));
}

#[test]
fn responses_are_encoded_in_both_protocols() {
    let response = |protocol| NamedResponse {
        protocol,
        type_url: ROUTES.to_owned(),
        nonce: "configuration-1".to_owned(),
        identifier: None,
        resources: vec![NamedResource {
            name: "shop/a".to_owned(),
            type_url: "type.googleapis.com/example".to_owned(),
            bytes: Bytes::from_static(b"content"),
        }],
        removed: vec!["shop/b".to_owned()],
    };
    let bytes = |protocol| {
        let message = response(protocol).encode().finish().collect::<Vec<_>>().concat();
        Bytes::from(message).split_off(GRPC_PREFIX_BYTES)
    };
    let sotw = DiscoveryResponse::decode(bytes(XdsProtocol::Sotw)).expect("a response");
    assert_eq!((sotw.type_url.as_str(), sotw.nonce.as_str()), (ROUTES, "configuration-1"));
    assert_eq!(sotw.resources[0].value, b"content");
    let delta = DeltaDiscoveryResponse::decode(bytes(XdsProtocol::Delta)).expect("a response");
    assert_eq!(delta.removed_resources, ["shop/b"]);
    assert_eq!(delta.resources[0].name, "shop/a");
    assert_eq!(delta.resources[0].resource.as_ref().map(|any| any.value.as_slice()), Some(&b"content"[..]));
}

#[test]
fn generator_is_read_from_the_metadata_of_the_node() {
    let node = |metadata: serde_json::Value| {
        let node = serde_json::json!({"id": "sidecar~1.2.3.4~a.b~b.svc.cluster.local", "metadata": metadata});
        sluice_proto::json::decode::<Node>(&node).expect("a node").message
    };
    assert!(selects_configuration(&node(serde_json::json!({"GENERATOR": "api"}))));
    assert!(!selects_configuration(&node(serde_json::json!({"GENERATOR": "event"}))));
    assert!(!selects_configuration(&node(serde_json::json!({}))));
}
