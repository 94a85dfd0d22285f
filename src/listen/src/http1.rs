//! The server of the HTTP ports.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::debug;

use crate::stalled_write::StalledWriteLimit;
use crate::{AcceptedConnection, ConnectionEnd, ConnectionSlot, Listener};

/// The smallest read buffer that the HTTP library accepts.
const MIN_BUFFER_BYTES: usize = 8 << 10;

/// Limits of the request bodies of a port. Clones share them.
#[derive(Clone, Debug)]
pub struct BodyLimits {
    max_bytes: usize,
    /// One permit for each KiB of the bodies above [`SMALL_BODY_BYTES`] that are in memory.
    large: Arc<Semaphore>,
}

/// A body of at most this size needs no permit. It is the maximum size on ports for operators.
const SMALL_BODY_BYTES: usize = 64 << 10;

impl Default for BodyLimits {
    /// Bodies of up to 64 KiB.
    fn default() -> Self {
        Self { max_bytes: SMALL_BODY_BYTES, large: Arc::new(Semaphore::new(0)) }
    }
}

impl BodyLimits {
    /// Bodies of up to `max_bytes`, and `max_total_bytes` of larger ones than 64 KiB at a time. Further ones wait for their
    /// turn.
    #[must_use]
    pub fn new(max_bytes: usize, max_total_bytes: usize) -> Self {
        let permits = (max_total_bytes.max(max_bytes) >> 10).min(Semaphore::MAX_PERMITS);
        Self { max_bytes, large: Arc::new(Semaphore::new(permits)) }
    }

    /// Reads a body. A large one keeps its permit until the response is complete.
    async fn read(&self, body: Incoming) -> Result<(Bytes, Option<OwnedSemaphorePermit>), StatusCode> {
        let too_large = StatusCode::PAYLOAD_TOO_LARGE;
        if body.is_end_stream() {
            return Ok((Bytes::new(), None));
        }
        let size = body.size_hint();
        if size.lower() > self.max_bytes as u64 {
            return Err(too_large);
        }
        let max = size.upper().and_then(|upper| usize::try_from(upper).ok()).unwrap_or(usize::MAX).min(self.max_bytes);
        let permit = if max > SMALL_BODY_BYTES {
            let kib = u32::try_from(max.div_ceil(1 << 10)).unwrap_or(u32::MAX);
            // The semaphore is never closed.
            self.large.clone().acquire_many_owned(kib).await.ok()
        } else {
            None
        };
        let body = Limited::new(body, self.max_bytes).collect().await.map_err(|_| too_large)?;
        Ok((body.to_bytes(), permit))
    }
}

/// Serves a router over HTTP/1 until the token is cancelled, then until the requests in progress are answered.
pub async fn serve_http(listener: Listener, router: Router, bodies: BodyLimits, stop: CancellationToken) {
    let connections_stop = stop.clone();
    let serve = move |AcceptedConnection { stream, slot, .. }: AcceptedConnection| {
        let (router, bodies, stop) = (router.clone(), bodies.clone(), connections_stop.clone());
        async move {
            if slot.begin().await {
                serve_http_connection(stream, slot, router, bodies, stop).await;
            }
        }
    };
    serve_connections(listener, serve, stop).await;
}

/// Serves each connection of a listener until the token is cancelled, then until all connections have ended.
pub async fn serve_connections<F>(
    mut listener: Listener,
    serve: impl Fn(AcceptedConnection) -> F,
    stop: CancellationToken,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => {
                connections.spawn(serve(accepted));
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves a router on a connection that has begun, over HTTP/1, until the token is cancelled.
pub async fn serve_http_connection<IO: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    io: IO,
    slot: ConnectionSlot,
    router: Router,
    bodies: BodyLimits,
    stop: CancellationToken,
) {
    let (limits, peer, slot) = (*slot.limits(), slot.peer(), Arc::new(slot));
    let of_requests = slot.clone();
    let service = service_fn(move |request| respond(request, router.clone(), bodies.clone(), of_requests.clone()));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.first_request_timeout)
        .max_header_size(limits.max_header_bytes as usize)
        .max_buf_size((limits.max_header_bytes as usize).max(MIN_BUFFER_BYTES));
    let io = TokioIo::new(StalledWriteLimit::new(io, limits.idle_timeout));
    let mut serving = std::pin::pin!(http.serve_connection(io, service));
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        if error.is_timeout() {
            slot.closed(if slot.is_pending() { ConnectionEnd::FirstRequest } else { ConnectionEnd::Idle });
        }
        debug!(target: "listen", %peer, %error, "HTTP connection failed");
    }
}

/// Responds to a request whose body arrives in time.
async fn respond(
    request: Request<Incoming>,
    router: Router,
    bodies: BodyLimits,
    slot: Arc<ConnectionSlot>,
) -> Result<Response, Infallible> {
    slot.first_request();
    let (mut head, body) = request.into_parts();
    let limit = slot.limits().first_request_timeout;
    let (body, _permit) = match tokio::time::timeout(limit, bodies.read(body)).await {
        Ok(Ok(body)) => body,
        Ok(Err(status)) => return Ok(refuse(status, "the request body is cut off or too large\n")),
        Err(_) => {
            return Ok(refuse(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time\n"));
        }
    };
    head.extensions.insert(ConnectInfo(slot.peer()));
    router.oneshot(Request::from_parts(head, Body::from(body))).await
}

/// A response after which the connection is closed.
fn refuse(status: StatusCode, reason: &'static str) -> Response {
    (status, [(http::header::CONNECTION, "close")], reason).into_response()
}

#[cfg(test)]
mod tests;
