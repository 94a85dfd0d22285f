//! One proxy: its stream, and what it asks for next, as Envoy does.
//!
//! CDS goes first, EDS for the clusters that come, LDS when those are known, then RDS and SDS for the listeners, and VHDS
//! for route tables that come in pieces. Everything that
//! comes is acknowledged at once. What is left out: a listener that goes leaves its route tables subscribed.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message;
use sluice_proto::envoy::config::core::v3::Node;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

use crate::arguments::Protocol;
use crate::fleet::Shared;
use crate::held::Held;
use crate::messages::{DeltaRequest, DeltaResponse, Request, Response};
use crate::scan::{TYPES, Type, asks_for, name};
use crate::watch::{Arrival, Watch};

/// Flow-control windows as a recent Envoy has them.
const WINDOW: u32 = 16 << 20;
/// Waits this long before it tries again after a refused stream, doubled each time up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// How a proxy reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pace {
    /// At once.
    Prompt,
    /// That long for each message.
    Slow(Duration),
    /// Not at all after the stream is open.
    Dead,
}

/// A proxy with what it holds, which it takes from stream to stream.
pub(crate) struct Client {
    pub(crate) number: usize,
    pub(crate) pace: Pace,
    node: Arc<Node>,
    /// What a gateway in front of the server says of the proxy's certificate.
    certificate: Option<MetadataValue<Ascii>>,
    held: [Held; TYPES],
    /// State of the world: the version of each type.
    versions: [String; TYPES],
}

impl Client {
    /// One that holds nothing. It is who `certificate` says, if that is given.
    pub(crate) fn new(number: usize, node: Arc<Node>, certificate: Option<MetadataValue<Ascii>>) -> Self {
        let (held, versions) = (Default::default(), Default::default());
        Self { number, pace: Pace::Prompt, node, certificate, held, versions }
    }

    /// What it holds of a type.
    pub(crate) fn held(&self, kind: Type) -> &Held {
        &self.held[kind as usize]
    }

    fn identify<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        if let Some(certificate) = &self.certificate {
            request.metadata_mut().insert("x-forwarded-client-cert", certificate.clone());
        }
        request
    }

    /// Resources it holds, over all types.
    pub(crate) fn resources(&self) -> usize {
        self.held.iter().map(Held::len).sum()
    }
}

/// Keeps a stream open until told to stop; gives the proxy back with what it holds then.
pub(crate) async fn run(mut client: Client, shared: Arc<Shared>, stop: Arc<Notify>) -> Client {
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
async fn stream(client: &mut Client, shared: &Shared) -> Result<()> {
    let endpoint = Endpoint::from_shared(format!("http://{}", shared.address()))?
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .tcp_nodelay(true);
    let channel = endpoint.connect().await.context("connect")?;
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX);
    grpc.ready().await?;
    let (requests, outgoing) = mpsc::unbounded_channel::<Bytes>();
    let request = client.identify(UnboundedReceiverStream::new(outgoing));
    let mut stream = Stream::new(client, shared, requests);
    match shared.protocol {
        Protocol::Delta => {
            let path = PathAndQuery::from_static(
                "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
            );
            stream.open_delta();
            let answers = grpc.streaming(request, path, Counted::default()).await?.into_inner();
            stream.read(answers, Stream::take_delta).await
        }
        Protocol::Sotw => {
            let path = PathAndQuery::from_static(
                "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
            );
            stream.open_sotw();
            let answers = grpc.streaming(request, path, Counted::default()).await?.into_inner();
            stream.read(answers, Stream::take_sotw).await
        }
    }
}

struct Stream<'a> {
    client: &'a mut Client,
    shared: &'a Shared,
    /// Requests, encoded.
    requests: mpsc::UnboundedSender<Bytes>,
    /// Types that were asked for, and answered, on this stream.
    asked: [bool; TYPES],
    answered: [bool; TYPES],
    /// State of the world: the nonce of the last answer.
    nonces: [String; TYPES],
    /// The node goes with the first request.
    introduced: bool,
    configured: bool,
}

