//! ADS on gRPC.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::Stream;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};
use tower::Service;

use crate::auth::{Authenticators, Call};
use crate::tls::Connection;
use crate::xds::body::{AdsBody, status_of};
use crate::xds::hub::Hub;
use crate::xds::limit::RateLimit;
use crate::xds::messages::Messages;
use crate::xds::reflection::{ADS, descriptors};
use crate::xds::request::Protocol;

/// Limits and times of the gRPC server (X21).
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// How often an idle connection is pinged.
    pub keepalive_interval: Duration,
    /// How long the answer to a ping may take.
    pub keepalive_timeout: Duration,
    /// Streams at a time on one connection.
    pub max_streams: u32,
    /// Size of a request in bytes.
    pub max_request_bytes: usize,
    /// Age at which a connection is asked to go away; without one it may stay.
    pub max_connection_age: Option<Duration>,
    /// How long it may take its time with going.
    pub max_connection_age_grace: Duration,
    /// Streams that may begin a second; without a number there is no limit (X14).
    pub max_streams_a_second: Option<NonZeroU32>,
    /// How long streams may take to end when the server shuts down; then they are cut.
    pub drain_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            max_streams: 100_000,
            max_request_bytes: 4 << 20,
            max_connection_age: None,
            max_connection_age_grace: Duration::from_secs(10),
            max_streams_a_second: None,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Serves ADS on the listener, to whom the authenticators let in, until `shutdown` is there; then drains.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    hub: Arc<Hub>,
    options: ServerOptions,
    authenticators: Authenticators,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    serve_on(incoming, hub, options, authenticators, Beside::default(), shutdown).await
}

/// What is served beside ADS.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// The services.
    pub routes: Routes,
    /// Files that declare them, for reflection.
    pub files: &'static [&'static str],
}

/// Serves ADS and what is beside it on connections.
///
/// # Errors
/// When there are no more connections.
pub async fn serve_on<IO, E>(
    incoming: impl Stream<Item = Result<IO, E>>,
    hub: Arc<Hub>,
    options: ServerOptions,
    authenticators: Authenticators,
    beside: Beside,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()>
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: Into<tower::BoxError>,
{
    let mut server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(options.keepalive_interval))
        .http2_keepalive_timeout(Some(options.keepalive_timeout))
        .max_concurrent_streams(options.max_streams)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .tcp_nodelay(true);
    if let Some(age) = options.max_connection_age {
        server = server.max_connection_age(age).max_connection_age_grace(options.max_connection_age_grace);
    }
    let files: Vec<&str> = [ADS].into_iter().chain(beside.files.iter().copied()).collect();
    let descriptors = descriptors(&files)?;
    let reflection =
        || tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(&descriptors);
    let router = server
        .add_routes(beside.routes)
        .add_service(AdsService::new(hub.clone(), &options, authenticators))
        .add_service(reflection().build_v1().context("set up reflection v1")?)
        .add_service(reflection().build_v1alpha().context("set up reflection v1alpha")?);
    let drained = hub.clone();
    let (begun, drain_begun) = tokio::sync::oneshot::channel();
    let serving = router.serve_with_incoming_shutdown(incoming, async move {
        shutdown.await;
        drained.drain();
        // Nobody to tell is nobody who waits.
        let _ = begun.send(());
    });
    let cut = async {
        match drain_begun.await {
            Ok(()) => tokio::time::sleep(options.drain_timeout).await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        served = serving => served.context("serve ADS"),
        () = cut => {
            tracing::warn!(target: "ads", "streams did not end in time and were cut");
            Ok(())
        }
    }
}

/// The AggregatedDiscoveryService, without tonic's encoder: bodies are shared bytes.
#[derive(Clone)]
pub struct AdsService {
    hub: Arc<Hub>,
    authenticators: Authenticators,
    limit: Arc<RateLimit>,
    max_request_bytes: usize,
}

impl AdsService {
    /// The service over these streams.
    #[must_use]
    pub fn new(hub: Arc<Hub>, options: &ServerOptions, authenticators: Authenticators) -> Self {
        let limit = Arc::new(RateLimit::new(options.max_streams_a_second));
        Self { hub, authenticators, limit, max_request_bytes: options.max_request_bytes }
    }

    async fn answer(self, protocol: Protocol, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        match self.limit.turn(Instant::now()) {
            None => return Err(Status::resource_exhausted("request rate limit exceeded")),
            Some(wait) if wait.is_zero() => {}
            Some(wait) => tokio::time::sleep(wait).await,
        }
        let secure = request.extensions().get::<Connection>();
        let plain = request.extensions().get::<TcpConnectInfo>();
        let call = Call {
            headers: request.headers(),
            peer: secure.map(|secure| secure.peer).or_else(|| plain?.remote_addr),
            certificates: secure.map(|secure| &*secure.certificates).unwrap_or_default(),
        };
        let caller = self.authenticators.caller(&call).await.map_err(|refused| {
            self.hub.metrics().refused("unauthenticated");
            tracing::warn!(target: "ads", "refused a stream: {refused}");
            Status::unauthenticated("authentication failure")
        })?;
        let stream = self.hub.open(protocol, caller).map_err(status_of)?;
        let requests = Messages::new(request.into_body(), self.max_request_bytes);
        let mut response = http::Response::new(Body::new(AdsBody::new(stream, protocol, requests)));
        response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
        Ok(response)
    }
}

impl NamedService for AdsService {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl Service<http::Request<Body>> for AdsService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let answer = match request.uri().path().rsplit('/').next() {
                Some("StreamAggregatedResources") => service.answer(Protocol::Sotw, request).await,
                Some("DeltaAggregatedResources") => service.answer(Protocol::Delta, request).await,
                _ => Err(Status::unimplemented("no such method")),
            };
            Ok(answer.unwrap_or_else(Status::into_http))
        })
    }
}
