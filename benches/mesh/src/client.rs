//! One proxy: its stream, and its subscriptions in Envoy's order.
//!
//! It subscribes to CDS first, to EDS for the received clusters, then to LDS, then to RDS and SDS for the listeners, to
//! LEDS for assignments that use it, and to VHDS for such route tables. A ztunnel subscribes to all workload addresses and
//! policies. It acknowledges every response at once. Unlike Envoy, it stays subscribed to the route tables of a removed
//! listener.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{StreamExt as _, stream};
use http::{HeaderValue, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper_util::rt::TokioIo;
use prost::Message;
use sluice_proto::envoy::config::core::v3::Node;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::transport::{Endpoint, Uri};
use tonic::{Code, Status};
use tower::{Service as _, ServiceExt as _, service_fn};

use crate::arguments::AdsProtocol;
use crate::change_tracker::{ArrivedResource, ChangeTracker};
use crate::held_versions::{Dictionary, HeldVersions};
use crate::incoming::{DELTA_NESTING, Incoming, MessageKind, Part, SOTW_NESTING, UNSPLIT_NESTING};
use crate::messages::{Any, DeltaRequest, DeltaResource, Request, SubscribeFields};
use crate::scan::{TYPES, Type, name, referenced_names};
use crate::shared::Shared;
use crate::socket::{LastArrival, TimestampedSocket};

/// Wait before the next attempt after a rejected stream. Doubled after each attempt, up to [`MAX_BACKOFF`].
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// How the names of collections of endpoints end.
const ALL_ENDPOINTS: &str = "/*";

/// How a proxy reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pace {
    /// Each message at once.
    Prompt,
    /// Each message after this time.
    Slow(Duration),
    /// Nothing after the stream is open.
    Dead,
}

/// A proxy with the resource versions that it holds. It keeps them when it reconnects.
pub(crate) struct SimulatedProxy {
    pub(crate) number: usize,
    pub(crate) pace: Pace,
    node: Arc<Node>,
    /// The forwarded certificate of the proxy.
    certificate: Option<HeaderValue>,
    /// The types that it requests before it has received anything.
    first: &'static [Type],
    /// The clusters that it needs, if it requests clusters on demand.
    pub(crate) clusters_on_demand: Vec<String>,
    held: [HeldVersions; TYPES],
    /// State of the world: the version of each type.
    versions: [String; TYPES],
}

impl SimulatedProxy {
    /// A client that holds nothing. It has the identity of `certificate`, if that is given.
    pub(crate) fn new(
        number: usize,
        node: Arc<Node>,
        certificate: Option<HeaderValue>,
        first: &'static [Type],
        dictionaries: &[Arc<Dictionary>; TYPES],
    ) -> Self {
        let held = dictionaries.clone().map(HeldVersions::new);
        let (clusters_on_demand, versions) = Default::default();
        Self { number, pace: Pace::Prompt, node, certificate, first, clusters_on_demand, held, versions }
    }

    /// The versions it holds of a type.
    pub(crate) fn held(&self, kind: Type) -> &HeldVersions {
        &self.held[kind as usize]
    }

    /// The gRPC call of the protocol's method, with a stream of requests.
    fn call(&self, protocol: AdsProtocol, messages: mpsc::UnboundedReceiver<Bytes>) -> Result<http::Request<Body>> {
        let framed = UnboundedReceiverStream::new(messages).flat_map(|message| {
            let mut prefix = BytesMut::with_capacity(5);
            prefix.put_u8(0);
            prefix.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
            stream::iter([prefix.freeze(), message].map(|bytes| Ok::<_, Infallible>(Frame::data(bytes))))
        });
        let method = match protocol {
            AdsProtocol::Delta => "DeltaAggregatedResources",
            AdsProtocol::Sotw => "StreamAggregatedResources",
        };
        let path = format!("/envoy.service.discovery.v3.AggregatedDiscoveryService/{method}");
        let mut request = http::Request::post(path)
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .body(Body::new(StreamBody::new(framed)))?;
        if let Some(certificate) = &self.certificate {
            request.headers_mut().insert("x-forwarded-client-cert", certificate.clone());
        }
        Ok(request)
    }

