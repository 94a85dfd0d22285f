//! Malicious and broken clients. Whatever they send, the server does not panic, its memory stays bounded, and other
//! proxies are served.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures::StreamExt as _;

use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use sluice_proto::google::protobuf::value::Kind::ListValue as ListKind;
use sluice_proto::google::protobuf::{ListValue, Struct, Value as ProtoValue};
use sluice_proto::google::rpc::Status;
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, connect};
use sluice_testkit::parity::case::{Case, root};
use sluice_testkit::parity::case_server::CaseServer;
use sluice_testkit::wait::{until, until_async};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tower::{Service, ServiceExt};

/// A server under attack, with another proxy that it serves.
struct AttackedServer(CaseServer);

impl AttackedServer {
    async fn start() -> Result<Self> {
        Ok(Self(CaseServer::start(Case::read(&root().join("virtualservice/01-user-header-canary"))?).await?))
    }

    /// The plaintext xDS port.
    fn grpc(&self) -> SocketAddr {
        self.0.server.grpc
    }

    /// A stream of `identity`, or the reason why there is none.
    async fn stream(&self, protocol: Protocol, identity: Identity) -> Result<AdsStream> {
        AdsStream::open(connect(self.grpc()).await?, protocol, identity)
    }

    fn good_identity(&self) -> Result<Identity> {
        Identity::of_node(&self.0.case.proxies.first().context("the case has a proxy")?.node)
    }

    /// Checks that the other proxy receives the same resources as before the attack.
    async fn check_other_proxy(&self) -> Result<()> {
        let after = self.0.dump().await.context("serve the other proxy")?;
        for (kind, resources) in &self.0.before {
            ensure!(
                after.get(kind) == Some(resources),
                "the other proxy receives other {} resources than before",
                kind.name()
            );
        }
        Ok(())
    }

    /// Checks that nothing has panicked, and that the server is ready, uses bounded memory, and serves the other proxy as
    /// before.
    async fn check(self) -> Result<()> {
        self.check_other_proxy().await?;
        let (status, _) = self.0.server.get("/ready").await?;
        ensure!(status == 200, "/ready answers {status}");
        self.0.memory.check_growth("the attack")?;
        let panic = self.0.stop(Duration::from_secs(15)).await?;
        ensure!(panic.is_none(), "{}", panic.unwrap_or_default());
        Ok(())
    }
}

fn node(id: &str, metadata: Value) -> Result<Identity> {
    Identity::of_node(&json!({"id": id, "metadata": metadata}))
}

/// Reads responses for a moment; the end of the stream counts as a response.
async fn drain(stream: &mut AdsStream) {
    while let Ok(Some(update)) = stream.next_within(Duration::from_millis(150)).await {
        if stream.ack(&update).is_err() {
            return;
        }
    }
}

/// The path of a method of ADS.
fn ads_path(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Sotw => "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
        Protocol::Delta => "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
    }
}

