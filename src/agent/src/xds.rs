//! xDS proxy between Envoy, or gRPC libraries of the application, and the control plane (D01). Each stream has one to the control
//! plane.
//!
//! Messages pass as bytes; only their type is read. Responses for the agent are intercepted. The agent subscribes to its
//! types on the same stream, and responses with extensions wait until their Wasm modules are fetched.

mod authority;
mod extensions;
mod intercept;
mod message;
mod stream;

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::task;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::TryStreamExt as _;
use futures::future::BoxFuture;
use http::uri::PathAndQuery;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::{NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};

use crate::codec::Raw;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::serving::keep_serving;
use crate::settings::Upstream;
use crate::unix::SocketUsers;
use crate::wasm::Modules;
use authority::AuthorityStream;
pub(crate) use intercept::{InterceptedTypes, NAME_TABLE, PROXY_CONFIG};
use message::XdsProtocol;

pub(crate) const SOTW: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// State that all streams share.
pub(crate) struct XdsProxy {
    pub(crate) upstream: Upstream,
    /// Types whose responses the agent handles.
    pub(crate) intercepted: InterceptedTypes,
    /// Health of the workload.
    pub(crate) health: watch::Receiver<Health>,
    /// Wasm modules of extensions.
    pub(crate) modules: Modules,
    pub(crate) metrics: Metrics,
}

/// Serves clients on a socket until the process ends.
///
/// # Errors
/// The agent cannot listen on the socket.
pub(crate) fn serve(proxy: XdsProxy, socket: &Path, users: SocketUsers) -> Result<()> {
    let listener = crate::unix::listen(socket, users).with_context(|| format!("listen on {}", socket.display()))?;
    info!(target: "xdsproxy", socket = %socket.display(), upstream = proxy.upstream.address, "listening");
    if proxy.upstream.roots.is_none() {
        warn!(target: "xdsproxy", "connections to the control plane are plaintext: controlPlaneAuthPolicy is NONE");
    }
    let metrics = proxy.metrics.listen();
    let service = Service(Arc::new(proxy));
    let path = socket.to_owned();
    let bind = move || std::future::ready(crate::unix::listen(&path, users));
    keep_serving("xDS proxy", listener, bind, move |listener| {
        let server = tonic::transport::Server::builder().add_service(service.clone());
        let incoming = crate::unix::incoming(listener, "xds", &metrics).map_ok(AuthorityStream::new);
        async move { Ok(server.serve_with_incoming(incoming).await?) }
    });
    Ok(())
}

#[derive(Clone)]
struct Service(Arc<XdsProxy>);

impl NamedService for Service {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<Result<(), Infallible>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let proxy = Arc::clone(&self.0);
        Box::pin(async move {
            let protocol = match request.uri().path() {
                SOTW => XdsProtocol::Sotw,
                DELTA => XdsProtocol::Delta,
                _ => return Ok(Status::unimplemented("unknown method").into_http()),
            };
            let mut grpc = tonic::server::Grpc::new(Raw).max_decoding_message_size(usize::MAX);
            Ok(grpc.streaming(Method { proxy, protocol }, request).await)
        })
    }
}

struct Method {
    proxy: Arc<XdsProxy>,
    protocol: XdsProtocol,
}

impl StreamingService<Bytes> for Method {
    type Response = Bytes;
    type ResponseStream = ReceiverStream<Result<Bytes, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let (proxy, protocol) = (Arc::clone(&self.proxy), self.protocol);
        // One response is being written, and one waits.
        let (sender, responses) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let end = stream::run(&proxy, protocol, request.into_inner(), &sender).await;
            if let Err(status) = end {
                // Envoy reconnects with its current versions, so no configuration is lost.
                info!(target: "xdsproxy", code = ?status.code(), reason = status.message(), "stream ended");
                let _ = sender.send(Err(status)).await;
            }
        });
        Box::pin(async { Ok(Response::new(ReceiverStream::new(responses))) })
    }
}

impl XdsProtocol {
    fn path(self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Self::Sotw => SOTW,
            Self::Delta => DELTA,
        })
    }
}
