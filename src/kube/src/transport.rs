//! The connections to one API server, and how dead ones are noticed.
//!
//! A peer can vanish without closing its connections: a frozen machine, a proxy that accepts bytes and passes none on. A
//! request then waits, and a watch looks like one of a kind that does not change. Four means limit this:
//!
//! - **Heartbeat.** While requests or watches are open, `GET /livez` is sent on a kept connection every second. The API
//!   server answers it without queueing. If it is not answered in time, and one on a new connection is, then established
//!   connections are dead: all that have received nothing since the last second of that time are abandoned, and the pool of
//!   idle ones is replaced. A watch then continues on a new connection. This notices a dead path to the server, for all
//!   kinds at once.
//! - **Short watches.** The server ends each watch after [`KubeOptions::watch_timeout`](crate::KubeOptions), and the client
//!   does shortly later. This notices one dead connection among live ones, as behind a load balancer. A real API server
//!   sends bookmarks only about once a minute, so silence alone shows nothing; a request that continues a watch does.
//! - **TCP keepalive and `TCP_USER_TIMEOUT`.** They notice a machine that is gone.
//! - **Time limits** of the beginning of each response, and of each whole request for one object ([`request`]).
//!
//! The connections use HTTP/1.1, one for each watch. HTTP/2 with its pings would need no heartbeat, but would share one flow
//! control window: a large list that is read slowly would delay the renewal of a Lease.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use sluice_tasks::restart;
use tokio::sync::{Notify, watch};
use tower::{BoxError, ServiceBuilder};
use tracing::warn;

use crate::error::{NoResponse, UnreachableServer};

/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two heartbeats while none is answered.
const FAILED_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Time limit of a heartbeat.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection lives if it received data within this time before a heartbeat failed. Earlier data does not show that: the path may
/// have died while the heartbeat was on its way.
const RECENT_DATA: Duration = Duration::from_secs(1);
/// Time for which the connection of the heartbeat stays open without requests.
const HEARTBEAT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the beginning of a response. The API server queues a request for 15 seconds at most.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of a whole request for one object.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection without data is probed after this time, then at this interval.
const TCP_KEEPALIVE: Duration = Duration::from_secs(10);
/// Number of probes without an answer after which it ends.
const TCP_KEEPALIVE_PROBES: u32 = 2;
/// Sent data must be acknowledged within this time.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two warnings of dead connections.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A client with limits of time, which notices dead connections. Its connection errors name the address of the API server.
///
/// # Errors
/// The configuration cannot be used, for instance its TLS material.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        // Reports that this build supports no proxies.
        return Ok(ClientBuilder::try_from(config)?.build());
    }
    let connector = config.rustls_https_connector_with_connector(connector())?;
    let transport = Arc::new(Transport::new(&config, move || pool(connector.clone())));
    let sending = transport.clone();
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service_fn(move |request| send(sending.clone(), request));
    let client = Client::new(service, config.default_namespace);
    // The heartbeat ends with the client that is returned. It must not keep that client alive.
    let in_use = Arc::new(());
    let (checked, used) = (client.clone(), Arc::downgrade(&in_use));
    tokio::spawn(restart("heartbeat of the Kubernetes API", move || {
        let checking = keep_checking(checked.clone(), transport.clone(), used.clone());
        async move {
            checking.await;
            Ok(())
        }
    }));
    let outer = tower::service_fn(move |request| {
        let (client, in_use) = (client.clone(), in_use.clone());
        async move {
            let response = client.send(request).await;
            drop(in_use);
            response
        }
    });
    Ok(Client::new(outer, "default"))
}

/// Connects such that the kernel notices a machine that is gone.
fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(TCP_KEEPALIVE));
    connector.set_keepalive_interval(Some(TCP_KEEPALIVE));
    connector.set_keepalive_retries(Some(TCP_KEEPALIVE_PROBES));
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT));
    connector
}

/// Sends a request for one object, and reads the whole response, within [`REQUEST_TIMEOUT`].
///
/// # Errors
/// The request fails, or has no response in time.
pub async fn request<T: DeserializeOwned>(client: &Client, request: Request<Vec<u8>>) -> Result<T, kube::Error> {
    request_within(client, request, REQUEST_TIMEOUT).await
}