/// A call whose body has these bytes and does not end before the future is dropped. Returns the gRPC status when the server ends it.
async fn endless_call(server: SocketAddr, path: &str, body: Vec<Bytes>) -> Result<Option<tonic::Code>> {
    let (_open, dropped) = oneshot::channel::<()>();
    let frames = body.into_iter().map(|bytes| Ok::<_, tonic::Status>(Frame::data(bytes)));
    let end = futures::stream::once(dropped).filter_map(async |_| None);
    let frames = futures::stream::iter(frames).chain(end);
    let request = http::Request::post(format!("http://sluice{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::new(StreamBody::new(frames)))?;
    let response = connect(server).await?.ready().await?.call(request).await?;
    let at_once = tonic::Status::from_header_map(response.headers());
    let mut body = std::pin::pin!(response.into_body());
    while let Some(frame) = body.frame().await {
        if let Ok(trailers) = frame?.into_trailers() {
            return Ok(tonic::Status::from_header_map(&trailers).map(|status| status.code()));
        }
    }
    Ok(at_once.map(|status| status.code()))
}

/// A part of a message of a gRPC body, of 4 MiB as a whole.
fn part_of_message(bytes: usize) -> Vec<Bytes> {
    let prefix = [&[0][..], &(4_u32 << 20).to_be_bytes()].concat();
    let block = Bytes::from(vec![0; 64 << 10]);
    std::iter::once(prefix.into()).chain(std::iter::repeat_n(block, bytes >> 16)).collect()
}

/// A message of a gRPC body.
fn message(request: &impl prost::Message) -> Bytes {
    let payload = request.encode_to_vec();
    [&[0][..], &u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes(), &payload].concat().into()
}

/// The number of calls that ended with each status.
async fn statuses(calls: JoinSet<Result<Option<tonic::Code>>>) -> Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for status in calls.join_all().await {
        *counts.entry(format!("{:?}", status?)).or_default() += 1;
    }
    Ok(counts)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_never_end_leave_memory_bounded() -> Result<()> {
    const STREAMS: usize = 100;
    let attacked = AttackedServer::start().await?;
    let mut calls = JoinSet::new();
    for number in 0..STREAMS {
        let first = DeltaDiscoveryRequest {
            node: attacked.good_identity()?.node,
            type_url: Kind::Cds.type_url().to_owned(),
            ..DeltaDiscoveryRequest::default()
        };
        let body = std::iter::once(message(&first)).chain(part_of_message((4 << 20) - (64 << 10))).collect();
        let server = attacked.grpc();
        calls.spawn(async move {
            let protocol = Protocol::Delta;
            let ended = endless_call(server, ads_path(protocol), body);
            tokio::time::timeout(Duration::from_secs(14), ended).await.unwrap_or(Ok(None)).context(number)
        });
    }
    // Without a limit, the server would hold 400 MB by now.
    tokio::time::sleep(Duration::from_secs(8)).await;
    attacked.0.memory.check_growth("100 requests of 4 MiB that never end")?;
    attacked.check_other_proxy().await?;
    let counts = statuses(calls).await?;
    ensure!(counts.get("Some(DeadlineExceeded)").is_some_and(|count| *count > 1), "{counts:?}");
    attacked.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_reflection_are_small_and_few() -> Result<()> {
    let attacked = AttackedServer::start().await?;
    let method = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let call = |body: Vec<Bytes>| {
        let server = attacked.grpc();
        async move {
            let ended = endless_call(server, method, body);
            tokio::time::timeout(Duration::from_secs(5), ended).await.unwrap_or(Ok(None))
        }
    };
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        calls.spawn(call(Vec::new()));
    }
    let counts = statuses(calls).await?;
    ensure!(counts.get("Some(ResourceExhausted)") == Some(&36), "64 streams at a time: {counts:?}");
    // The server notices some time later that the streams have ended.
    until_async("a stream with a large request ends without an answer", async || {
        call(part_of_message(1 << 20)).await.ok().flatten().filter(|status| *status == tonic::Code::Ok)
    })
    .await;
    attacked.check().await
}

/// A node whose extensions or values take two bytes each in the request.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_very_many_parts_leave_memory_bounded() -> Result<()> {
    let attacked = AttackedServer::start().await?;
    let good = attacked.good_identity()?.node.context("the case has a node")?;
    let extensions = Node { extensions: vec![Default::default(); 1_000_000], ..good.clone() };
    let values = ListValue { values: vec![Default::default(); 1_000_000] };
    let list = ProtoValue { kind: Some(ListKind(values)) };
    let list = Struct { fields: [("LIST".to_owned(), list)].into_iter().collect() };
    let values = Node { metadata: Some(list), ..good };
    let mut calls = JoinSet::new();
    for node in [extensions, values] {
        for type_url in [Kind::Cds.type_url(), "istio.io/debug"] {
            let request = DiscoveryRequest {
                node: Some(node.clone()),
                type_url: type_url.to_owned(),
                error_detail: Some(Status { details: vec![Default::default(); 10_000], ..Status::default() }),
                ..DiscoveryRequest::default()
            };
            let body = message(&request);
            for _ in 0..10 {
                let (server, body) = (attacked.grpc(), vec![body.clone()]);
                calls.spawn(async move {
                    let ended = endless_call(server, ads_path(Protocol::Sotw), body);
                    tokio::time::timeout(Duration::from_secs(60), ended).await.context("the stream ends")?
                });
            }
        }
    }
    let counts = statuses(calls).await?;
    ensure!(counts == BTreeMap::from([("Some(InvalidArgument)".to_owned(), 40)]), "{counts:?}");
    attacked.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_requests_end_the_stream() -> Result<()> {
    let attacked = AttackedServer::start().await?;
    let frame = |length: u32, payload: &[u8]| {
        let mut out = vec![0];
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(payload);
        out
    };
    let framed = |payload: &[u8]| frame(u32::try_from(payload.len()).expect("small"), payload);
    let bodies: Vec<Vec<u8>> = vec![
        vec![],
        vec![0],
        vec![0, 0, 0],
        frame(10, &[]),
        frame(10, &[1, 2, 3]),
        frame(u32::MAX, &[0; 64]),
        frame(3, &[0xff, 0xff, 0xff]),
        frame(12, b"\x22\x0aabcdefghij"),
        // A field with a length beyond the message, and text that is not UTF-8.
        frame(2, &[0x22, 0x7f]),
        frame(4, &[0x22, 2, 0xc3, 0x28]),
        // Groups within groups, as deep as possible.
        frame(4096, &[0x0b; 4096]),
        framed(&[0x0b; 30_000]),
        framed(&[0x0b; 1 << 20]),
        // Messages within messages: the node of a node of a node.
        frame(4096, &[0x12; 4096]),
        // Node metadata within metadata, in a request of each protocol.
        framed(&nested_metadata(&[0x12, 0x1a], 1_000)),
        framed(&nested_metadata(&[0x12, 0x1a], 5_000)),
        framed(&nested_metadata(&[0x12, 0x1a], 20_000)),
        framed(&nested_metadata(&[0x12, 0x1a], 100_000)),
        framed(&nested_metadata(&[0x0a, 0x1a], 20_000)),
        framed(&nested_metadata(&[0x0a, 0x1a], 100_000)),
        // A compressed frame, although no compression is negotiated.
        [vec![1], frame(4, &[1, 2, 3, 4])[1..].to_vec()].concat(),
        vec![0xff; 70_000],
    ];
    for method in ["StreamAggregatedResources", "DeltaAggregatedResources", "NoSuchMethod"] {
        for body in &bodies {
            let mut channel = connect(attacked.grpc()).await?;
            let request = http::Request::post(format!(
                "http://sluice/envoy.service.discovery.v3.AggregatedDiscoveryService/{method}"
            ))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(tonic::body::Body::new(Full::new(Bytes::from(body.clone()))))?;
            let answer = channel.ready().await?.call(request);
            // Any status is correct, and so is a closed connection.
            let _ = tokio::time::timeout(Duration::from_millis(500), answer).await;
        }
    }
    for text in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0; 4096], &[0x16, 3, 1, 2, 0, 1]]
    {
        let mut socket = TcpStream::connect(attacked.grpc()).await?;
        let _ = socket.write_all(text).await;
        let _ = socket.shutdown().await;
    }
    attacked.check().await
}