    /// Whether it needs an answer for a type before it is configured, even without resources.
    fn is_required(&self, kind: Type) -> bool {
        self.first.contains(&kind) || kind == Type::Lds && self.first.contains(&Type::Cds)
    }

    /// Whether it requests a type when the stream opens.
    fn requests_at_start(&self, kind: Type, is_reconnect: bool) -> bool {
        let is_own = self.is_required(kind) || !kind.is_wildcard();
        self.first.contains(&kind) || is_reconnect && is_own
    }

    /// Resources it holds, over all types.
    pub(crate) fn resources(&self) -> usize {
        self.held.iter().map(HeldVersions::len).sum()
    }
}

/// Keeps a stream open until it is stopped; returns the proxy with the versions it holds.
pub(crate) async fn run(mut client: SimulatedProxy, shared: Arc<Shared>, stop: Arc<Notify>) -> SimulatedProxy {
    let mut wait = INITIAL_BACKOFF;
    loop {
        tokio::select! {
            () = stop.notified() => return client,
            () = shared.disconnect_requested(client.number) => {
                shared.set_configured(client.number, false);
                continue;
            }
            opened = stream(&mut client, &shared) => {
                shared.count_end();
                shared.set_configured(client.number, false);
                if opened.is_ok() {
                    wait = INITIAL_BACKOFF;
                }
            }
        }
        let jitter = wait.mul_f64(rand::random_range(0.0..1.0));
        wait = (wait * 2).min(MAX_BACKOFF);
        tokio::select! {
            () = stop.notified() => return client,
            () = tokio::time::sleep(jitter) => {}
        }
    }
}

/// One stream from its opening to its end.
async fn stream(client: &mut SimulatedProxy, shared: &Shared) -> Result<()> {
    let endpoint = Endpoint::from_shared(format!("http://{}", shared.address()))?
        .initial_stream_window_size(shared.window)
        .initial_connection_window_size(shared.window);
    let connect = || TimestampedSocket::connect(shared.address(), shared.clock);
    let socket = connect().await.with_context(|| format!("connect to {}", shared.address()))?;
    let arrival = socket.last_arrival();
    // Used once: a stream that ends opens another connection.
    let mut socket = Some(TokioIo::new(socket));
    let connector =
        service_fn(move |_: Uri| ready(socket.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))));
    let mut channel = endpoint.connect_with_connector(connector).await?;
    let (requests, messages) = mpsc::unbounded_channel();
    let call = client.call(shared.protocol, messages)?;
    let mut stream = Stream::new(client, shared, arrival, requests);
    match shared.protocol {
        AdsProtocol::Delta => stream.open_delta(),
        AdsProtocol::Sotw => stream.open_sotw(),
    }
    let response = channel.ready().await?.call(call).await?;
    ensure!(response.status().is_success(), "the server responds with {}", response.status());
    succeeded(response.headers())?;
    stream.read(response.into_body()).await
}

/// Fails with the status in headers or trailers, if there is one.
fn succeeded(headers: &http::HeaderMap) -> Result<()> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() != Code::Ok => Err(status.into()),
        _ => Ok(()),
    }
}

struct Stream<'a> {
    client: &'a mut SimulatedProxy,
    shared: &'a Shared,
    /// Of the connection.
    arrival: LastArrival,
    /// Requests, encoded.
    requests: mpsc::UnboundedSender<Bytes>,
    /// Types that were requested on this stream, and those that the server has answered.
    requested: [bool; TYPES],
    answered: [bool; TYPES],
    /// State of the world: the nonce of the last response.
    nonces: [String; TYPES],
    /// The response that is being received.
    response: Response,
    /// The first request, which carries the node, was sent.
    node_sent: bool,
    configured: bool,
}

