//! One proxy: its stream, and its subscriptions in Envoy's order.
//!
//! It subscribes CDS first, EDS for the received clusters, then LDS, then RDS and SDS for the listeners, and VHDS for
//! route tables that use it. It acknowledges every response at once. Unlike in Envoy, a removed listener leaves its
//! route tables subscribed.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{StreamExt as _, stream};
use http::{HeaderValue, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use prost::Message;
use sluice_proto::envoy::config::core::v3::Node;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tower::{Service as _, ServiceExt as _};

use crate::arguments::AdsProtocol;
use crate::held::{Dictionary, HeldVersions};
use crate::incoming::{DELTA_NESTING, Incoming, MessageKind, Part, SOTW_NESTING, UNSPLIT_NESTING};
use crate::messages::{Any, DeltaRequest, DeltaResource, Request, SubscribeFields};
use crate::scan::{TYPES, Type, asks_for, name};
use crate::shared::Shared;
use crate::watch::{ArrivedResource, ChangeTracker};

/// Wait before the next attempt after a rejected stream, doubled each time up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// How a proxy reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pace {
    /// At once.
    Prompt,
    /// This long for each message.
    Slow(Duration),
    /// Not at all after the stream is open.
    Dead,
}

/// A proxy with the versions it holds, which it keeps from stream to stream.
pub(crate) struct SimulatedProxy {
    pub(crate) number: usize,
    pub(crate) pace: Pace,
    node: Arc<Node>,
    /// The forwarded certificate of the proxy.
    certificate: Option<HeaderValue>,
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
        dictionaries: &[Arc<Dictionary>; TYPES],
    ) -> Self {
        let held = dictionaries.clone().map(HeldVersions::new);
        Self { number, pace: Pace::Prompt, node, certificate, held, versions: Default::default() }
    }

    /// The versions it holds of a type.
    pub(crate) fn held(&self, kind: Type) -> &HeldVersions {
        &self.held[kind as usize]
    }

    /// The call of the protocol's method, with a stream of requests.
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

    /// Resources it holds, over all types.
    pub(crate) fn resources(&self) -> usize {
        self.held.iter().map(HeldVersions::len).sum()
    }
}

