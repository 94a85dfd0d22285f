//! Streams over real sockets: HTTP/2, gRPC framing, invalid input, shutdown.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use ResourceType::{Cluster, Listener};
use bytes::{Buf as _, BufMut as _, Bytes};
use futures::StreamExt as _;
use prometheus_client::registry::Registry;
use sluice_auth::{Authenticators, ForwardedCertificates};
use sluice_listen::{ListenLimits, ListenMetrics, PortOptions};
use sluice_model::ResourceType;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use sluice_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use sluice_xds::{Admission, ListenerEnded, ProxyLimits, ServerOptions, StreamLimits, serve};
use sluice_xds_protocol::XdsProtocol;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::fixture::{SIDECAR, SessionFixture};

/// A listener without authentication.
fn plaintext() -> Authenticators {
    Authenticators::new(vec![Arc::new(ForwardedCertificates::default())], false)
}

struct Server {
    address: SocketAddr,
    shutdown: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ListenerEnded>>,
    metrics: ListenMetrics,
}

impl Server {
    async fn start(mesh: &SessionFixture, options: ServerOptions) -> Self {
        Self::start_with(mesh, options, ListenLimits::default()).await
    }

    /// With limits of connections.
    async fn start_with(mesh: &SessionFixture, options: ServerOptions, limits: ListenLimits) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = tcp.local_addr().expect("an address");
        let metrics = ListenMetrics::default();
        let port = PortOptions { name: "grpc", limits, metrics: metrics.clone(), ..PortOptions::default() };
        let listener = sluice_listen::Listener::new(tcp, port);
        let (shutdown, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(serve(listener, mesh.server.clone(), options, plaintext(), async {
            let _ = stopped.await;
        }));
        Self { address, shutdown, serving, metrics }
    }

    /// Waits until a limit has closed a connection.
    async fn closed_by(&self, reason: &str) {
        let mut registry = Registry::default();
        self.metrics.register(&mut registry);
        let line = format!("sluice_closed_connections{{port=\"grpc\",reason=\"{reason}\"}} 1\n");
        let is_closed = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).expect("a text");
            text.contains(&line)
        };
        within(async {
            while !is_closed() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address))
            .expect("an address")
            .connect()
            .await
            .expect("a connection")
    }

    async fn client(&self) -> AggregatedDiscoveryServiceClient<Channel> {
        AggregatedDiscoveryServiceClient::new(self.channel().await).max_decoding_message_size(64 << 20)
    }

    async fn delta(&self) -> (mpsc::Sender<DeltaDiscoveryRequest>, Streaming<DeltaDiscoveryResponse>) {
        let (requests, outgoing) = mpsc::channel(16);
        let answer = self.client().await.delta_aggregated_resources(ReceiverStream::new(outgoing)).await;
        (requests, answer.expect("a stream").into_inner())
    }
}

fn node() -> Option<Node> {
    Some(Node { id: SIDECAR.into(), ..Node::default() })
}

fn first(kind: ResourceType) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest { node: node(), type_url: kind.type_url().into(), ..DeltaDiscoveryRequest::default() }
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it does not finish within 20 s")
}

fn mesh_of(clusters: usize) -> SessionFixture {
    let mesh = SessionFixture::new();
    for n in 0..clusters {
        mesh.cluster("base", &format!("cluster-{n:05}"), &"x".repeat(1000));
    }
    mesh.commit();
    mesh
}