/// The received part of a response.
#[derive(Default)]
struct Response {
    /// Its first part was received.
    started: bool,
    /// The change that was followed when the first part was received, and the expectations that the response meets.
    tracker: Option<Arc<ChangeTracker>>,
    meets: u64,
    version: String,
    type_url: String,
    nonce: String,
    removed: Vec<Bytes>,
    current: PartialResource,
    /// State of the world: the present names of wildcard types.
    present: BTreeSet<String>,
    /// The numbers of the names that its resources refer to.
    subscribe: BTreeMap<Type, Vec<usize>>,
}

/// The received part of a resource.
#[derive(Default)]
struct PartialResource {
    kind: Option<Type>,
    /// Of the delta protocol.
    version: Bytes,
    name: Bytes,
    /// The name in its content.
    own_name: Bytes,
    /// Content that arrived in pieces and is scanned as a whole.
    pieces: BytesMut,
    /// The expectations whose text was found.
    found: u64,
    digest: u64,
}

impl PartialResource {
    fn name(&self) -> &str {
        text(if self.name.is_empty() { &self.own_name } else { &self.name })
    }
}

impl<'a> Stream<'a> {
    fn new(
        client: &'a mut SimulatedProxy,
        shared: &'a Shared,
        arrival: LastArrival,
        requests: mpsc::UnboundedSender<Bytes>,
    ) -> Self {
        Self {
            client,
            shared,
            arrival,
            requests,
            requested: [false; TYPES],
            answered: [false; TYPES],
            nonces: Default::default(),
            response: Response::default(),
            node_sent: false,
            configured: false,
        }
    }

    fn node(&mut self) -> Option<Node> {
        let first = !std::mem::replace(&mut self.node_sent, true);
        first.then(|| (*self.client.node).clone())
    }

    fn send(&self, request: Vec<u8>) {
        // If the stream has ended, reading it reports that.
        let _ = self.requests.send(self.shared.recent.share(request));
    }

    /// Reads to the end of the stream.
    async fn read(mut self, mut body: Body) -> Result<()> {
        if self.client.pace == Pace::Dead {
            std::future::pending::<()>().await;
        }
        let mut incoming = Incoming::new(match self.shared.protocol {
            // A digest covers the whole content.
            _ if self.shared.digests => UNSPLIT_NESTING,
            AdsProtocol::Delta => DELTA_NESTING,
            AdsProtocol::Sotw => SOTW_NESTING,
        });
        while let Some(frame) = body.frame().await {
            match frame?.into_data() {
                Ok(data) => {
                    self.shared.count_arrival();
                    incoming.put(data);
                }
                Err(trailers) => succeeded(trailers.trailers_ref().unwrap_or(&http::HeaderMap::new()))?,
            }
            while let Some(part) = incoming.part()? {
                self.process(part).await;
            }
            // Yields to other clients while there is more to read.
            tokio::task::coop::consume_budget().await;
        }
        Ok(())
    }

    async fn process(&mut self, part: Part) {
        if !std::mem::replace(&mut self.response.started, true) {
            self.response.tracker = self.shared.tracker();
        }
        let process = match self.shared.protocol {
            AdsProtocol::Delta => Self::delta,
            AdsProtocol::Sotw => Self::sotw,
        };
        let Part::ResponseEnd(bytes) = part else { return process(self, part) };
        if let Pace::Slow(wait) = self.client.pace {
            tokio::time::sleep(wait).await;
        }
        self.shared.count_message(bytes);
        process(self, part);
        // A response counts when all of it is received.
        let Response { tracker, meets, .. } = std::mem::take(&mut self.response);
        if let Some(tracker) = tracker {
            self.shared.arrived(&tracker, self.client.number, meets, self.arrival.get());
            self.shared.rest();
        }
        if !self.configured && self.is_configured() {
            self.configured = true;
            self.shared.set_configured(self.client.number, true);
        }
    }

    /// Every subscription was answered.
    fn is_configured(&self) -> bool {
        let complete = |kind: Type| self.client.held[kind as usize].is_complete();
        Type::ALL.into_iter().all(|kind| {
            let is_unused = !self.client.is_required(kind) && self.client.held[kind as usize].len() == 0;
            // The server sends no response for secrets that the client already holds.
            let optional = kind == Type::Sds;
            (is_unused || optional || self.answered[kind as usize]) && complete(kind)
        })
    }

