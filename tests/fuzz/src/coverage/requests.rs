//! Bodies of gRPC requests, from frames to the responses of a stream.
//!
//! A body is a sequence of messages with their prefixes. The bytes arrive in frames of any size, as from a transport.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message as _;
use sluice_auth::Caller;
use sluice_model::{ClientProfile, Layer, Proxy, ProxyKey, Resource, ResourceKey, ResourceType, Scope, SegmentKey};
use sluice_proto::envoy::config::core::v3::{Extension, Node};
use sluice_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use sluice_proto::google::protobuf::value::Kind;
use sluice_proto::google::protobuf::{Any, ListValue, Struct, Value};
use sluice_proto::google::rpc::Status;
use sluice_xds::{AdsStream, DiscoveryServer, GrpcMessages, Metrics, NodeError, ProxyInput};
use sluice_xds_protocol::{DecodeError, EpochChanges, Interest, Request, Store, XdsProtocol};

use super::{CoverageTarget, of};
use crate::memory_bound::within_for_client;
use crate::rng::FuzzRng;
use crate::seeds::Seeds;
use crate::violation::{Violation, violation};

/// From this first byte, the others are choices; the lowest bit selects the protocol.
const CHOICES: u8 = 128;
/// Largest message that is read. A larger one would wait for its turn, which needs a runtime.
const MAX_MESSAGE_BYTES: usize = 60 << 10;
/// Number of small values in the metadata of a node: about 10 KiB.
const SMALL_VALUES: usize = 3000;
/// Largest number of responses to one request: one for each type and its endpoints, and removals.
const MAX_RESPONSES: usize = 64;
/// A smaller message has no node with too many values or extensions, which take at least two bytes each.
const MIN_REJECTED_NODE_BYTES: usize = 2 * 4096;
const NODE_ID: &str = "sidecar~10.0.0.1~web.shop~shop.svc.cluster.local";
const NAMES: [&str; 12] = [
    "*",
    "",
    "outbound|80||cart.shop.svc.cluster.local",
    "outbound|80||menu.shop.svc.cluster.local",
    "outbound|80||none.shop.svc.cluster.local",
    "80",
    "80/cart.shop.svc.cluster.local:80",
    "80/none.shop.svc.cluster.local:80",
    "kubernetes://shop/tls",
    "default",
    "Kubernetes//Pod/shop/web",
    "shop/cart.shop.svc.cluster.local",
];

/// Bodies of requests, or choices of requests, answers and changes.
pub(super) fn target(seeds: &'static Seeds) -> Result<CoverageTarget> {
    let nodes = seeds.cases.iter().flat_map(|case| &case.nodes).step_by(5);
    let nodes: Vec<Node> =
        nodes.filter_map(|node| Some(sluice_proto::json::decode::<Node>(node).ok()?.message)).collect();
    let check = move |first: u8, rest: &[u8]| {
        let protocol = if first.is_multiple_of(2) { XdsProtocol::Sotw } else { XdsProtocol::Delta };
        let mut stream = Stream::open(protocol)?;
        match first < CHOICES {
            true => within_for_client("requests", rest.len(), || stream.read_body(rest, usize::from(first / 2)))?,
            false => stream.play(&mut FuzzRng::of_bytes(rest)),
        }
    };
    let with_small_values = nodes.first().map(|node| Node { metadata: Some(small_values()), ..node.clone() });
    let mut bodies = [Vec::new(), Vec::new()];
    for node in nodes.into_iter().chain(with_small_values) {
        let sotw = |kind: ResourceType| DiscoveryRequest {
            node: Some(node.clone()),
            type_url: kind.type_url().to_owned(),
            resource_names: NAMES.iter().skip(2).map(|name| (*name).to_owned()).collect(),
            ..DiscoveryRequest::default()
        };
        let delta = |kind: ResourceType| DeltaDiscoveryRequest {
            node: Some(node.clone()),
            type_url: kind.type_url().to_owned(),
            resource_names_subscribe: NAMES.iter().map(|name| (*name).to_owned()).collect(),
            initial_resource_versions: [("a".to_owned(), "0123456789abcdef".to_owned())].into(),
            ..DeltaDiscoveryRequest::default()
        };
        let body = |messages: Vec<Vec<u8>>| messages.iter().flat_map(|message| framed(message)).collect::<Vec<u8>>();
        bodies[0].push(body(ResourceType::ALL.into_iter().map(|kind| sotw(kind).encode_to_vec()).collect()));
        bodies[0].push(body(vec![sotw(ResourceType::Cluster).encode_to_vec()]));
        bodies[1].push(body(ResourceType::ALL.into_iter().map(|kind| delta(kind).encode_to_vec()).collect()));
        bodies[1].push(body(vec![delta(ResourceType::Endpoint).encode_to_vec()]));
    }
    let [sotw, delta] = bodies;
    let target = of(check).with_seeds(0, sotw.clone()).with_seeds(40, sotw);
    let target = target.with_seeds(1, delta.clone()).with_seeds(41, delta);
    let words = NAMES.into_iter().chain(ResourceType::ALL.map(ResourceType::type_url)).chain([NODE_ID]);
    Ok(target.with_choices(CHOICES).with_choices(CHOICES + 1).with_words(words))
}