impl<'a> Stream<'a> {
    fn new(client: &'a mut Client, shared: &'a Shared, requests: mpsc::UnboundedSender<Bytes>) -> Self {
        Self {
            client,
            shared,
            requests,
            asked: [false; TYPES],
            answered: [false; TYPES],
            nonces: Default::default(),
            introduced: false,
            configured: false,
        }
    }

    fn node(&mut self) -> Option<Node> {
        let first = !std::mem::replace(&mut self.introduced, true);
        first.then(|| (*self.client.node).clone())
    }

    fn send(&self, request: &impl Message) {
        self.send_encoded(request.encode_to_vec());
    }

    fn send_encoded(&self, request: Vec<u8>) {
        // The stream's end is seen where it is read.
        let _ = self.requests.send(request.into());
    }

    async fn read<M>(
        mut self,
        mut answers: Streaming<(M, usize)>,
        mut take: impl FnMut(&mut Self, M, Option<&Watch>),
    ) -> Result<()>
    where
        M: Send + 'static,
    {
        if self.client.pace == Pace::Dead {
            std::future::pending::<()>().await;
        }
        while let Some((message, bytes)) = answers.message().await? {
            if let Pace::Slow(wait) = self.client.pace {
                tokio::time::sleep(wait).await;
            }
            self.shared.count_message(bytes);
            let watch = self.shared.watch();
            take(&mut self, message, watch.as_deref());
            if !self.configured && self.is_configured() {
                self.configured = true;
                self.shared.set_configured(self.client.number, true);
            }
        }
        Ok(())
    }

    /// Everything asked for was answered.
    fn is_configured(&self) -> bool {
        let known = |kind: Type| self.client.held[kind as usize].is_complete();
        Type::ALL.into_iter().all(|kind| {
            let named = !kind.is_wildcard() && self.client.held[kind as usize].len() == 0;
            // Of secrets nothing is said to who holds them.
            let silent = kind == Type::Sds;
            (named || silent || self.answered[kind as usize]) && known(kind)
        })
    }