    /// Processes a part of a resource that arrives in pieces.
    fn process_piece(&mut self, part: Part) {
        let current = &mut self.response.current;
        match (part, current.kind) {
            (Part::Field(MessageKind::Resource, 1, version), _) => current.version = version,
            (Part::Field(MessageKind::Resource, 3, name), _) => current.name = name,
            (Part::Field(MessageKind::Any, 1, url), _) => current.kind = Type::of_url(text(&url)),
            (Part::Content(fields), Some(Type::Eds | Type::Rds)) => self.scan(&fields),
            (Part::Content(fields), _) => current.pieces.extend_from_slice(&fields),
            (Part::ResourceEnd, _) => {
                let pieces = std::mem::take(&mut current.pieces).freeze();
                if !pieces.is_empty() {
                    self.scan(&pieces);
                }
                self.end_resource();
            }
            _ => {}
        }
    }

    /// Processes a whole resource.
    fn process_resource(&mut self, version: Bytes, name: Bytes, content: &Any) {
        let kind = Type::of_url(text(&content.type_url));
        self.response.current = PartialResource { kind, version, name, ..Default::default() };
        self.scan(&content.value);
        self.end_resource();
    }

    /// Scans the content of the present resource, or some fields of it. The client subscribes to the names that it
    /// refers to at the end of the response.
    fn scan(&mut self, fields: &Bytes) {
        let Response { current, tracker, subscribe, .. } = &mut self.response;
        let Some(kind) = current.kind else { return };
        if current.own_name.is_empty()
            && let Some(own) = name(fields)
        {
            current.own_name = fields.slice_ref(own.as_bytes());
        }
        if let Some(tracker) = tracker {
            current.found |= tracker.finds(self.client.number, kind, current.name(), fields);
        }
        for (next, name) in referenced_names(kind, text(&current.own_name), fields) {
            if let Some(number) = self.client.held[next as usize].subscribe(name) {
                subscribe.entry(next).or_default().push(number);
            }
        }
        current.digest = self.shared.digest(fields);
    }

    /// Ends the present resource, after all of it was scanned.
    fn end_resource(&mut self) {
        let current = std::mem::take(&mut self.response.current);
        let (Some(kind), name) = (current.kind, current.name()) else { return };
        self.shared.count_resource(kind);
        let held = &mut self.client.held[kind as usize];
        if name.is_empty() || matches!(kind, Type::Eds | Type::Rds | Type::Sds) && !held.has(name) {
            // The server sent it before it processed the unsubscription.
            return;
        }
        let version = match self.shared.protocol {
            AdsProtocol::Delta => text(&current.version),
            AdsProtocol::Sotw => "held",
        };
        held.record(name, version, current.digest);
        if kind == Type::Vhds
            && let Some((table, _)) = name.rsplit_once('/')
        {
            // Virtual hosts are subscribed to by the name of their route table.
            held.record(table, "", 0);
        }
        if kind == Type::Leds
            && let Some((collection, _)) = name.rsplit_once('/')
        {
            held.record(&format!("{collection}{ALL_ENDPOINTS}"), "", 0);
        }
        if self.shared.protocol == AdsProtocol::Sotw && kind.is_wildcard() {
            self.response.present.insert(name.to_owned());
        }
        self.record_arrival(kind, name, Some(current.found));
    }

    fn record_arrival(&mut self, kind: Type, name: &str, found: Option<u64>) {
        if let Some(tracker) = &self.response.tracker {
            self.response.meets |= tracker.meets(self.client.number, &ArrivedResource { kind, name, found });
        }
    }

    /// Whether LDS can be requested: Envoy requests it after the clusters and their assignments have arrived.
    fn can_request_listeners(&self) -> bool {
        let is_complete = |kind: Type| self.client.held[kind as usize].is_complete();
        let assignments = [Type::Cds, Type::Eds, Type::Leds].into_iter().all(is_complete);
        let clusters = self.answered[Type::Cds as usize] && assignments;
        clusters && !self.requested[Type::Lds as usize]
    }
}