/// What the server reads of a node.
fn read_of_node(node: Node) -> Node {
    let Node { id, cluster, metadata, locality, extensions, .. } = node;
    let read = |Extension { name, disabled, .. }| Extension { name, disabled, ..Extension::default() };
    Node { id, cluster, metadata, locality, extensions: extensions.into_iter().map(read).collect(), ..Node::default() }
}

/// Metadata with many small values: each takes 2 bytes of a message, and many times as much in memory.
fn small_values() -> Struct {
    let list = ListValue { values: vec![Value::default(); SMALL_VALUES] };
    let fields = (0..SMALL_VALUES / 8).map(|number| (number.to_string(), Value::default()));
    let list = Value { kind: Some(Kind::ListValue(list)) };
    Struct { fields: fields.chain([("VALUES".to_owned(), list)]).collect() }
}

/// A message of a gRPC body.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0], &length[..], message].concat()
}

/// Gives each proxy that connects a scope with all resources.
struct SharedScope(Weak<Store>);

impl ProxyInput for SharedScope {
    fn parse(&self, node: &Node) -> Result<Proxy, NodeError> {
        sluice_parse::parse_proxy(node, &BTreeMap::new()).map_err(|error| NodeError::Invalid(error.to_string()))
    }

    fn profile(&self, _: &Proxy) -> ClientProfile {
        ClientProfile::default()
    }

    fn set(&self, key: ProxyKey, proxy: Arc<Proxy>) {
        let layers = ResourceType::ALL.map(|kind| (kind, [Layer::default()].into()));
        let scope = Scope { layers: layers.into(), identity: proxy.identity.clone(), ..Scope::default() };
        if let Some(store) = self.0.upgrade() {
            store.apply(
                EpochChanges { scopes: vec![(key, Some(scope.into()))], ..EpochChanges::default() },
                Instant::now(),
            );
        }
    }

    fn add_secret_client(&self, _: ProxyKey) {}

    fn remove(&self, _: ProxyKey) {}
}

/// A stream, and what its client has requested and received.
struct Stream {
    protocol: XdsProtocol,
    server: Arc<DiscoveryServer>,
    ads: AdsStream,
    now: Instant,
    requested: BTreeSet<String>,
    nonces: BTreeSet<String>,
    /// The last nonce of each type that is not answered.
    unanswered: BTreeMap<String, String>,
    /// Number of responses.
    responses: usize,
}

impl Stream {
    fn open(protocol: XdsProtocol) -> Result<Self, Violation> {
        let store = Arc::new(Store::default());
        store.apply(resources(0), Instant::now());
        store.set_ready();
        let input = Arc::new(SharedScope(Arc::downgrade(&store)));
        let server = DiscoveryServer::new(store, input, Metrics::default(), false);
        let caller = Caller::default();
        let ads = server.open(protocol, caller);
        let ads = ads.or_else(|error| violation("a stream is refused", error.to_string()))?;
        Ok(Self {
            protocol,
            server,
            ads,
            now: Instant::now(),
            requested: BTreeSet::new(),
            nonces: BTreeSet::new(),
            unanswered: BTreeMap::new(),
            responses: 0,
        })
    }

