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
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::debug;

use crate::stalled_write::StalledWriteLimit;
use crate::{AcceptedConnection, ConnectionEnd, ConnectionSlot, Listener};

/// Maximum size of a request body: the largest is a list of log levels.
const MAX_BODY_BYTES: usize = 64 << 10;
/// The smallest read buffer that the HTTP library accepts.
const MIN_BUFFER_BYTES: usize = 8 << 10;

/// Serves a router over HTTP/1 until the token is cancelled, then until the requests in progress are answered.
pub async fn serve_http(mut listener: Listener, router: Router, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => {
                connections.spawn(serve_connection(accepted, router.clone(), stop.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve_connection(accepted: AcceptedConnection, router: Router, stop: CancellationToken) {
    let AcceptedConnection { stream, peer, slot } = accepted;
    if !slot.begin().await {
        return;
    }
    let (limits, slot) = (*slot.limits(), Arc::new(slot));
    let of_requests = slot.clone();
    let service = service_fn(move |request| respond(request, router.clone(), of_requests.clone()));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.first_request_timeout)
        .max_header_size(limits.max_header_bytes as usize)
        .max_buf_size((limits.max_header_bytes as usize).max(MIN_BUFFER_BYTES));
    let io = TokioIo::new(StalledWriteLimit::new(stream, limits.idle_timeout));
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
    slot: Arc<ConnectionSlot>,
) -> Result<Response, Infallible> {
    slot.first_request();
    let (mut head, body) = request.into_parts();
    let limit = slot.limits().first_request_timeout;
    let body = match body.is_end_stream() {
        true => Bytes::new(),
        false => match tokio::time::timeout(limit, Limited::new(body, MAX_BODY_BYTES).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => {
                return Ok(refuse(StatusCode::PAYLOAD_TOO_LARGE, "the request body is cut off or too large\n"));
            }
            Err(_) => return Ok(refuse(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time\n")),
        },
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
