//! Callers that wait: for room for a request that has been received in part, or for the review of a token.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use prometheus_client::registry::Registry;
use prost::Message as _;
use sluice_auth::{Authenticator, Authenticators, Call, ForwardedCertificates, Verdict};
use sluice_listen::{Listener, PortOptions};
use sluice_model::ResourceType;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use sluice_testkit::wait::until_async;
use sluice_xds::{DiscoveryServer, Metrics, ServerOptions, StreamLimits, serve};
use sluice_xds_protocol::Store;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::{Service as _, ServiceExt as _};

use super::fixture::{RecordedProxies, SIDECAR};

const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A server, and its metrics.
struct Server {
    address: SocketAddr,
    metrics: Registry,
}

impl Server {
    async fn start(streams: StreamLimits, authenticators: Authenticators) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::default();
        metrics.register(&mut registry);
        let proxies = Arc::new(RecordedProxies::default());
        let server = DiscoveryServer::new(Arc::new(Store::default()), proxies, metrics, true);
        server.store().set_ready();
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = tcp.local_addr().expect("an address");
        let listener = Listener::new(tcp, PortOptions { name: "grpc", ..PortOptions::default() });
        let options = ServerOptions { streams, ..ServerOptions::default() };
        tokio::spawn(serve(listener, server, options, authenticators, std::future::pending()));
        Self { address, metrics: registry }
    }

    /// The number of streams that were refused for a reason.
    fn refused(&self, reason: &str) -> usize {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).expect("a text");
        let row = format!("sluice_xds_refused{{reason=\"{reason}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&row)?.parse().ok()).unwrap_or_default()
    }

    async fn channel(&self) -> Channel {
        let channel = Channel::from_shared(format!("http://{}", self.address)).expect("an address");
        channel.connect().await.expect("a connection")
    }
}

/// A stream that sends these bytes, and then ends its requests or not. Returns its status when the server ends it.
async fn status_of(mut channel: Channel, bytes: Bytes, ends: bool) -> Option<Code> {
    let rest = match ends {
        true => futures::stream::empty().left_stream(),
        false => futures::stream::pending().right_stream(),
    };
    let frames = futures::stream::iter([Ok::<_, Infallible>(Frame::data(bytes))]).chain(rest);
    let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
    let request = http::Request::post(format!("http://sluice{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(StreamBody::new(frames)))
        .expect("a request");
    let response = channel.ready().await.expect("connected").call(request).await.expect("a response");
    let at_once = Status::from_header_map(response.headers());
    let mut body = std::pin::pin!(response.into_body());
    while let Some(frame) = body.frame().await {
        if let Ok(trailers) = frame.expect("no error").into_trailers() {
            return Status::from_header_map(&trailers).map(|status| status.code());
        }
    }
    at_once.map(|status| status.code())
}

/// Requests for clusters, the first of which identifies a proxy.
fn requests<const N: usize>(names: [Vec<String>; N]) -> Vec<u8> {
    let mut node = Some(Node { id: SIDECAR.into(), ..Node::default() });
    let requests = names.map(|resource_names_subscribe| {
        let (node, type_url) = (node.take(), ResourceType::Cluster.type_url().into());
        let request =
            DeltaDiscoveryRequest { node, type_url, resource_names_subscribe, ..DeltaDiscoveryRequest::default() };
        let message = request.encode_to_vec();
        let length = u32::try_from(message.len()).expect("a small message").to_be_bytes();
        [&[0][..], &length, &message].concat()
    });
    requests.concat()
}

/// A request that identifies a proxy, and the first bytes of one of almost 4 MiB.
fn begun_request() -> Bytes {
    let length = ((4_u32 << 20) - 16).to_be_bytes();
    [&requests([Vec::new()])[..], &[0], &length, &[0; 100]].concat().into()
}

#[tokio::test]
async fn streams_that_wait_for_room_for_a_request_are_limited() {
    let streams = StreamLimits { waiting_of_address: 2, ..StreamLimits::default() };
    let anonymous = Authenticators::new(vec![Arc::new(ForwardedCertificates::default())], false);
    let server = Server::start(streams, anonymous).await;
    let channel = server.channel().await;
    let mut calls = JoinSet::new();
    for _ in 0..9 {
        calls.spawn(status_of(channel.clone(), begun_request(), false));
    }
    // Four requests have all the room of the caller, and two streams wait for it.
    for _ in 0..3 {
        let ended = tokio::time::timeout(TIME_LIMIT, calls.join_next()).await.expect("a stream ends");
        assert_eq!(ended.expect("a call").expect("no panic"), Some(Code::ResourceExhausted));
    }
    assert_eq!((calls.len(), server.refused("waiting")), (6, 3));
    calls.shutdown().await;
    let large = Bytes::from(requests([Vec::new(), vec!["x".repeat(1000); 1000]]));
    // The server notices some time later that the streams have ended.
    until_async("a later request has room, and is read", async || {
        let ended = tokio::time::timeout(TIME_LIMIT, status_of(channel.clone(), large.clone(), true)).await;
        (ended.expect("it ends") == Some(Code::Ok)).then_some(())
    })
    .await;
}

/// An authenticator that reviews no token at present.
struct Overloaded;

impl Authenticator for Overloaded {
    fn name(&self) -> &'static str {
        "token review"
    }

    fn authenticate<'a>(&'a self, _: &'a Call<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(std::future::ready(Verdict::Overloaded("too many callers wait".to_owned())))
    }
}

#[tokio::test]
async fn stream_whose_token_cannot_be_reviewed_now_is_refused_as_overload() {
    let authenticators = Authenticators::new(vec![Arc::new(Overloaded)], true);
    let server = Server::start(StreamLimits::default(), authenticators).await;
    let refused = status_of(server.channel().await, begun_request(), false);
    let refused = tokio::time::timeout(TIME_LIMIT, refused).await.expect("it ends");
    assert_eq!(refused, Some(Code::ResourceExhausted));
    assert_eq!((server.refused("reviews"), server.refused("unauthenticated")), (1, 0));
}