#[tokio::test]
async fn both_protocols_work_over_a_socket() {
    let mesh = mesh_of(3000);
    let server = Server::start(&mesh, ServerOptions::default()).await;
    for protocol in [XdsProtocol::Sotw, XdsProtocol::Delta] {
        mesh.cluster("base", "cluster-00007", "before");
        mesh.commit();
        let names: Vec<String> = match protocol {
            XdsProtocol::Sotw => {
                let (requests, outgoing) = mpsc::channel(16);
                let answer = server.client().await.stream_aggregated_resources(ReceiverStream::new(outgoing)).await;
                let mut responses: Streaming<DiscoveryResponse> = answer.expect("a stream").into_inner();
                let request = DiscoveryRequest {
                    node: node(),
                    type_url: Cluster.type_url().into(),
                    ..DiscoveryRequest::default()
                };
                requests.send(request.clone()).await.expect("open");
                let all = within(responses.message()).await.expect("no error").expect("a response");
                assert_eq!(all.resources.len(), 3000);
                requests
                    .send(DiscoveryRequest {
                        node: None,
                        response_nonce: all.nonce,
                        version_info: all.version_info,
                        ..request
                    })
                    .await
                    .expect("open");
                mesh.cluster("base", "cluster-00007", "after");
                mesh.commit();
                let changed_response = within(responses.message()).await.expect("no error").expect("a response");
                let changed =
                    changed_response.resources.iter().zip(&all.resources).filter(|(new, old)| new.value != old.value);
                changed.map(|_| "cluster-00007".to_owned()).collect()
            }
            XdsProtocol::Delta => {
                let (requests, mut responses) = server.delta().await;
                requests.send(first(Cluster)).await.expect("open");
                let all = within(responses.message()).await.expect("no error").expect("a response");
                assert_eq!(all.resources.len(), 3000);
                let ack = DeltaDiscoveryRequest { node: None, response_nonce: all.nonce, ..first(Cluster) };
                requests.send(ack).await.expect("open");
                mesh.cluster("base", "cluster-00007", "after");
                mesh.commit();
                let changed_response = within(responses.message()).await.expect("no error").expect("a response");
                changed_response.resources.into_iter().map(|resource| resource.name).collect()
            }
        };
        assert_eq!(names, ["cluster-00007"], "{protocol:?}");
    }
    server.serving.abort();
}

#[tokio::test]
async fn a_rejected_stream_has_a_reason() {
    let mesh = mesh_of(1);
    let options = ServerOptions { max_request_bytes: 10_000, ..ServerOptions::default() };
    let server = Server::start(&mesh, options).await;
    let (requests, mut responses) = server.delta().await;
    requests.send(DeltaDiscoveryRequest { node: None, ..first(Cluster) }).await.expect("open");
    let status = within(responses.message()).await.expect_err("no node");
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "missing node information"));

    let (requests, mut responses) = server.delta().await;
    let big = DeltaDiscoveryRequest { resource_names_subscribe: vec!["x".repeat(100); 200], ..first(Cluster) };
    requests.send(big).await.expect("open");
    let status = within(responses.message()).await.expect_err("too big");
    assert!(matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted), "{status:?}");

    // The next stream is served.
    let (requests, mut responses) = server.delta().await;
    requests.send(first(Cluster)).await.expect("open");
    assert_eq!(within(responses.message()).await.expect("no error").expect("a response").resources.len(), 1);
    server.serving.abort();
}

#[tokio::test]
async fn streams_end_when_the_server_shuts_down() {
    let mesh = mesh_of(1);
    let server = Server::start(&mesh, ServerOptions::default()).await;
    let (requests, mut responses) = server.delta().await;
    requests.send(first(Cluster)).await.expect("open");
    within(responses.message()).await.expect("no error").expect("a response");
    // A stream without a first request.
    let (_silent, mut nothing) = server.delta().await;
    server.shutdown.send(()).expect("it serves");
    assert_eq!(within(responses.message()).await.expect_err("an end").code(), Code::Unavailable);
    assert_eq!(within(nothing.message()).await.expect_err("an end").code(), Code::Unavailable);
    drop((requests, responses, nothing));
    within(server.serving).await.expect("no panic").expect("no error");
    assert!(mesh.status.streams().is_empty());
}

