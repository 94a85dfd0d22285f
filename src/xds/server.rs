//! ADS on gRPC.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt as _};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sluice_auth::{Authenticators, Call};
use sluice_tls::Connection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::service::Routes;
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};
use tower::Service;

use crate::xds::admission::Busy;
use crate::xds::body::{AdsBody, AnyBody, status_of};
use crate::xds::frames::SmallFrames;
use crate::xds::hub::Hub;
use crate::xds::messages::Messages;
use crate::xds::reflection::{ADS, PATHS, Reflection};
use crate::xds::request::Protocol;

/// What the transport takes of a response before the client has read it, in bytes.
const SEND_BUFFER: usize = 64 << 10;
/// What a client may send before it has been read, in bytes: of a stream, and of a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// How often what nobody is sent any more is given back.
const TIDY: Duration = Duration::from_secs(2);

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
    let ads = Ads { hub: hub.clone(), authenticators, max_request_bytes: options.max_request_bytes };
    let reflection = Reflection::of([ADS].into_iter().chain(beside.files.iter().copied()));
    let router = beside.routes.into_axum_router();
    let router = PATHS.into_iter().fold(router, |router, path| router.route_service(path, reflection.clone()));
    let routes = Routes::from(router).prepare();
    let ending = CancellationToken::new();
    let mut connections = JoinSet::new();
    {
        let mut incoming = std::pin::pin!(incoming);
        let mut shutdown = std::pin::pin!(shutdown);
        let mut moving = std::pin::pin!(hub.admission().keep_moving());
        let mut tidying = tokio::time::interval(TIDY);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                accepted = incoming.next() => match accepted {
                    Some(Ok(io)) => {
                        connections.spawn(connection(io, ads.clone(), routes.clone(), options.clone(), ending.clone()));
                    }
                    Some(Err(error)) => tracing::debug!(target: "ads", error = %error.into(), "a connection did not come"),
                    None => anyhow::bail!("no more connections"),
                },
                Some(_) = connections.join_next() => {}
                () = &mut moving => {}
                _ = tidying.tick() => hub.store().forget_unused(Instant::now()),
            }
        }
    }
    hub.drain();
    ending.cancel();
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(options.drain_timeout, ended).await.is_err() {
        tracing::warn!(target: "ads", "streams did not end in time and were cut");
    }
    Ok(())
}

/// Serves one connection until it ends; asks it to go away when it is too old, or the server ends.
async fn connection<IO>(io: IO, ads: Ads, routes: Routes, options: ServerOptions, ending: CancellationToken)
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let from = io.connect_info();
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(from.clone());
        let (ads, mut routes) = (ads.clone(), routes.clone());
        // The stream's task keeps room for what is bigger, this or the answer's body.
        Box::pin(async move {
            if request.uri().path().starts_with(PATH) {
                return Ok(ads.answer(request).await);
            }
            routes.call(request).await.map(|response| response.map(AnyBody::Other))
        })
    });
    let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .keep_alive_interval(Some(options.keepalive_interval))
        .keep_alive_timeout(options.keepalive_timeout)
        .max_concurrent_streams(options.max_streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER);
    let mut serving = std::pin::pin!(http.serve_connection(TokioIo::new(SmallFrames::new(io)), service));
    let age = async {
        match options.max_connection_age {
            Some(age) => tokio::time::sleep(age).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = ending.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
        () = age => {
            serving.as_mut().graceful_shutdown();
            // Then it is cut.
            tokio::time::timeout(options.max_connection_age_grace, serving).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(target: "ads", %error, "a connection ended");
    }
}

/// What the paths of the AggregatedDiscoveryService's methods begin with.
const PATH: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/";

/// The AggregatedDiscoveryService, without tonic's encoder: bodies are shared bytes.
#[derive(Clone)]
struct Ads {
    hub: Arc<Hub>,
    authenticators: Authenticators,
    max_request_bytes: usize,
}

impl Ads {
    async fn answer(self, request: http::Request<Incoming>) -> http::Response<AnyBody> {
        let answer = match request.uri().path().strip_prefix(PATH) {
            Some("StreamAggregatedResources") => self.stream(Protocol::Sotw, request).await,
            Some("DeltaAggregatedResources") => self.stream(Protocol::Delta, request).await,
            _ => Err(Status::unimplemented("no such method")),
        };
        match answer {
            Ok(body) => {
                let mut response = http::Response::new(AnyBody::Ads(body));
                let grpc = http::HeaderValue::from_static("application/grpc");
                response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
                response
            }
            Err(status) => status.into_http().map(AnyBody::Other),
        }
    }

    async fn stream(self, protocol: Protocol, request: http::Request<Incoming>) -> Result<AdsBody, Status> {
        match self.hub.admission().begin(Instant::now()) {
            // Clients try again after a while with either (X14).
            Err(busy) => {
                self.hub.metrics().refused(match busy {
                    Busy::Rate => "rate",
                    Busy::Load => "load",
                });
                return Err(Status::resource_exhausted("too many new streams, try again later"));
            }
            Ok(wait) if wait.is_zero() => {}
            Ok(wait) => tokio::time::sleep(wait).await,
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
        Ok(AdsBody::new(stream, protocol, requests))
    }
}