/// Keeps a stream open until it is stopped; returns the proxy with the versions it holds.
pub(crate) async fn run(mut client: SimulatedProxy, shared: Arc<Shared>, stop: Arc<Notify>) -> SimulatedProxy {
    let mut wait = FIRST_WAIT;
    loop {
        tokio::select! {
            () = stop.notified() => return client,
            () = shared.kicked(client.number) => {
                shared.set_configured(client.number, false);
                continue;
            }
            opened = stream(&mut client, &shared) => {
                shared.count_end();
                shared.set_configured(client.number, false);
                if opened.is_ok() {
                    wait = FIRST_WAIT;
                }
            }
        }
        let jitter = wait.mul_f64(rand::random_range(0.0..1.0));
        wait = (wait * 2).min(LONGEST_WAIT);
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
        .initial_connection_window_size(shared.window)
        .tcp_nodelay(true);
    let mut channel = endpoint.connect().await.context("connect")?;
    let (requests, messages) = mpsc::unbounded_channel();
    let call = client.call(shared.protocol, messages)?;
    let mut stream = Stream::new(client, shared, requests);
    match shared.protocol {
        AdsProtocol::Delta => stream.open_delta(),
        AdsProtocol::Sotw => stream.open_sotw(),
    }
    let answer = channel.ready().await?.call(call).await?;
    ensure!(answer.status().is_success(), "the server answers {}", answer.status());
    succeeded(answer.headers())?;
    stream.read(answer.into_body()).await
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
    /// Requests, encoded.
    requests: mpsc::UnboundedSender<Bytes>,
    /// Types that were requested, and answered, on this stream.
    asked: [bool; TYPES],
    answered: [bool; TYPES],
    /// State of the world: the nonce of the last answer.
    nonces: [String; TYPES],
    /// The response that is being received.
    response: Response,
    /// The node goes with the first request.
    introduced: bool,
    configured: bool,
}

/// The received part of a response.
#[derive(Default)]
struct Response {
    /// Its first part was received.
    begun: bool,
    /// The change that was followed by then, and which of its expectations are met.
    watch: Option<Arc<ChangeTracker>>,
    meets: u64,
    version: String,
    type_url: String,
    nonce: String,
    removed: Vec<Bytes>,
    coming: PartialResource,
    /// State of the world: the present names of wildcard types.
    there: BTreeSet<String>,
    /// The numbers of names that its resources refer to.
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
    fn new(client: &'a mut SimulatedProxy, shared: &'a Shared, requests: mpsc::UnboundedSender<Bytes>) -> Self {
        Self {
            client,
            shared,
            requests,
            asked: [false; TYPES],
            answered: [false; TYPES],
            nonces: Default::default(),
            response: Response::default(),
            introduced: false,
            configured: false,
        }
    }

    fn node(&mut self) -> Option<Node> {
        let first = !std::mem::replace(&mut self.introduced, true);
        first.then(|| (*self.client.node).clone())
    }

    fn send(&self, request: Vec<u8>) {
        // The stream's end is seen where it is read.
        let _ = self.requests.send(self.shared.recent.share(request));
    }

    /// Reads to the end of the stream.
    async fn read(mut self, mut body: Body) -> Result<()> {
        if self.client.pace == Pace::Dead {
            std::future::pending::<()>().await;
        }
        let mut incoming = Incoming::new(match self.shared.protocol {
            // A digest is of a whole content.
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
                self.take(part).await;
            }
            // Yields to other clients while there is more to read.
            tokio::task::coop::consume_budget().await;
        }
        Ok(())
    }

    async fn take(&mut self, part: Part) {
        if !std::mem::replace(&mut self.response.begun, true) {
            self.response.watch = self.shared.watch();
        }
        let take = match self.shared.protocol {
            AdsProtocol::Delta => Self::delta,
            AdsProtocol::Sotw => Self::sotw,
        };
        let Part::End(bytes) = part else { return take(self, part) };
        if let Pace::Slow(wait) = self.client.pace {
            tokio::time::sleep(wait).await;
        }
        self.shared.count_message(bytes);
        take(self, part);
        // A response counts once all of it is received.
        let Response { watch, meets, .. } = std::mem::take(&mut self.response);
        if let Some(watch) = watch {
            self.shared.arrived(&watch, self.client.number, meets);
        }
        if !self.configured && self.is_configured() {
            self.configured = true;
            self.shared.set_configured(self.client.number, true);
        }
    }

    /// Every subscription was answered.
    fn is_configured(&self) -> bool {
        let known = |kind: Type| self.client.held[kind as usize].is_complete();
        Type::ALL.into_iter().all(|kind| {
            let named = !kind.is_wildcard() && self.client.held[kind as usize].len() == 0;
            // A client that holds a secret is sent nothing for it.
            let silent = kind == Type::Sds;
            (named || silent || self.answered[kind as usize]) && known(kind)
        })
    }

    /// Processes a part of a resource that arrives in pieces.
    fn piece(&mut self, part: Part) {
        let coming = &mut self.response.coming;
        match (part, coming.kind) {
            (Part::Field(MessageKind::Resource, 1, version), _) => coming.version = version,
            (Part::Field(MessageKind::Resource, 3, name), _) => coming.name = name,
            (Part::Field(MessageKind::Any, 1, url), _) => coming.kind = Type::of_url(text(&url)),
            (Part::ExpectedContent(fields), Some(Type::Eds | Type::Rds)) => self.scan(&fields),
            (Part::ExpectedContent(fields), _) => coming.pieces.extend_from_slice(&fields),
            (Part::Over, _) => {
                let pieces = std::mem::take(&mut coming.pieces).freeze();
                if !pieces.is_empty() {
                    self.scan(&pieces);
                }
                self.come();
            }
            _ => {}
        }
    }

    /// Processes a whole resource.
    fn whole(&mut self, version: Bytes, name: Bytes, content: &Any) {
        let kind = Type::of_url(text(&content.type_url));
        self.response.coming = PartialResource { kind, version, name, ..Default::default() };
        self.scan(&content.value);
        self.come();
    }

    /// Scans the content of the present resource, or some fields of it. What it refers to is subscribed at the end of
    /// the response.
    fn scan(&mut self, fields: &Bytes) {
        let Response { coming, watch, subscribe, .. } = &mut self.response;
        let Some(kind) = coming.kind else { return };
        if coming.own_name.is_empty()
            && let Some(own) = name(fields)
        {
            coming.own_name = fields.slice_ref(own.as_bytes());
        }
        if let Some(watch) = watch {
            coming.found |= watch.finds(self.client.number, kind, coming.name(), fields);
        }
        for (next, name) in asks_for(kind, text(&coming.own_name), fields) {
            if let Some(number) = self.client.held[next as usize].ask(name) {
                subscribe.entry(next).or_default().push(number);
            }
        }
        coming.digest = self.shared.digest(fields);
    }

    /// Ends the present resource: all of it was scanned.
    fn come(&mut self) {
        let coming = std::mem::take(&mut self.response.coming);
        let (Some(kind), name) = (coming.kind, coming.name()) else { return };
        self.shared.count_resource(kind);
        let held = &mut self.client.held[kind as usize];
        if name.is_empty() || matches!(kind, Type::Eds | Type::Rds | Type::Sds) && !held.has(name) {
            // It was sent before the subscription ended.
            return;
        }
        let version = match self.shared.protocol {
            AdsProtocol::Delta => text(&coming.version),
            AdsProtocol::Sotw => "held",
        };
        held.tell(name, version, coming.digest);
        if kind == Type::Vhds
            && let Some((table, _)) = name.rsplit_once('/')
        {
            // Subscribed through their route table.
            held.tell(table, "", 0);
        }
        if self.shared.protocol == AdsProtocol::Sotw && kind.is_wildcard() {
            self.response.there.insert(name.to_owned());
        }
        self.arrive(kind, name, Some(coming.found));
    }

    fn arrive(&mut self, kind: Type, name: &str, found: Option<u64>) {
        if let Some(watch) = &self.response.watch {
            self.response.meets |= watch.meets(self.client.number, &ArrivedResource { kind, name, found });
        }
    }

    /// Clusters come before listeners, and assignments before listeners too.
    fn is_time_for_listeners(&self) -> bool {
        let clusters = self.answered[Type::Cds as usize] && self.client.held[Type::Eds as usize].is_complete();
        clusters && !self.asked[Type::Lds as usize]
    }
}

/// The delta protocol.
impl Stream<'_> {
    /// What Envoy sends first: CDS; after a reconnect, every type it holds resources of.
    fn open_delta(&mut self) {
        let returns = self.client.resources() > 0;
        for kind in Type::ALL.into_iter().filter(|kind| returns || *kind == Type::Cds) {
            self.asked[kind as usize] = true;
            let node = self.node();
            let held = &self.client.held[kind as usize];
            // Route tables are subscribed; the held resources are their virtual hosts.
            let is_subscribed = |name: &&str| match kind {
                Type::Vhds => !name.contains('/'),
                kind => !kind.is_wildcard(),
            };
            let mut subscribe = SubscribeFields::default();
            held.names().filter(is_subscribed).for_each(|name| subscribe.add(name));
            if !kind.is_wildcard() && subscribe.is_empty() {
                continue;
            }
            let request = DeltaRequest { node, type_url: kind.url().into(), ..Default::default() };
            self.send(request.with(&subscribe, held.versions()));
        }
    }

    /// Processes a part of a `DeltaDiscoveryResponse`.
    fn delta(&mut self, part: Part) {
        match part {
            Part::Field(MessageKind::Response, number, field) => match number {
                2 => {
                    if let Ok(DeltaResource { version, resource: Some(any), name }) = DeltaResource::decode(field) {
                        self.whole(version, name, &any);
                    }
                }
                4 => text(&field).clone_into(&mut self.response.type_url),
                5 => text(&field).clone_into(&mut self.response.nonce),
                6 => self.response.removed.push(field),
                _ => {}
            },
            Part::End(_) => self.end_delta(),
            part => self.piece(part),
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
                held.forget(name);
            } else if held.has(name) {
                // The subscription stays: no resource has that name now.
                held.tell(name, "", 0);
            } else {
                continue;
            }
            if kind == Type::Cds && self.client.held[Type::Eds as usize].forget(name) {
                unsubscribe.push(name.to_owned());
            }
            self.arrive(kind, name, None);
        }
        let (type_url, nonce) = (kind.url().into(), std::mem::take(&mut self.response.nonce));
        self.send(DeltaRequest { type_url, nonce, ..Default::default() }.encode_to_vec());
        let mut subscribe = std::mem::take(&mut self.response.subscribe);
        if !unsubscribe.is_empty() {
            subscribe.entry(Type::Eds).or_default();
        }
        for (next, numbers) in subscribe {
            self.asked[next as usize] = true;
            let held = &self.client.held[next as usize];
            let mut subscribe = SubscribeFields::default();
            numbers.into_iter().for_each(|number| subscribe.add(held.name(number)));
            let unsubscribe = if next == Type::Eds { std::mem::take(&mut unsubscribe) } else { Vec::new() };
            let request = DeltaRequest { type_url: next.url().into(), unsubscribe, ..Default::default() };
            self.send(request.with(&subscribe, std::iter::empty()));
        }
        if self.is_time_for_listeners() {
            self.asked[Type::Lds as usize] = true;
            self.send(DeltaRequest { type_url: Type::Lds.url().into(), ..Default::default() }.encode_to_vec());
        }
    }
}

