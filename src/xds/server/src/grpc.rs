//! Serves ADS on gRPC.

use std::any::Any;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt as _};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sluice_auth::{Authenticators, Call};
use sluice_listen::{AcceptedConnection, ConnectionEnd, ConnectionSlot, Listener, PeriodicLog};
use sluice_tls::TlsConnection;
use sluice_xds_protocol::XdsProtocol;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::service::Routes;
use tonic::transport::server::{Connected, TcpConnectInfo};
use tower::Service;

use crate::activity::{ConnectionActivity, RequestGuard};
use crate::admission::AdmissionError;
use crate::body::{AdsBody, ResponseBody, status_of};
use crate::caller_streams::{CallerStreams, StreamLimits};
use crate::discovery_server::DiscoveryServer;
use crate::frames::SmallFrames;
use crate::grpc_messages::GrpcMessages;
use crate::reflection::{ADS_PROTO, REFLECTION_PATHS, ReflectionService};
use crate::request_turns::RequestTurn;

/// Bytes of a response that the transport buffers before the client reads them.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Bytes that a client may send before they are read (HTTP/2 windows), for a stream and for a connection. Large requests
/// wait for room and for their turn, so thousands of clients have sent as much.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// Interval of the checks for unused encoded rows. A row is dropped after several checks without a use.
const ENCODED_ROWS_SWEEP_INTERVAL: Duration = Duration::from_secs(2);

/// Limits and times of the gRPC server (X21).
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Interval of pings on an idle connection.
    pub keepalive_interval: Duration,
    /// Time limit for the answer to a ping.
    pub keepalive_timeout: Duration,
    /// Maximum number of concurrent streams on one connection.
    pub max_streams: u32,
    /// Maximum size of a request in bytes.
    pub max_request_bytes: usize,
    /// Maximum size in bytes of the first request of a stream whose caller is anonymous.
    pub max_anonymous_request_bytes: usize,
    /// Maximum numbers of streams by caller.
    pub streams: StreamLimits,
    /// Age at which the client is told to reconnect (GOAWAY); `None` is no limit.
    pub max_connection_age: Option<Duration>,
    /// How long such a connection may stay open before it is closed.
    pub max_connection_age_grace: Duration,
    /// Time limit for streams to end when the server shuts down. Then they are closed.
    pub drain_timeout: Duration,
    /// Whether large HTTP/2 data frames of clients are split into small ones, which saves 8 KiB for each connection
    /// (`SLUICE_HTTP2_FRAMES`).
    pub small_frames: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            max_streams: 1000,
            max_request_bytes: 4 << 20,
            max_anonymous_request_bytes: 2 << 20,
            streams: StreamLimits::default(),
            max_connection_age: None,
            max_connection_age_grace: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            small_frames: true,
        }
    }
}

/// The listener ended before the server was shut down.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the listener has ended")]
pub struct ListenerEnded;

/// Serves ADS on the listener to authenticated callers until `shutdown` completes; then drains.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: Listener,
    server: Arc<DiscoveryServer>,
    options: ServerOptions,
    authenticators: Authenticators,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ListenerEnded> {
    let incoming = futures::stream::unfold(listener, async |mut listener| {
        let AcceptedConnection { stream, slot, .. } = listener.accept().await;
        Some(((stream, slot), listener))
    });
    serve_on(incoming, server, options, authenticators, AdditionalServices::default(), shutdown).await
}

/// gRPC services that are served on the same port as ADS.
#[derive(Clone, Debug, Default)]
pub struct AdditionalServices {
    /// The services.
    pub routes: Routes,
    /// The proto files that declare them, for reflection.
    pub proto_files: &'static [&'static str],
}