    /// Reads a body that arrives in frames of `size` bytes; 0 for one frame. Returns whether there was a response.
    fn read_body(&mut self, body: &[u8], size: usize) -> Result<bool, Violation> {
        let size = if size == 0 { body.len().max(1) } else { size };
        let frames = body.chunks(size).map(|frame| Ok::<_, tonic::Status>(Frame::data(Bytes::copy_from_slice(frame))));
        let frames = futures::stream::iter(frames.collect::<Vec<_>>());
        let mut messages = GrpcMessages::of_body(StreamBody::new(frames), MAX_MESSAGE_BYTES);
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Ok(Some(message))) = messages.poll_next(&mut cx) {
            if !self.read_message(&message)? {
                break;
            }
        }
        Ok(self.responses > 0)
    }

    /// Reads a message and all responses to it. Returns false if the stream ends.
    fn read_message(&mut self, message: &Bytes) -> Result<bool, Violation> {
        let request = Request::decode(self.protocol, message);
        self.compare_with_prost(message, &request)?;
        let Ok(request) = request else { return Ok(false) };
        let type_url = request.type_url.clone();
        if self.ads.request(request, self.now).is_err() {
            return Ok(false);
        }
        self.requested.insert(type_url);
        self.receive()?;
        Ok(true)
    }

    /// Whatever prost decodes, the reader of requests decodes as the same request, with what is read of the node. Rejected are nodes
    /// with very many values, and with entries of maps that prost alone reads.
    fn compare_with_prost(&self, message: &Bytes, request: &Result<Request, DecodeError>) -> Result<(), Violation> {
        let (node, type_url, nonce, names) = match self.protocol {
            XdsProtocol::Sotw => {
                let Ok(read) = DiscoveryRequest::decode(message.as_ref()) else { return Ok(()) };
                (read.node, read.type_url, read.response_nonce, read.resource_names)
            }
            XdsProtocol::Delta => {
                let Ok(read) = DeltaDiscoveryRequest::decode(message.as_ref()) else { return Ok(()) };
                (read.node, read.type_url, read.response_nonce, read.resource_names_subscribe)
            }
        };
        let request = match request {
            Ok(request) => request,
            Err(_) if message.len() > MIN_REJECTED_NODE_BYTES => return Ok(()),
            Err(DecodeError::WIRE_TYPE_OF_MAP) => return Ok(()),
            Err(error) => {
                return violation("a request is rejected that prost decodes", format!("{error}: {message:?}"));
            }
        };
        // Numbers that are NaN are equal only as bytes.
        let encoded = |node: &Option<Node>| node.as_ref().map(sluice_proto::wire::encode);
        let node = encoded(&node.map(read_of_node));
        let own = match &request.interest {
            Interest::Exactly(names) | Interest::Change { subscribe: names, .. } => names,
        };
        if (encoded(&request.node), &request.type_url, &request.nonce) != (node, &type_url, &nonce)
            || !own.iter().eq(names.iter().map(String::as_str))
        {
            return violation("a request is decoded as another one than by prost", format!("{request:?}"));
        }
        Ok(())
    }

    /// Receives all responses, and checks each of them.
    fn receive(&mut self) -> Result<(), Violation> {
        for _ in 0..MAX_RESPONSES {
            let Some(response) = self.ads.poll_encoded(self.now) else { return Ok(()) };
            self.responses += 1;
            let bytes = response.bytes();
            let (type_url, nonce, items) = match self.protocol {
                XdsProtocol::Sotw => {
                    let Ok(read) = DiscoveryResponse::decode(bytes) else {
                        return violation("a response does not decode", String::new());
                    };
                    (read.type_url, read.nonce, read.resources)
                }
                XdsProtocol::Delta => {
                    let Ok(read) = DeltaDiscoveryResponse::decode(bytes) else {
                        return violation("a response does not decode", String::new());
                    };
                    let items = read.resources.into_iter().filter_map(|resource| resource.resource);
                    (read.type_url, read.nonce, items.collect::<Vec<Any>>())
                }
            };
            if !self.requested.contains(&type_url) {
                return violation("a response has a type that was not requested", type_url);
            }
            if items.iter().any(|item| item.type_url != type_url) {
                return violation("a resource has another type than its response", type_url);
            }
            if nonce.is_empty() || !self.nonces.insert(nonce.clone()) {
                return violation("a nonce is empty or used twice", format!("{type_url} {nonce:?}"));
            }
            self.unanswered.insert(type_url, nonce);
        }
        violation("responses without end", format!("{:?}", self.unanswered))
    }

    /// Plays requests, answers and changes of resources. At the end all responses are acknowledged, and no more follow.
    fn play(&mut self, rng: &mut FuzzRng) -> Result<bool, Violation> {
        for step in 0..=rng.below(24) {
            let is_open = match rng.below(8) {
                0 if step > 0 => {
                    self.server.store().apply(resources(1 + rng.below(255)), self.now);
                    true
                }
                1 if step > 0 => {
                    self.now += Duration::from_secs(1 + rng.below(10) as u64);
                    true
                }
                _ => self.send(step == 0 || rng.once_in(32), rng)?,
            };
            if !is_open {
                return Ok(false);
            }
            self.receive()?;
        }
        for _ in 0..8 {
            let unanswered = std::mem::take(&mut self.unanswered);
            if unanswered.is_empty() {
                return Ok(self.responses > 0);
            }
            for (type_url, nonce) in unanswered {
                // An acknowledgement of state of the world repeats the names, which this test does not keep.
                if self.protocol == XdsProtocol::Sotw {
                    continue;
                }
                let ack = DeltaDiscoveryRequest { type_url, response_nonce: nonce, ..Default::default() };
                self.read_message(&ack.encode_to_vec().into())?;
            }
        }
        violation("acknowledgements are answered without end", format!("{:?}", self.unanswered))
    }

    /// Sends a random request, often an answer to a response.
    fn send(&mut self, with_node: bool, rng: &mut FuzzRng) -> Result<bool, Violation> {
        let kind = rng.choose(&ResourceType::ALL).copied().unwrap_or(ResourceType::Cluster);
        let type_url = if rng.once_in(24) { "type.example/unknown".to_owned() } else { kind.type_url().to_owned() };
        let nonce = match rng.below(4) {
            0 => String::new(),
            1 => self.nonces.first().cloned().unwrap_or_default(),
            _ => self.unanswered.remove(&type_url).unwrap_or_default(),
        };
        let error = (!nonce.is_empty() && rng.once_in(4)).then(|| Status {
            code: 3,
            message: "no".into(),
            ..Status::default()
        });
        let node = with_node.then(|| Node { id: NODE_ID.to_owned(), ..Node::default() });
        let mut names = || -> Vec<String> {
            (0..rng.below(4)).filter_map(|_| rng.choose(&NAMES)).map(|name| (*name).to_owned()).collect()
        };
        let message = match self.protocol {
            XdsProtocol::Sotw => DiscoveryRequest {
                node,
                resource_names: names(),
                type_url,
                response_nonce: nonce,
                error_detail: error,
                ..DiscoveryRequest::default()
            }
            .encode_to_vec(),
            XdsProtocol::Delta => DeltaDiscoveryRequest {
                node,
                resource_names_subscribe: names(),
                resource_names_unsubscribe: names(),
                initial_resource_versions: names()
                    .into_iter()
                    .map(|name| (name, "0123456789abcdef".to_owned()))
                    .collect(),
                type_url,
                response_nonce: nonce,
                error_detail: error,
                ..DeltaDiscoveryRequest::default()
            }
            .encode_to_vec(),
        };
        self.read_message(&message.into())
    }
}