/// The delta protocol.
impl Stream<'_> {
    /// Sends the first requests as Envoy does: for CDS; after a reconnect, for every type of which it holds resources.
    fn open_delta(&mut self) {
        let is_reconnect = self.client.resources() > 0;
        let client = &*self.client;
        let kinds = Type::ALL.into_iter().filter(|kind| client.requests_at_start(*kind, is_reconnect));
        for kind in kinds.collect::<Vec<_>>() {
            self.requested[kind as usize] = true;
            let node = self.node();
            let held = &self.client.held[kind as usize];
            // The subscription names route tables. The held resources are their virtual hosts.
            let is_subscribed = |name: &&str| match kind {
                Type::Vhds => !name.contains('/'),
                Type::Leds => name.ends_with(ALL_ENDPOINTS),
                kind => !kind.is_wildcard(),
            };
            let mut subscribe = SubscribeFields::default();
            held.names().filter(is_subscribed).for_each(|name| subscribe.add(name));
            if kind == Type::Cds && !self.client.clusters_on_demand.is_empty() {
                subscribe.add("*");
                if is_reconnect {
                    self.client.clusters_on_demand.iter().for_each(|name| subscribe.add(name));
                }
            }
            if !kind.is_wildcard() && subscribe.is_empty() {
                continue;
            }
            let request = DeltaRequest { node, type_url: kind.url().into(), ..Default::default() };
            // Envoy does not state which endpoints it holds.
            let versions = (kind != Type::Leds).then(|| held.versions());
            self.send(request.with(&subscribe, versions.into_iter().flatten()));
        }
    }

    /// Processes a part of a `DeltaDiscoveryResponse`.
    fn delta(&mut self, part: Part) {
        match part {
            Part::Field(MessageKind::Response, number, field) => match number {
                2 => {
                    if let Ok(DeltaResource { version, resource: Some(any), name }) = DeltaResource::decode(field) {
                        self.process_resource(version, name, &any);
                    }
                }
                4 => text(&field).clone_into(&mut self.response.type_url),
                5 => text(&field).clone_into(&mut self.response.nonce),
                6 => self.response.removed.push(field),
                _ => {}
            },
            Part::ResponseEnd(_) => self.end_delta(),
            part => self.process_piece(part),
        }
    }

    fn end_delta(&mut self) {
        let Some(kind) = Type::of_url(&self.response.type_url) else { return };
        self.answered[kind as usize] = true;
        let mut unsubscribe = Vec::new();
        for name in std::mem::take(&mut self.response.removed) {
            let name = text(&name);
            let held = &mut self.client.held[kind as usize];
            if kind.is_wildcard() {
                held.unsubscribe(name);
            } else if held.has(name) {
                // The subscription continues: no resource has that name now.
                held.record(name, "", 0);
            } else {
                continue;
            }
            if kind == Type::Cds && self.client.held[Type::Eds as usize].unsubscribe(name) {
                unsubscribe.push(name.to_owned());
            }
            self.record_arrival(kind, name, None);
        }
        let (type_url, nonce) = (kind.url().into(), std::mem::take(&mut self.response.nonce));
        self.send(DeltaRequest { type_url, nonce, ..Default::default() }.encode_to_vec());
        let mut subscribe = std::mem::take(&mut self.response.subscribe);
        if !unsubscribe.is_empty() {
            subscribe.entry(Type::Eds).or_default();
        }
        for (next, numbers) in subscribe {
            self.requested[next as usize] = true;
            let held = &self.client.held[next as usize];
            let mut subscribe = SubscribeFields::default();
            numbers.into_iter().for_each(|number| subscribe.add(held.name(number)));
            let unsubscribe = if next == Type::Eds { std::mem::take(&mut unsubscribe) } else { Vec::new() };
            let request = DeltaRequest { type_url: next.url().into(), unsubscribe, ..Default::default() };
            self.send(request.with(&subscribe, std::iter::empty()));
        }
        if kind == Type::Cds {
            self.request_clusters_on_demand();
        }
        if self.can_request_listeners() {
            self.requested[Type::Lds as usize] = true;
            self.send(DeltaRequest { type_url: Type::Lds.url().into(), ..Default::default() }.encode_to_vec());
        }
    }
}