/// Serves ADS and additional services on connections.
///
/// # Errors
/// `incoming` ends.
pub async fn serve_on<IO>(
    incoming: impl Stream<Item = (IO, ConnectionSlot)>,
    server: Arc<DiscoveryServer>,
    options: ServerOptions,
    authenticators: Authenticators,
    additional: AdditionalServices,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ListenerEnded>
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let ads = AdsService {
        server: server.clone(),
        authenticators,
        streams: CallerStreams::new(options.streams),
        refusals: Arc::default(),
        max_request_bytes: options.max_request_bytes,
        max_anonymous_request_bytes: options.max_anonymous_request_bytes.min(options.max_request_bytes),
    };
    let reflection = ReflectionService::of([ADS_PROTO].into_iter().chain(additional.proto_files.iter().copied()));
    let router = additional.routes.into_axum_router();
    let router =
        REFLECTION_PATHS.into_iter().fold(router, |router, path| router.route_service(path, reflection.clone()));
    let routes = Routes::from(router).prepare();
    let shared = Arc::new(SharedByConnections { ads, routes, options, closing: CancellationToken::new() });
    let mut connections = JoinSet::new();
    {
        let mut incoming = std::pin::pin!(incoming);
        let mut shutdown = std::pin::pin!(shutdown);
        let mut granting = std::pin::pin!(server.admission().keep_granting());
        let mut sweep = tokio::time::interval(ENCODED_ROWS_SWEEP_INTERVAL);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                accepted = incoming.next() => match accepted {
                    Some((io, slot)) => {
                        connections.spawn(serve_connection(io, slot, shared.clone()));
                    }
                    None => return Err(ListenerEnded),
                },
                Some(_) = connections.join_next() => {}
                () = &mut granting => {}
                _ = sweep.tick() => server.store().drop_unused_encodings(),
            }
        }
    }
    server.drain();
    shared.closing.cancel();
    let ended = async { while connections.join_next().await.is_some() {} };
    let limit = shared.options.drain_timeout;
    if tokio::time::timeout(limit, ended).await.is_err() {
        let connections = connections.len();
        tracing::warn!(target: "ads", connections, ?limit, "streams did not end in time and were closed");
    }
    Ok(())
}

/// What the connections of a listener share.
struct SharedByConnections {
    ads: AdsService,
    routes: Routes,
    options: ServerOptions,
    /// Ends the connections when the server drains.
    closing: CancellationToken,
}

/// Serves one connection until it ends. A GOAWAY tells the client to reconnect when a limit ends the connection or the
/// server drains.
async fn serve_connection<IO>(io: IO, slot: ConnectionSlot, shared: Arc<SharedByConnections>)
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    if !slot.begin().await {
        return;
    }
    let activity = ConnectionActivity::new(slot, shared.ads.server.draining());
    let from = io.connect_info();
    let secure = (&from as &dyn Any).downcast_ref::<TlsConnection>().cloned();
    let options = &shared.options;
    let mut serving = std::pin::pin!(transport(io, from, activity.clone(), shared.clone()));
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = shared.closing.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
        end = activity.end(options.max_connection_age, secure.as_ref()) => {
            if end == ConnectionEnd::FirstRequest {
                return;
            }
            serving.as_mut().graceful_shutdown();
            // Each stream ends after the response that is being sent.
            activity.end_streams();
            // The connection is closed after the grace period.
            tokio::time::timeout(options.max_connection_age_grace, serving).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(target: "ads", %error, "a connection failed");
    }
}

/// The HTTP/2 side of a connection. Not part of [`serve_connection`], whose future would keep each value that is only needed here
/// for the life of the connection.
fn transport<IO>(
    io: IO,
    from: IO::ConnectInfo,
    activity: Arc<ConnectionActivity>,
    shared: Arc<SharedByConnections>,
) -> http2::Connection<
    TokioIo<SmallFrames<IO>>,
    impl HttpService<Incoming, ResBody = ResponseBody, Error = Infallible, Future: Send>,
    TokioExecutor,
>
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let ServerOptions { keepalive_interval, keepalive_timeout, max_streams, small_frames, .. } = shared.options;
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .keep_alive_interval(Some(keepalive_interval))
        .keep_alive_timeout(keepalive_timeout)
        .max_concurrent_streams(max_streams)
        .max_header_list_size(activity.max_header_bytes())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES);
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(from.clone());
        let (shared, guard) = (shared.clone(), activity.begin());
        // Boxed, because the stream's task has the size of the larger of this future and the response's body.
        Box::pin(async move {
            if request.uri().path().starts_with(ADS_PATH_PREFIX) {
                return Ok(shared.ads.respond(request, guard).await);
            }
            let mut routes = shared.routes.clone();
            routes
                .call(request)
                .await
                .map(|response| response.map(|body| ResponseBody::Other { body, _request: guard }))
        })
    });
    http.serve_connection(TokioIo::new(SmallFrames::new(io, small_frames)), service)
}