    fn arrive(&self, watch: Option<&Watch>, kind: Type, name: &str, bytes: Option<&Bytes>) {
        if let Some(watch) = watch {
            self.shared.arrive(watch, self.client.number, &Arrival { kind, name, bytes });
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
    /// What Envoy sends first: CDS; and when it comes back, every type it holds something of.
    fn open_delta(&mut self) {
        let returns = self.client.resources() > 0;
        for kind in Type::ALL.into_iter().filter(|kind| returns || *kind == Type::Cds) {
            self.asked[kind as usize] = true;
            let node = self.node();
            let held = &self.client.held[kind as usize];
            // Tables are subscribed, and what is held are their virtual hosts.
            let is_subscribed = |name: &&str| match kind {
                Type::Vhds => !name.contains('/'),
                kind => !kind.is_wildcard(),
            };
            let mut subscribe = held.names().filter(is_subscribed).peekable();
            if !kind.is_wildcard() && subscribe.peek().is_none() {
                continue;
            }
            let request = DeltaRequest { node, type_url: kind.url().into(), ..Default::default() };
            self.send_encoded(request.first(subscribe, held.versions()));
        }
    }

    fn take_delta(&mut self, response: DeltaResponse, watch: Option<&Watch>) {
        let Some(kind) = Type::of_url(&response.type_url) else { return };
        self.answered[kind as usize] = true;
        let mut subscribe: BTreeMap<Type, Vec<String>> = BTreeMap::new();
        let mut unsubscribe = Vec::new();
        for resource in &response.resources {
            self.shared.count_resource(kind);
            let Some(any) = &resource.resource else { continue };
            let (name, version) = (text(&resource.name), text(&resource.version));
            let texts = &self.shared.texts;
            let held = &mut self.client.held[kind as usize];
            if matches!(kind, Type::Eds | Type::Rds | Type::Sds) && !held.has(name) {
                // It was on its way when it was no longer wanted.
                continue;
            }
            held.tell(texts.get(name), texts.get(version), self.shared.digest(&any.value));
            if kind == Type::Vhds
                && let Some((table, _)) = name.rsplit_once('/')
            {
                // Asked for by the table they are of.
                held.tell(texts.get(table), texts.get(""), 0);
            }
            for (next, name) in asks_for(kind, &any.value) {
                if self.client.held[next as usize].ask(name, texts) {
                    subscribe.entry(next).or_default().push(name.to_owned());
                }
            }
            self.arrive(watch, kind, name, Some(&any.value));
        }
        for name in &response.removed {
            if kind.is_wildcard() {
                self.client.held[kind as usize].forget(name);
            } else {
                // What is subscribed stays so: there is none of that name now.
                let (texts, held) = (&self.shared.texts, &mut self.client.held[kind as usize]);
                if !held.has(name) {
                    continue;
                }
                held.tell(texts.get(name), texts.get(""), 0);
            }
            if kind == Type::Cds && self.client.held[Type::Eds as usize].forget(name) {
                unsubscribe.push(name.clone());
            }
            self.arrive(watch, kind, name, None);
        }
        self.send(&DeltaRequest { type_url: response.type_url, nonce: response.nonce, ..Default::default() });
        if !unsubscribe.is_empty() {
            subscribe.entry(Type::Eds).or_default();
        }
        for (next, subscribe) in subscribe {
            self.asked[next as usize] = true;
            let unsubscribe = if next == Type::Eds { std::mem::take(&mut unsubscribe) } else { Vec::new() };
            self.send(&DeltaRequest { type_url: next.url().into(), subscribe, unsubscribe, ..Default::default() });
        }
        if self.is_time_for_listeners() {
            self.asked[Type::Lds as usize] = true;
            self.send(&DeltaRequest { type_url: Type::Lds.url().into(), ..Default::default() });
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
        self.send(&Request { version, node, names, type_url: kind.url().into(), nonce });
    }

    fn take_sotw(&mut self, response: Response, watch: Option<&Watch>) {
        let Some(kind) = Type::of_url(&response.type_url) else { return };
        self.answered[kind as usize] = true;
        self.client.versions[kind as usize] = response.version;
        self.nonces[kind as usize] = response.nonce;
        let mut gone: Vec<String> = if kind.is_wildcard() {
            self.client.held[kind as usize].names().map(str::to_owned).collect()
        } else {
            Vec::new()
        };
        gone.sort_unstable();
        let mut asks: BTreeSet<Type> = BTreeSet::new();
        for any in &response.resources {
            self.shared.count_resource(kind);
            let Some(name) = name(&any.value) else { continue };
            let texts = &self.shared.texts;
            let digest = self.shared.digest(&any.value);
            self.client.held[kind as usize].tell(texts.get(name), texts.get("held"), digest);
            for (next, name) in asks_for(kind, &any.value) {
                if self.client.held[next as usize].ask(name, texts) {
                    asks.insert(next);
                }
            }
            if let Ok(at) = gone.binary_search_by(|other| other.as_str().cmp(name)) {
                gone.remove(at);
            }
            self.arrive(watch, kind, name, Some(&any.value));
        }
        for name in gone {
            self.client.held[kind as usize].forget(&name);
            if kind == Type::Cds && self.client.held[Type::Eds as usize].forget(&name) {
                asks.insert(Type::Eds);
            }
            self.arrive(watch, kind, &name, None);
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

/// A codec of encoded requests that also says how long each received message was.
#[derive(Debug)]
struct Counted<M>(PhantomData<M>);

impl<M> Default for Counted<M> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<M> Encoder for Counted<M> {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl<M: Message + Default> Decoder for Counted<M> {
    type Item = (M, usize);
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let bytes = buffer.remaining();
        let message = M::decode(buffer).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Some((message, bytes)))
    }
}

impl<M: Message + Default + Send + 'static> Codec for Counted<M> {
    type Encode = Bytes;
    type Decode = (M, usize);
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}