#[tokio::test]
async fn closed_connections_leave_no_state() {
    let mesh = mesh_of(10);
    let server = Server::start(&mesh, ServerOptions::default()).await;
    let client = server.client().await;
    let rounds = (0..2000).map(|round| {
        let mut client = client.clone();
        async move {
            let (requests, outgoing) = mpsc::channel(16);
            requests.send(first(Cluster)).await.expect("open");
            let mut responses =
                client.delta_aggregated_resources(ReceiverStream::new(outgoing)).await.expect("a stream").into_inner();
            // Some disconnect before a response.
            if round % 3 != 0 {
                responses.message().await.expect("no error").expect("a response");
            }
        }
    });
    within(futures::stream::iter(rounds).buffer_unordered(50).collect::<Vec<()>>()).await;
    within(async {
        while !mesh.status.streams().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let last = || mesh.proxies.0.lock().expect("no panic").last().and_then(|(_, version)| version.clone());
    assert!(last().is_some(), "the proxy may reconnect");
    mesh.server.remove_expired_proxies(std::time::Instant::now() + Duration::from_secs(60));
    assert_eq!(last(), None, "the proxy is finally removed");
    server.serving.abort();
}

/// A codec that sends bytes unchanged.
#[derive(Clone, Default)]
struct Raw;

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

#[tokio::test]
async fn invalid_bytes_end_only_their_stream() {
    use prost::Message as _;
    let mesh = mesh_of(1);
    let server = Server::start(&mesh, ServerOptions::default()).await;
    let good = first(Listener).encode_to_vec();
    let mut inputs: Vec<Bytes> = (1..good.len()).map(|cut| Bytes::copy_from_slice(&good[..cut])).collect();
    inputs.push(Bytes::from_static(&[0xff; 300]));
    // A length beyond the end, an endless varint, text that is not UTF-8, groups without an end.
    inputs.push(Bytes::from_static(b"\x12\xff\xff\xff\xff\x0f"));
    inputs.push(Bytes::from_static(&[0x80; 64]));
    inputs.push(Bytes::from_static(b"\x12\x02\xff\xfe"));
    inputs.push(Bytes::from(vec![0x0b; 100_000]));
    let channel = server.channel().await;
    for path in ["StreamAggregatedResources", "DeltaAggregatedResources"] {
        for input in &inputs {
            let mut grpc = tonic::client::Grpc::new(channel.clone());
            grpc.ready().await.expect("connected");
            let request = tonic::Request::new(futures::stream::iter([input.clone()]));
            let path = format!("/envoy.service.discovery.v3.AggregatedDiscoveryService/{path}");
            let answer = within(grpc.streaming(request, path.parse().expect("a path"), Raw)).await;
            if let Ok(answer) = answer {
                // The stream may be answered or rejected, but it must end.
                let _ = within(answer.into_inner().collect::<Vec<_>>()).await;
            }
        }
    }
    let (requests, mut responses) = server.delta().await;
    requests.send(first(Cluster)).await.expect("open");
    assert_eq!(within(responses.message()).await.expect("no error").expect("a response").resources.len(), 1);
    server.serving.abort();
}

#[tokio::test]
async fn client_that_does_not_read_blocks_no_other_stream() {
    let mesh = SessionFixture::with(Admission::new(NonZeroUsize::new(1), None), ProxyLimits::default());
    for n in 0..10_000 {
        mesh.cluster("base", &format!("cluster-{n:05}"), &"x".repeat(1000));
    }
    mesh.commit();
    let server = Server::start(&mesh, ServerOptions::default()).await;
    let (idle, _unread) = server.delta().await;
    idle.send(first(Cluster)).await.expect("open");
    let answered = (0..20).map(|_| async {
        let (requests, mut responses) = server.delta().await;
        requests.send(first(Cluster)).await.expect("open");
        responses.message().await.expect("no error").expect("a response").resources.len()
    });
    let answered = within(futures::future::join_all(answered)).await;
    assert_eq!(answered, [10_000; 20]);
    server.serving.abort();
}

#[tokio::test]
async fn streams_over_the_admission_limit_are_rejected_with_resource_exhausted() {
    let mesh = SessionFixture::with(Admission::new(None, NonZeroU32::new(1)), ProxyLimits::default());
    let server = Server::start(&mesh, ServerOptions::default()).await;
    let begin = || async {
        let (requests, outgoing) = mpsc::channel(16);
        requests.send(first(Cluster)).await.expect("open");
        let answer = server.client().await.delta_aggregated_resources(ReceiverStream::new(outgoing)).await;
        answer.err().map(|status| status.code())
    };
    let codes = within(futures::future::join_all((0..4).map(|_| begin()))).await;
    let refused = codes.iter().filter(|code| **code == Some(Code::ResourceExhausted)).count();
    assert!((1..=2).contains(&refused), "{codes:?}");
    server.serving.abort();
}

/// Limits of connections with short time limits.
fn short_limits() -> ListenLimits {
    let limit = Duration::from_millis(300);
    ListenLimits { first_request_timeout: limit, idle_timeout: limit, ..ListenLimits::default() }
}

#[tokio::test]
async fn stream_without_a_first_request_ends() {
    let mesh = mesh_of(1);
    let server = Server::start_with(&mesh, ServerOptions::default(), short_limits()).await;
    let (requests, mut identified) = server.delta().await;
    requests.send(first(Cluster)).await.expect("open");
    within(identified.message()).await.expect("no error").expect("a response");
    let (_silent, mut nothing) = server.delta().await;
    let status = within(nothing.message()).await.expect_err("it ends");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    // A report of health does not identify the proxy.
    let (requests, mut probing) = server.delta().await;
    let health =
        DeltaDiscoveryRequest { type_url: "type.googleapis.com/istio.v1.HealthInformation".into(), ..first(Cluster) };
    requests.send(health).await.expect("open");
    let status = within(probing.message()).await.expect_err("it ends");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    mesh.cluster("base", "cluster-00000", "after");
    mesh.commit();
    within(identified.message()).await.expect("no error").expect("the identified stream is served");
    server.serving.abort();
}

#[tokio::test]
async fn connection_without_a_stream_is_closed() {
    let mesh = mesh_of(1);
    let server = Server::start_with(&mesh, ServerOptions::default(), short_limits()).await;
    let channel = server.channel().await;
    let mut client = AggregatedDiscoveryServiceClient::new(channel.clone());
    let (requests, outgoing) = mpsc::channel(16);
    requests.send(first(Cluster)).await.expect("open");
    let mut responses =
        client.delta_aggregated_resources(ReceiverStream::new(outgoing)).await.expect("a stream").into_inner();
    within(responses.message()).await.expect("no error").expect("a response");
    let mut raw = tokio::net::TcpStream::connect(server.address).await.expect("connect");
    let mut end = [0; 1024];
    // The raw connection sends nothing; the stream stays open although it is as idle.
    within(async { while let Ok(1..) = tokio::io::AsyncReadExt::read(&mut raw, &mut end).await {} }).await;
    mesh.cluster("base", "cluster-00000", "after");
    mesh.commit();
    within(responses.message()).await.expect("no error").expect("the stream is served");
    drop((requests, responses, client));
    server.closed_by("idle").await;
    drop(channel);
    server.serving.abort();
}

#[tokio::test]
async fn client_that_answers_no_ping_is_disconnected() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mesh = mesh_of(1);
    let limit = Duration::from_millis(100);
    let options = ServerOptions { keepalive_interval: limit, keepalive_timeout: limit, ..ServerOptions::default() };
    let server = Server::start(&mesh, options).await;
    let mut raw = tokio::net::TcpStream::connect(server.address).await.expect("connect");
    let started = std::time::Instant::now();
    // The preface of a client, and its settings.
    raw.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("open");
    within(async { while let Ok(1..) = raw.read(&mut [0; 1024]).await {} }).await;
    assert!(started.elapsed() >= limit * 2, "a ping is sent and awaited");
    assert!(started.elapsed() < Duration::from_secs(9), "before the time limit of the first request");
    server.serving.abort();
}

#[tokio::test]
async fn streams_of_a_caller_and_of_a_connection_are_limited() {
    let mesh = mesh_of(1);
    let streams = StreamLimits { of_caller: 4, ..StreamLimits::default() };
    let server = Server::start(&mesh, ServerOptions { streams, max_streams: 3, ..ServerOptions::default() }).await;
    let client = server.client().await;
    let open = async |mut client: AggregatedDiscoveryServiceClient<Channel>| {
        let (requests, outgoing) = mpsc::channel(16);
        requests.send(first(Cluster)).await.expect("open");
        let responses = client.delta_aggregated_resources(ReceiverStream::new(outgoing)).await?;
        Ok::<_, Status>((requests, responses.into_inner()))
    };
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(within(open(client.clone())).await.expect("a stream"));
    }
    // The client keeps to the limit that the server announces: the fourth stream of the connection waits.
    let fourth = tokio::spawn(open(client.clone()));
    held.push(within(open(server.client().await)).await.expect("another connection"));
    let status = within(open(server.client().await)).await.expect_err("the caller has four streams");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    for (_, responses) in &mut held {
        within(responses.message()).await.expect("no error").expect("a response");
    }
    assert!(!fourth.is_finished());
    fourth.abort();
    server.serving.abort();
}