async fn request_within<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
    limit: Duration,
) -> Result<T, kube::Error> {
    let response = tokio::time::timeout(limit, client.request_text(request)).await;
    let text = response.map_err(|_| kube::Error::Service(Box::new(NoResponse { limit })))??;
    // Not the client's own function, which logs a text that it cannot parse, such as one of a Secret.
    serde_json::from_str(&text).map_err(kube::Error::SerdeError)
}

/// Sends a request through a pool of connections.
type Pool = Arc<dyn Fn(Request<Body>) -> BoxFuture<'static, Result<Response<Incoming>, legacy::Error>> + Send + Sync>;

fn pool(connector: impl Connect + Clone + Send + Sync + 'static) -> Pool {
    let client = legacy::Client::builder(TokioExecutor::new()).build(connector);
    Arc::new(move |request| Box::pin(client.request(request)))
}

/// Marks the request of a heartbeat.
#[derive(Clone)]
struct Heartbeat;

/// The connections to one API server.
struct Transport {
    address: String,
    new_pool: Box<dyn Fn() -> Pool + Send + Sync>,
    /// The pool of new requests.
    current: Mutex<Pool>,
    /// The connection of the heartbeat.
    heartbeat: Mutex<Pool>,
    /// Number of requests without a complete response.
    open: AtomicUsize,
    /// Notified when `open` is no longer zero.
    opened: Notify,
    /// Connections that have received nothing since then are dead.
    dead_since: watch::Sender<Option<Instant>>,
}

impl Transport {
    fn new(config: &Config, new_pool: impl Fn() -> Pool + Send + Sync + 'static) -> Self {
        Self {
            address: config.cluster_url.to_string(),
            current: Mutex::new(new_pool()),
            heartbeat: Mutex::new(new_pool()),
            new_pool: Box::new(new_pool),
            open: AtomicUsize::new(0),
            opened: Notify::new(),
            dead_since: watch::Sender::default(),
        }
    }

    fn pool(&self, of: &Mutex<Pool>) -> Pool {
        of.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Requests use new connections from now on. Those in progress are not affected.
    fn renew(&self, pool: &Mutex<Pool>) {
        *pool.lock().unwrap_or_else(PoisonError::into_inner) = (self.new_pool)();
    }

    fn unreachable(&self, cause: impl Into<BoxError>) -> BoxError {
        Box::new(UnreachableServer { address: self.address.clone(), cause: cause.into() })
    }
}

/// Counts an open request until it is dropped.
struct OpenRequest {
    transport: Arc<Transport>,
    /// No response has begun.
    is_waiting: bool,
}

impl OpenRequest {
    fn new(transport: &Arc<Transport>) -> Self {
        if transport.open.fetch_add(1, Ordering::Relaxed) == 0 {
            transport.opened.notify_one();
        }
        Self { transport: transport.clone(), is_waiting: true }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.transport.open.fetch_sub(1, Ordering::Relaxed);
        if self.is_waiting {
            // The caller gave up. Idle connections may be as dead as the one that it used.
            self.transport.renew(&self.transport.current);
        }
    }
}

/// A connection was abandoned because it is dead.
#[derive(Debug, thiserror::Error)]
#[error("the connection no longer responds, and new connections do")]
struct DeadConnection;

async fn send(transport: Arc<Transport>, request: Request<Body>) -> Result<Response<CheckedBody>, BoxError> {
    let is_heartbeat = request.extensions().get::<Heartbeat>().is_some();
    let is_watch = is_watch(request.uri());
    // Before the pool, which is replaced when connections are found dead.
    let mut dead = transport.dead_since.subscribe();
    let pool = transport.pool(if is_heartbeat { &transport.heartbeat } else { &transport.current });
    let mut open = (!is_heartbeat).then(|| OpenRequest::new(&transport));
    let response = tokio::select! {
        response = pool(request) => response.map_err(|error| transport.unreachable(error)),
        _ = dead.changed() => Err(transport.unreachable(DeadConnection)),
        () = tokio::time::sleep(RESPONSE_TIMEOUT) => Err(transport.unreachable(NoResponse { limit: RESPONSE_TIMEOUT })),
    };
    let response = response?;
    if let Some(open) = &mut open {
        open.is_waiting = false;
    }
    let dead = dead_connections(dead);
    Ok(response.map(|body| CheckedBody { body, is_watch, last_data: Instant::now(), dead, _open: open }))
}

/// Whether a request is a watch.
pub(crate) fn is_watch(uri: &http::Uri) -> bool {
    uri.query().unwrap_or_default().split('&').any(|parameter| parameter == "watch=true")
}

type DeadConnections = watch::Receiver<Option<Instant>>;

/// Waits until connections are found dead.
fn dead_connections(mut dead: DeadConnections) -> BoxFuture<'static, DeadConnections> {
    Box::pin(async move {
        if dead.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        dead
    })
}

