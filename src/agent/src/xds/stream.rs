//! One stream of Envoy's and the one upstream that belongs to it.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesOrdered;
use tokio::sync::mpsc::{self, Sender, UnboundedSender};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Extensions, Request, Status, Streaming};
use tracing::{debug, info, warn};

use super::Proxy;
use super::extensions::{self, EXTENSIONS};
use super::intercept::{HEALTH, LISTENERS, is_for_envoy};
use super::message::{Answer, Protocol};
use crate::connection;

/// Responses of extensions whose modules are being fetched; more have to wait.
const MOST_CONVERTED: usize = 8;

/// Passes messages both ways until one side ends.
///
/// # Errors
/// The status that Envoy's stream ends with: upstream's, or why there is no upstream.
pub(super) async fn run(
    proxy: &Proxy,
    protocol: Protocol,
    mut downstream: Streaming<Bytes>,
    responses: &Sender<Result<Bytes, Status>>,
) -> Result<(), Status> {
    // Unbounded, but Envoy says little: were both directions bounded, each could wait for the other for ever.
    let (requests, queue) = mpsc::unbounded_channel();
    // Goes on all the while: upstream may answer only when it was asked something.
    let accepted = Mutex::default();
    let passing = pass_requests(proxy, protocol, &mut downstream, &requests, &accepted);
    tokio::pin!(passing);
    let mut upstream = tokio::select! {
        upstream = connect(proxy, protocol, queue) => upstream?,
        end = &mut passing => return end,
        () = responses.closed() => return Ok(()),
    };
    tokio::select! {
        end = pass_responses(proxy, protocol, &mut upstream, &requests, responses, &accepted) => end,
        end = &mut passing => end,
        () = responses.closed() => Ok(()),
    }
}

async fn connect(
    proxy: &Proxy,
    protocol: Protocol,
    queue: mpsc::UnboundedReceiver<Bytes>,
) -> Result<Streaming<Bytes>, Status> {
    let unavailable = |error: anyhow::Error| {
        proxy.metrics.connection_failed();
        warn!(target: "xdsproxy", "no control plane: {error:#}");
        Status::unavailable(format!("{error:#}"))
    };
    let metadata = connection::metadata(&proxy.upstream).map_err(unavailable)?;
    let mut client = connection::connect(&proxy.upstream).await.map_err(unavailable)?;
    client.ready().await.map_err(|error| unavailable(error.into()))?;
    let request = Request::from_parts(metadata, Extensions::default(), UnboundedReceiverStream::new(queue));
    let response = client.streaming(request, protocol.path(), crate::codec::Raw).await;
    let response = response.inspect_err(|_| proxy.metrics.stream_broke())?;
    info!(target: "xdsproxy", upstream = proxy.upstream.address, ?protocol, "connected");
    Ok(response.into_inner())
}

/// Passes Envoy's requests on, and the agent's own after the first for listeners.
async fn pass_requests(
    proxy: &Proxy,
    protocol: Protocol,
    downstream: &mut Streaming<Bytes>,
    requests: &UnboundedSender<Bytes>,
    accepted: &Mutex<String>,
) -> Result<(), Status> {
    let mut health = proxy.health.clone();
    // A stream is long gone if nobody takes its requests any more.
    let send = |request: Bytes| drop(requests.send(request));
    let (mut begun, mut looks) = (false, true);
    loop {
        tokio::select! {
            request = downstream.message() => {
                let Some(request) = request? else { return Ok(()) };
                let is_listeners = !begun && protocol.request_type(&request) == LISTENERS;
                let version = protocol.accepted_version(&request);
                if !version.is_empty() && protocol.request_type(&request) == EXTENSIONS {
                    version.clone_into(&mut accepted.lock().unwrap_or_else(PoisonError::into_inner));
                }
                proxy.metrics.xds_request();
                send(request);
                if is_listeners {
                    begun = true;
                    proxy.intercepted.types().for_each(|type_url| send(protocol.subscribe(type_url)));
                    if let Some(health) = &*health.borrow_and_update() {
                        send(protocol.health(HEALTH, health));
                    }
                }
            }
            changed = health.changed(), if begun && looks => {
                // Nobody may look at the workload.
                looks = changed.is_ok();
                if looks && let Some(health) = &*health.borrow_and_update() {
                    send(protocol.health(HEALTH, health));
                }
            }
        }
    }
}

/// Passes responses on, but for those that are the agent's. Extensions pass in their order, when their modules are here;
/// what is of another type does not wait for them.
async fn pass_responses(
    proxy: &Proxy,
    protocol: Protocol,
    upstream: &mut Streaming<Bytes>,
    requests: &UnboundedSender<Bytes>,
    responses: &Sender<Result<Bytes, Status>>,
    accepted: &Mutex<String>,
) -> Result<(), Status> {
    let mut converting = FuturesOrdered::new();
    loop {
        let response = tokio::select! {
            response = upstream.message(), if converting.len() < MOST_CONVERTED => response,
            Some(converted) = converting.next() => {
                match converted {
                    Ok(response) => if responses.send(Ok(response)).await.is_err() {
                        return Ok(());
                    },
                    Err(Refused { mut answer, reason }) => {
                        warn!(target: "xdsproxy", "extensions are refused: {reason}");
                        answer.version.clone_from(&accepted.lock().unwrap_or_else(PoisonError::into_inner));
                        let _ = requests.send(protocol.acknowledge(EXTENSIONS, &answer, Some(&reason)));
                    }
                }
                continue;
            }
        };
        let response = response.inspect_err(|_| proxy.metrics.stream_broke())?;
        let Some(response) = response else { return Err(Status::unavailable("the control plane ended the stream")) };
        proxy.metrics.xds_response();
        let type_url = protocol.response_type(&response);
        debug!(target: "xdsproxy", type_url, bytes = response.len(), "response");
        if let Some(handler) = proxy.intercepted.get(type_url) {
            let Some(answer) = protocol.answer(&response) else {
                return Err(Status::internal("the control plane sent what is no response"));
            };
            let result = answer.resource.as_deref().map_or(Ok(()), handler);
            if let Err(reason) = &result {
                warn!(target: "xdsproxy", type_url, "a message to the agent is refused: {reason}");
            }
            let acknowledgement = protocol.acknowledge(type_url, &answer, result.err().as_deref());
            let _ = requests.send(acknowledgement);
        } else if type_url == EXTENSIONS {
            converting.push_back(async move {
                let answer = protocol.to_refuse(&response);
                let converted = extensions::convert(protocol, response, &proxy.modules).await;
                converted.map_err(|reason| Refused { answer, reason })
            });
        } else if is_for_envoy(type_url) {
            if responses.send(Ok(response)).await.is_err() {
                return Ok(());
            }
        } else {
            warn!(target: "xdsproxy", type_url, "a message is of no type that Envoy knows, it is dropped");
        }
    }
}

/// A response of extensions that Envoy is not told of.
struct Refused {
    answer: Answer,
    reason: String,
}