#[tokio::test]
async fn first_request_of_an_anonymous_stream_has_a_smaller_limit() {
    let mesh = mesh_of(1);
    let options = ServerOptions { max_anonymous_request_bytes: 10_000, ..ServerOptions::default() };
    let server = Server::start(&mesh, options).await;
    let large = DeltaDiscoveryRequest { resource_names_subscribe: vec!["x".repeat(100); 200], ..first(Cluster) };
    let (requests, mut responses) = server.delta().await;
    requests.send(large.clone()).await.expect("open");
    let status = within(responses.message()).await.expect_err("too large");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let (requests, mut responses) = server.delta().await;
    requests.send(first(Cluster)).await.expect("open");
    within(responses.message()).await.expect("no error").expect("a response");
    requests
        .send(DeltaDiscoveryRequest { node: None, type_url: Listener.type_url().into(), ..large })
        .await
        .expect("open");
    requests.send(first(ResourceType::Route)).await.expect("open");
    mesh.cluster("base", "cluster-00000", "after");
    mesh.commit();
    within(responses.message()).await.expect("the later request is accepted").expect("a response");
    server.serving.abort();
}

#[tokio::test]
async fn connections_end_at_their_maximum_age_without_loss() {
    let mesh = mesh_of(300);
    let options = ServerOptions { max_connection_age: Some(Duration::from_millis(500)), ..ServerOptions::default() };
    let server = Server::start(&mesh, options).await;
    let mut held = std::collections::BTreeMap::new();
    let mut connections = 0;
    // A cluster changes until the client has reconnected three times. Each response is whole, and each change arrives.
    for round in 0.. {
        connections += 1;
        let (requests, mut responses) = server.delta().await;
        let versions = held.iter().map(|(name, (version, _))| (String::clone(name), String::clone(version))).collect();
        requests
            .send(DeltaDiscoveryRequest { initial_resource_versions: versions, ..first(Cluster) })
            .await
            .expect("open");
        let mut received = 0;
        let status = loop {
            match within(responses.message()).await {
                Ok(Some(response)) => {
                    received += response.resources.len();
                    for resource in response.resources {
                        let bytes = resource.resource.expect("a resource").value;
                        held.insert(resource.name, (resource.version, bytes));
                    }
                    let ack = DeltaDiscoveryRequest { node: None, response_nonce: response.nonce, ..first(Cluster) };
                    // The stream may have ended.
                    let _ = requests.send(ack).await;
                    mesh.cluster("base", "cluster-00007", &format!("{round}-{received}"));
                    mesh.commit();
                }
                Ok(None) => panic!("the stream has no status"),
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().contains("opened again"), "{status:?}");
        assert!(round == 0 || received >= 1, "the change before the reconnect arrives");
        if connections == 3 {
            break;
        }
    }
    assert_eq!(held.len(), 300);
    server.serving.abort();
}