/// Clusters on demand.
impl Stream<'_> {
    /// Requests the clusters that the proxy needs, after it has those that are sent to all.
    fn request_clusters_on_demand(&mut self) {
        let mut subscribe = SubscribeFields::default();
        for name in &self.client.clusters_on_demand {
            if self.client.held[Type::Cds as usize].subscribe(name).is_some() {
                subscribe.add(name);
            }
        }
        if !subscribe.is_empty() {
            let request = DeltaRequest { type_url: Type::Cds.url().into(), ..Default::default() };
            self.send(request.with(&subscribe, std::iter::empty()));
        }
    }
}

/// State of the world.
impl Stream<'_> {
    fn open_sotw(&mut self) {
        let is_reconnect = self.client.resources() > 0;
        let client = &*self.client;
        let kinds = Type::ALL.into_iter().filter(|kind| client.requests_at_start(*kind, is_reconnect));
        for kind in kinds.collect::<Vec<_>>() {
            self.requested[kind as usize] = true;
            self.request_sotw(kind);
        }
    }

    fn request_sotw(&mut self, kind: Type) {
        let node = self.node();
        let held = &self.client.held[kind as usize];
        let names = if kind.is_wildcard() { Vec::new() } else { held.names().map(str::to_owned).collect() };
        if !kind.is_wildcard() && names.is_empty() {
            return;
        }
        let version = self.client.versions[kind as usize].clone();
        let nonce = self.nonces[kind as usize].clone();
        self.send(Request { version, node, names, type_url: kind.url().into(), nonce }.encode_to_vec());
    }

    /// Processes a part of a `DiscoveryResponse`.
    fn sotw(&mut self, part: Part) {
        match part {
            Part::Field(MessageKind::Response, number, field) => match number {
                1 => text(&field).clone_into(&mut self.response.version),
                2 => {
                    if let Ok(any) = Any::decode(field) {
                        self.process_resource(Bytes::new(), Bytes::new(), &any);
                    }
                }
                4 => text(&field).clone_into(&mut self.response.type_url),
                5 => text(&field).clone_into(&mut self.response.nonce),
                _ => {}
            },
            Part::ResponseEnd(_) => self.end_sotw(),
            part => self.process_piece(part),
        }
    }

    fn end_sotw(&mut self) {
        let Some(kind) = Type::of_url(&self.response.type_url) else { return };
        self.answered[kind as usize] = true;
        self.client.versions[kind as usize] = std::mem::take(&mut self.response.version);
        self.nonces[kind as usize] = std::mem::take(&mut self.response.nonce);
        let mut to_request: BTreeSet<Type> = std::mem::take(&mut self.response.subscribe).into_keys().collect();
        let present = std::mem::take(&mut self.response.present);
        let removed: Vec<String> = if kind.is_wildcard() {
            let names = self.client.held[kind as usize].names();
            names.filter(|name| !present.contains(*name)).map(str::to_owned).collect()
        } else {
            Vec::new()
        };
        for name in removed {
            self.client.held[kind as usize].unsubscribe(&name);
            if kind == Type::Cds && self.client.held[Type::Eds as usize].unsubscribe(&name) {
                to_request.insert(Type::Eds);
            }
            self.record_arrival(kind, &name, None);
        }
        self.request_sotw(kind);
        for next in to_request {
            self.requested[next as usize] = true;
            self.request_sotw(next);
        }
        if self.can_request_listeners() {
            self.requested[Type::Lds as usize] = true;
            self.request_sotw(Type::Lds);
        }
    }
}

/// Text of a field that is kept as bytes.
fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