/// Prefix of the paths of the AggregatedDiscoveryService's methods.
const ADS_PATH_PREFIX: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/";

/// The AggregatedDiscoveryService without tonic's encoder, because response bodies are shared bytes.
struct AdsService {
    server: Arc<DiscoveryServer>,
    authenticators: Authenticators,
    streams: Arc<CallerStreams>,
    /// Limits messages about refused streams.
    refusals: Arc<PeriodicLog>,
    max_request_bytes: usize,
    max_anonymous_request_bytes: usize,
}

impl AdsService {
    async fn respond(&self, request: http::Request<Incoming>, guard: RequestGuard) -> http::Response<ResponseBody> {
        let connection = guard.connection().clone();
        let result = match request.uri().path().strip_prefix(ADS_PATH_PREFIX) {
            Some("StreamAggregatedResources") => self.stream(XdsProtocol::Sotw, request, guard).await,
            Some("DeltaAggregatedResources") => self.stream(XdsProtocol::Delta, request, guard).await,
            _ => Err(Status::unimplemented("no such method")),
        };
        match result {
            Ok(body) => {
                let mut response = http::Response::new(ResponseBody::Ads(body));
                let grpc = http::HeaderValue::from_static("application/grpc");
                response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
                response
            }
            Err(status) => status.into_http().map(|body| ResponseBody::Other { body, _request: connection.begin() }),
        }
    }

    async fn stream(
        &self,
        protocol: XdsProtocol,
        request: http::Request<Incoming>,
        guard: RequestGuard,
    ) -> Result<AdsBody, Status> {
        let peer = peer_of(&request);
        match self.server.admission().admit(Instant::now()) {
            // Clients retry after both errors, with a backoff (X14).
            Err(error) => {
                self.server.metrics().refused(match error {
                    AdmissionError::RateLimited => "rate",
                    AdmissionError::Overloaded => "load",
                });
                let peer = peer.map(tracing::field::display);
                tracing::debug!(target: "ads", peer, %error, "refused a stream");
                return Err(Status::resource_exhausted("too many new streams, try again later"));
            }
            Ok(delay) if delay.is_zero() => {}
            Ok(delay) => tokio::time::sleep(delay).await,
        }
        let secure = request.extensions().get::<TlsConnection>();
        let certificates = secure.map(|secure| &*secure.certificates).unwrap_or_default();
        let call = Call { headers: request.headers(), peer, certificates };
        let caller = self.authenticators.caller(&call).await.map_err(|refused| {
            if refused.is_overloaded {
                self.server.metrics().refused("reviews");
                return Status::resource_exhausted(
                    "too many callers wait for the review of their tokens, try again later",
                );
            }
            self.server.metrics().refused("unauthenticated");
            tracing::warn!(target: "ads", "refused a stream: {refused}");
            Status::unauthenticated("authentication failure")
        })?;
        let Some(counted) = self.streams.add(&caller) else {
            self.server.metrics().refused("caller");
            if let Some(streams) = self.refusals.event(Instant::now()) {
                let (peer, identities) = (caller.address(), &caller.identities);
                tracing::warn!(target: "ads", %peer, ?identities, streams, "refused streams: their callers have too many (logged once a minute)");
            }
            return Err(Status::resource_exhausted("too many streams of this caller"));
        };
        let max_bytes =
            if caller.authenticator.is_some() { self.max_request_bytes } else { self.max_anonymous_request_bytes };
        let stream = self.server.open(protocol, caller).map_err(status_of)?.within(counted.names().clone());
        let turn = RequestTurn::new(self.server.request_turns());
        let partial_limits = (counted.partial_requests().clone(), guard.connection().first_request_timeout());
        let requests = GrpcMessages::new(request.into_body(), max_bytes, turn, partial_limits);
        Ok(AdsBody::new(stream, protocol, requests, self.max_request_bytes, guard, counted))
    }
}

/// The address of the client, on either port.
fn peer_of(request: &http::Request<Incoming>) -> Option<SocketAddr> {
    let extensions = request.extensions();
    let secure = extensions.get::<TlsConnection>().map(|secure| secure.peer);
    secure.or_else(|| extensions.get::<TcpConnectInfo>()?.remote_addr)
}
