//! One stream of Envoy and its upstream stream.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesOrdered;
use tokio::sync::mpsc::{self, Sender, UnboundedSender};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Extensions, Request, Status, Streaming};
use tracing::{debug, info, warn};

use super::XdsProxy;
use super::extensions::{self, EXTENSIONS};
use super::intercept::{HEALTH, LISTENERS, is_for_envoy};
use super::message::{AgentResponse, XdsProtocol};
use crate::connection;

/// Limit on responses whose Wasm modules are being fetched; further responses wait.
const MAX_CONCURRENT_CONVERSIONS: usize = 8;

/// Passes messages both ways until one side ends.
///
/// # Errors
/// The status that ends Envoy's stream: that of the upstream stream, or the reason why there is none.
pub(super) async fn run(
    proxy: &XdsProxy,
    protocol: XdsProtocol,
    mut downstream: Streaming<Bytes>,
    responses: &Sender<Result<Bytes, Status>>,
) -> Result<(), Status> {
    // Unbounded, because two bounded directions could wait for each other. Envoy sends few requests.
    let (requests, queue) = mpsc::unbounded_channel();
    // Requests pass while the upstream stream is opened: the server may respond to the first request only.
    let accepted = Mutex::default();
    let forwarding = forward_requests(proxy, protocol, &mut downstream, &requests, &accepted);
    tokio::pin!(forwarding);
    let mut upstream = tokio::select! {
        upstream = connect(proxy, protocol, queue) => upstream?,
        end = &mut forwarding => return end,
        () = responses.closed() => return Ok(()),
    };
    tokio::select! {
        end = forward_responses(proxy, protocol, &mut upstream, &requests, responses, &accepted) => end,
        end = &mut forwarding => end,
        () = responses.closed() => Ok(()),
    }
}

async fn connect(
    proxy: &XdsProxy,
    protocol: XdsProtocol,
    queue: mpsc::UnboundedReceiver<Bytes>,
) -> Result<Streaming<Bytes>, Status> {
    let unavailable = |error: anyhow::Error| {
        proxy.metrics.connection_failed();
        warn!(target: "xdsproxy", upstream = proxy.upstream.address, error = format!("{error:#}"), "failed to connect to the control plane");
        Status::unavailable(format!("{error:#}"))
    };
    let metadata = connection::metadata(&proxy.upstream).map_err(unavailable)?;
    let mut client = connection::connect(&proxy.upstream).await.map_err(unavailable)?;
    client.ready().await.map_err(|error| unavailable(error.into()))?;
    let request = Request::from_parts(metadata, Extensions::default(), UnboundedReceiverStream::new(queue));
    let response = client.streaming(request, protocol.path(), crate::codec::Raw).await;
    let response = response.inspect_err(|_| proxy.metrics.stream_failed())?;
    info!(target: "xdsproxy", upstream = proxy.upstream.address, ?protocol, "connected to the control plane");
    Ok(response.into_inner())
}

/// Forwards Envoy's requests, and sends the agent's own after the first one for listeners.
async fn forward_requests(
    proxy: &XdsProxy,
    protocol: XdsProtocol,
    downstream: &mut Streaming<Bytes>,
    requests: &UnboundedSender<Bytes>,
    accepted: &Mutex<String>,
) -> Result<(), Status> {
    let mut health = proxy.health.clone();
    // A failed send means that the stream has ended.
    let send = |request: Bytes| drop(requests.send(request));
    let (mut listeners_requested, mut health_is_open) = (false, true);
    loop {
        tokio::select! {
            request = downstream.message() => {
                let Some(request) = request? else { return Ok(()) };
                let is_listeners = !listeners_requested && protocol.request_type(&request) == LISTENERS;
                let version = protocol.accepted_version(&request);
                if !version.is_empty() && protocol.request_type(&request) == EXTENSIONS {
                    version.clone_into(&mut accepted.lock().unwrap_or_else(PoisonError::into_inner));
                }
                proxy.metrics.xds_request();
                send(request);
                if is_listeners {
                    listeners_requested = true;
                    proxy.intercepted.types().for_each(|type_url| send(protocol.subscribe(type_url)));
                    if let Some(health) = &*health.borrow_and_update() {
                        send(protocol.health(HEALTH, health));
                    }
                }
            }
            changed = health.changed(), if listeners_requested && health_is_open => {
                // Without a readiness probe there is no sender.
                health_is_open = changed.is_ok();
                if health_is_open && let Some(health) = &*health.borrow_and_update() {
                    send(protocol.health(HEALTH, health));
                }
            }
        }
    }
}

/// Forwards responses, except those for the agent. Responses with extensions keep their order and wait for their modules; other
/// types do not wait for them.
async fn forward_responses(
    proxy: &XdsProxy,
    protocol: XdsProtocol,
    upstream: &mut Streaming<Bytes>,
    requests: &UnboundedSender<Bytes>,
    responses: &Sender<Result<Bytes, Status>>,
    accepted: &Mutex<String>,
) -> Result<(), Status> {
    let mut converting = FuturesOrdered::new();
    loop {
        let response = tokio::select! {
            response = upstream.message(), if converting.len() < MAX_CONCURRENT_CONVERSIONS => response,
            Some(converted) = converting.next() => {
                match converted {
                    Ok(response) => if responses.send(Ok(response)).await.is_err() {
                        return Ok(());
                    },
                    Err(RejectedExtensions { mut response, reason }) => {
                        warn!(target: "xdsproxy", reason, "extensions rejected");
                        response.version.clone_from(&accepted.lock().unwrap_or_else(PoisonError::into_inner));
                        let _ = requests.send(protocol.acknowledge(EXTENSIONS, &response, Some(&reason)));
                    }
                }
                continue;
            }
        };
        let response = response.inspect_err(|_| proxy.metrics.stream_failed())?;
        let Some(response) = response else { return Err(Status::unavailable("the control plane closed the stream")) };
        proxy.metrics.xds_response();
        let type_url = protocol.response_type(&response);
        debug!(target: "xdsproxy", type_url, bytes = response.len(), "response received");
        if let Some(handler) = proxy.intercepted.get(type_url) {
            let Some(response) = protocol.decode(&response) else {
                return Err(Status::internal("the control plane sent a malformed response"));
            };
            let error = response.resource.as_deref().and_then(|resource| handler(resource).err());
            if let Some(error) = &error {
                warn!(target: "xdsproxy", type_url, %error, "resource for the agent rejected: it is malformed");
            }
            let error = error.map(|error| format!("malformed resource: {error}"));
            let acknowledgement = protocol.acknowledge(type_url, &response, error.as_deref());
            let _ = requests.send(acknowledgement);
        } else if type_url == EXTENSIONS {
            converting.push_back(async move {
                let nonce = protocol.nonce_of(&response);
                let converted = extensions::convert(protocol, response, &proxy.modules).await;
                converted.map_err(|error| RejectedExtensions { response: nonce, reason: format!("{error:#}") })
            });
        } else if is_for_envoy(type_url) {
            if responses.send(Ok(response)).await.is_err() {
                return Ok(());
            }
        } else {
            warn!(target: "xdsproxy", type_url, "response dropped: its type is not one of Envoy's");
        }
    }
}

/// A response with extensions that is not passed on to Envoy.
struct RejectedExtensions {
    response: AgentResponse,
    reason: String,
}