/// The body of a response. It fails when its connection is found dead.
struct CheckedBody {
    body: Incoming,
    /// It ends without an error then: the watcher continues at the last resourceVersion.
    is_watch: bool,
    last_data: Instant,
    dead: BoxFuture<'static, DeadConnections>,
    _open: Option<OpenRequest>,
}

impl HttpBody for CheckedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.last_data = Instant::now();
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        loop {
            let mut dead = ready!(self.dead.as_mut().poll(context));
            let since = *dead.borrow_and_update();
            if since.is_some_and(|since| self.last_data < since) {
                return Poll::Ready((!self.is_watch).then(|| Err(Box::new(DeadConnection) as BoxError)));
            }
            self.dead = dead_connections(dead);
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Sends heartbeats while requests are open, and reports dead connections, until the client is no longer in use.
async fn keep_checking(client: Client, transport: Arc<Transport>, in_use: Weak<()>) {
    let mut unanswered_since = None;
    let mut last_answer: Option<Instant> = None;
    let mut warned: [Option<Instant>; 2] = [None; 2];
    // Each warning is logged once a minute.
    let mut is_due = |warning: usize| {
        let is_due = warned[warning].is_none_or(|at| at.elapsed() >= WARNING_INTERVAL);
        if is_due {
            warned[warning] = Some(Instant::now());
        }
        is_due
    };
    loop {
        let interval = if unanswered_since.is_some() { FAILED_HEARTBEAT_INTERVAL } else { HEARTBEAT_INTERVAL };
        let is_connected = last_answer.is_some_and(|at| at.elapsed() < HEARTBEAT_IDLE_TIMEOUT);
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            // The connection of the heartbeat has to be as old as the others: a later one says nothing about them.
            () = transport.opened.notified(), if !is_connected => {}
        }
        if in_use.strong_count() == 0 {
            return;
        }
        if transport.open.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let begun = Instant::now();
        if unanswered_since.is_none() && is_answered(&client).await {
            last_answer = Some(Instant::now());
            continue;
        }
        let since = *unanswered_since.get_or_insert_with(|| begun + begun.elapsed().saturating_sub(RECENT_DATA));
        transport.renew(&transport.heartbeat);
        if !is_answered(&client).await {
            if is_due(0) {
                let address = &transport.address;
                warn!(address, "the API server does not respond: changes are not seen; reported once a minute");
            }
            continue;
        }
        unanswered_since = None;
        last_answer = Some(Instant::now());
        transport.renew(&transport.current);
        transport.dead_since.send_replace(Some(since));
        if is_due(1) {
            let open = transport.open.load(Ordering::Relaxed);
            let address = &transport.address;
            warn!(address, open, "connections to the API server no longer respond and new ones do, reconnecting");
        }
    }
}

/// Whether the server answers a heartbeat, with whatever status.
async fn is_answered(client: &Client) -> bool {
    let Ok(mut request) = Request::get("/livez").body(Vec::new()) else { return false };
    request.extensions_mut().insert(Heartbeat);
    let answer = tokio::time::timeout(HEARTBEAT_TIMEOUT, client.request_text(request)).await;
    matches!(answer, Ok(Ok(_) | Err(kube::Error::Api(_) | kube::Error::FromUtf8(_))))
}

#[cfg(test)]
mod tests;