/// Changes of resources. Each bit of `content` decides about one resource of each type: with 0, all exist.
fn resources(content: usize) -> EpochChanges {
    let mut changes = EpochChanges::default();
    for kind in ResourceType::ALL {
        for (number, name) in NAMES.iter().skip(2).enumerate().filter(|(number, _)| number % 8 != 2) {
            let bit = content >> (number % 8) & 1 == 1;
            // An odd content removes resources, an even one changes them.
            let bytes = Bytes::from(format!("\n\u{1}{number}{}", if bit { "\u{12}\u{1}b" } else { "" }));
            let resource = if bit && content % 2 == 1 { None } else { Some(Resource::Encoded(bytes)) };
            let (layer, name) = (Layer::default(), (*name).into());
            match kind {
                ResourceType::Route => {
                    let key = SegmentKey { resource_type: kind, layer, name: "80".into(), segment: name };
                    changes.segments.push((key, resource));
                }
                _ => changes.resources.push((ResourceKey { resource_type: kind, layer, name }, resource)),
            }
        }
    }
    let rest = SegmentKey {
        resource_type: ResourceType::Route,
        layer: Layer::default(),
        name: "80".into(),
        segment: "".into(),
    };
    changes.segments.push((rest, Some(Resource::Encoded(Bytes::from_static(b"\n\x0280")))));
    changes
}