/// A message with a `Struct` in a field of a field, by their tags. The `Struct` has a field that is a `Struct`, and so on.
fn nested_metadata(fields: &[u8], depth: usize) -> Vec<u8> {
    // From the inside to the outside, in reverse order of bytes.
    let mut reversed = Vec::new();
    // Tags of a struct in a value, of the value in an entry of the map, and of the entry in the struct.
    let tags = [0x2a, 0x12, 0x0a].repeat(depth);
    for tag in tags.iter().chain(fields.iter().rev()) {
        let mut length = Vec::new();
        prost::encoding::encode_varint(reversed.len() as u64, &mut length);
        reversed.extend(length.iter().rev());
        reversed.push(*tag);
    }
    reversed.reverse();
    reversed
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_nodes_are_rejected() -> Result<()> {
    let attacked = AttackedServer::start().await?;
    let long = "x".repeat(1 << 20);
    let deep = (0..20).fold(json!(1), |inner, _| json!({"a": inner}));
    let mut identities = vec![Identity::default(), Identity { node: Some(Node::default()), forwarded: None }];
    for id in [
        "",
        "~",
        "~~~",
        "sidecar",
        "sidecar~10.0.0.1~~",
        "sidecar~not-an-address~a.b~c.svc.cluster.local",
        "sidecar~10.0.0.1~no-namespace~x",
        "nonsense~10.0.0.1~a.b~b.svc.cluster.local",
        "router~999.999.999.999~a.b~b.svc.cluster.local",
        "sidecar~::1~../../etc/passwd.b~b.svc.cluster.local",
        "sidecar~10.0.0.1~\u{0}\u{1f4a3}.b~b.svc.cluster.local",
        "sidecar~10.0.0.1~a.b~b.svc.cluster.local~more~of~it",
        &long,
    ] {
        identities.push(node(id, json!({}))?);
    }
    for metadata in [
        json!({"LABELS": "text", "NAMESPACE": 7, "INSTANCE_IPS": {"a": []}, "PROXY_CONFIG": [1], "CLUSTER_ID": null}),
        json!({"INSTANCE_IPS": ",,,;;;,10.0.0.1,::", "ISTIO_VERSION": "master-x.y.z-99999999999999999999"}),
        json!({"LABELS": {"": "", "a".repeat(100_000): "b"}, "NAMESPACE": "x".repeat(100_000)}),
        json!({"DEEP": deep}),
        json!({"GENERATOR": "no-such-generator", "NETWORK": "\u{0}", "DNS_CAPTURE": "perhaps"}),
        json!({"BIG": "y".repeat(3 << 20)}),
    ] {
        identities.push(node("sidecar~10.0.0.1~a.b~b.svc.cluster.local", metadata)?);
    }
    for identity in identities {
        for protocol in Protocol::ALL {
            let Ok(mut stream) = attacked.stream(protocol, identity.clone()).await else { continue };
            for kind in Kind::ALL {
                if stream.subscribe(kind.type_url(), &[], BTreeMap::new()).is_err() {
                    break;
                }
            }
            drain(&mut stream).await;
        }
    }
    attacked.check().await
}

/// A request of 1.35 MB: an unknown field takes 20 bytes, and its path would take 100 kB.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_metadata_below_a_long_key_leaves_memory_bounded() -> Result<()> {
    let attacked = AttackedServer::start().await?;
    for (fields, is_served) in [(8_000, true), (60_000, false)] {
        let unknown: serde_json::Map<String, Value> = (0..fields).map(|n| (format!("unknown{n}"), json!(1))).collect();
        let metadata = json!({"PROXY_CONFIG": {"tracing": {"customTags": {"k".repeat(100_000): unknown}}}});
        for protocol in Protocol::ALL {
            let identity = node("sidecar~10.9.9.9~a.canteen~canteen.svc.cluster.local", metadata.clone())?;
            let mut stream = attacked.stream(protocol, identity).await?;
            stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new())?;
            let answer = stream.next_within(Duration::from_secs(20)).await;
            ensure!(matches!(answer, Ok(Some(_))) == is_served, "{fields} fields: {:?}", answer.err());
        }
    }
    attacked.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_types_and_names_are_answered_with_nothing() -> Result<()> {
    let attacked = AttackedServer::start().await?;
    let many: Vec<String> =
        (0..100_000).map(|n| format!("outbound|80||service-{n}.nowhere.svc.cluster.local")).collect();
    let odd: Vec<String> = vec![
        String::new(),
        "*".to_owned(),
        "|||".to_owned(),
        "outbound|99999999999999999999||x".to_owned(),
        "outbound|80|subset|".to_owned(),
        "inbound|80||".to_owned(),
        "\u{0}".to_owned(),
        "kubernetes://../../secret".to_owned(),
        "x".repeat(1 << 20),
    ];
    for protocol in Protocol::ALL {
        let mut stream = attacked.stream(protocol, attacked.good_identity()?).await?;
        for kind in Kind::ALL {
            if stream.subscribe(kind.type_url(), &odd, BTreeMap::new()).is_err() {
                break;
            }
        }
        drain(&mut stream).await;

        let mut stream = attacked.stream(protocol, attacked.good_identity()?).await?;
        for type_url in ["", "/", "type.googleapis.com/", "no.such.Type", &"t".repeat(1 << 20)] {
            if stream.subscribe(type_url, &[], BTreeMap::new()).is_err() {
                break;
            }
            drain(&mut stream).await;
        }

        let mut stream = attacked.stream(protocol, attacked.good_identity()?).await?;
        for number in 0..5_000 {
            if stream.subscribe(&format!("type.googleapis.com/made.up.Type{number}"), &[], BTreeMap::new()).is_err() {
                break;
            }
        }
        drain(&mut stream).await;

        let mut stream = attacked.stream(protocol, attacked.good_identity()?).await?;
        let _ = stream.subscribe(Kind::Eds.type_url(), &many[..40_000], BTreeMap::new());
        drain(&mut stream).await;
    }
    let mut stream = attacked.stream(Protocol::Delta, attacked.good_identity()?).await?;
    let held: BTreeMap<String, String> = many[..20_000].iter().map(|name| (name.clone(), "v".to_owned())).collect();
    stream.subscribe(Kind::Cds.type_url(), &[], held)?;
    drain(&mut stream).await;
    attacked.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_acknowledgements_leave_the_server_stable() -> Result<()> {
    let attacked = AttackedServer::start().await?;
    let sotw = |nonce: &str, version: &str, error: bool| DiscoveryRequest {
        type_url: Kind::Cds.type_url().to_owned(),
        response_nonce: nonce.to_owned(),
        version_info: version.to_owned(),
        error_detail: error.then(|| Status { code: -1, message: "e".repeat(100_000), details: Vec::new() }),
        ..DiscoveryRequest::default()
    };
    let mut stream = attacked.stream(Protocol::Sotw, attacked.good_identity()?).await?;
    stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new())?;
    let first = stream.next_within(Duration::from_secs(10)).await?.context("an answer")?;
    for (nonce, version) in [("never-sent", "x"), ("", "y"), (first.nonce.as_str(), "not-that-version")] {
        stream.send_sotw(sotw(nonce, version, false))?;
        stream.send_sotw(sotw(nonce, version, true))?;
    }
    for _ in 0..1_000 {
        stream.nack(&first, "no")?;
    }
    let mut answers = 0;
    while let Ok(Some(update)) = stream.next_within(Duration::from_millis(300)).await {
        answers += 1;
        ensure!(answers < 50, "a rejected version is sent repeatedly");
        stream.nack(&update, "no")?;
    }
    let has_rejection = |log: &str| {
        let parts = [r#""msg":"proxy rejected configuration""#, r#""error":"no""#];
        log.lines().any(|line| parts.iter().all(|part| line.contains(part)))
    };
    until("the rejection is logged", || attacked.0.log().ok().filter(|log| has_rejection(log))).await;

    let mut stream = attacked.stream(Protocol::Delta, attacked.good_identity()?).await?;
    stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new())?;
    let first = stream.next_within(Duration::from_secs(10)).await?.context("an answer")?;
    let names = || (0..1_000).map(|n| n.to_string()).collect::<Vec<_>>();
    for nonce in ["never-sent", "", &first.nonce] {
        stream.send_delta(DeltaDiscoveryRequest {
            type_url: Kind::Eds.type_url().to_owned(),
            response_nonce: nonce.to_owned(),
            resource_names_subscribe: names(),
            resource_names_unsubscribe: names(),
            initial_resource_versions: names().into_iter().map(|name| (name, String::new())).collect(),
            error_detail: Some(Status::default()),
            ..DeltaDiscoveryRequest::default()
        })?;
    }
    drain(&mut stream).await;
    attacked.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn rapid_reconnects_leave_memory_bounded() -> Result<()> {
    const CONNECTIONS: usize = 10_000;
    const CONCURRENT_CONNECTIONS: usize = 50;
    let attacked = AttackedServer::start().await?;
    let good = attacked.good_identity()?;
    let mut tasks = JoinSet::new();
    let mut refused = 0;
    for number in 0..CONNECTIONS {
        if tasks.len() >= CONCURRENT_CONNECTIONS {
            refused += usize::from(!matches!(tasks.join_next().await, Some(Ok(true))));
        }
        let (address, identity) = (attacked.grpc(), good.clone());
        let protocol = Protocol::ALL[number % 2];
        tasks.spawn(async move {
            let Ok(channel) = connect(address).await else { return false };
            // A third disconnects before a request, a third without reading, a third in the middle.
            if number % 3 == 0 {
                return true;
            }
            let Ok(mut stream) = AdsStream::open(channel, protocol, identity) else { return false };
            let is_sent = stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new()).is_ok();
            if number % 3 == 1 {
                return is_sent;
            }
            matches!(stream.next_within(Duration::from_secs(20)).await, Ok(Some(_)))
        });
    }
    while let Some(done) = tasks.join_next().await {
        refused += usize::from(!matches!(done, Ok(true)));
    }
    ensure!(refused == 0, "{refused} of {CONNECTIONS} connections were refused");
    attacked.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_read_leave_memory_bounded() -> Result<()> {
    let attacked = AttackedServer::start().await?;
    let mut idle = Vec::new();
    for number in 0..100 {
        let mut stream = attacked.stream(Protocol::ALL[number % 2], attacked.good_identity()?).await?;
        for kind in [Kind::Cds, Kind::Lds, Kind::Nds] {
            stream.subscribe(kind.type_url(), &[], BTreeMap::new())?;
        }
        idle.push(stream);
    }
    for _ in 0..5 {
        attacked.check_other_proxy().await?;
    }
    drop(idle);
    attacked.check().await
}