/// State of the world.
impl Stream<'_> {
    fn open_sotw(&mut self) {
        let returns = self.client.resources() > 0;
        for kind in Type::ALL.into_iter().filter(|kind| returns || *kind == Type::Cds) {
            self.asked[kind as usize] = true;
            self.ask_sotw(kind);
        }
    }

    fn ask_sotw(&mut self, kind: Type) {
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
                        self.whole(Bytes::new(), Bytes::new(), &any);
                    }
                }
                4 => text(&field).clone_into(&mut self.response.type_url),
                5 => text(&field).clone_into(&mut self.response.nonce),
                _ => {}
            },
            Part::End(_) => self.end_sotw(),
            part => self.piece(part),
        }
    }

    fn end_sotw(&mut self) {
        let Some(kind) = Type::of_url(&self.response.type_url) else { return };
        self.answered[kind as usize] = true;
        self.client.versions[kind as usize] = std::mem::take(&mut self.response.version);
        self.nonces[kind as usize] = std::mem::take(&mut self.response.nonce);
        let mut asks: BTreeSet<Type> = std::mem::take(&mut self.response.subscribe).into_keys().collect();
        let there = std::mem::take(&mut self.response.there);
        let gone: Vec<String> = if kind.is_wildcard() {
            let names = self.client.held[kind as usize].names();
            names.filter(|name| !there.contains(*name)).map(str::to_owned).collect()
        } else {
            Vec::new()
        };
        for name in gone {
            self.client.held[kind as usize].forget(&name);
            if kind == Type::Cds && self.client.held[Type::Eds as usize].forget(&name) {
                asks.insert(Type::Eds);
            }
            self.arrive(kind, &name, None);
        }
        self.ask_sotw(kind);
        for next in asks {
            self.asked[next as usize] = true;
            self.ask_sotw(next);
        }
        if self.is_time_for_listeners() {
            self.asked[Type::Lds as usize] = true;
            self.ask_sotw(Type::Lds);
        }
    }
}

/// Text of a field that is kept as bytes.
fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
