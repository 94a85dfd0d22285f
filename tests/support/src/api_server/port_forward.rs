//! What a kubelet answers behind an API server: forwarded ports and logs of pods.
//!
//! A port is forwarded over a WebSocket with the protocol `v4.channel.k8s.io`: the first byte of a message is its channel, 0 for
//! data and 1 for an error. The first message of each channel is the port.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Response, StatusCode, header};
use futures::{SinkExt as _, StreamExt as _};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::Shared;
use super::response::status;

/// The only protocol that kubelets and kube-rs have in common.
const PROTOCOL: &str = "v4.channel.k8s.io";
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// A pod that has the port.
#[derive(Clone, Debug)]
struct ForwardedPod {
    namespace: String,
    name: String,
    port: u16,
}

/// The answer to a request for a part of a pod that the kubelet has.
pub(super) fn answer(
    shared: &Arc<Shared>,
    (namespace, pod): (&str, &str),
    part: &str,
    request: Request,
) -> Response<Body> {
    if shared.state().store.get("", "pods", namespace, pod).is_none() {
        return status(StatusCode::NOT_FOUND, "NotFound", &format!("pods \"{pod}\" not found"));
    }
    match part {
        "log" => log(shared, namespace, pod, &request),
        _ => upgrade(shared, namespace, pod, request),
    }
}

fn parameter(request: &Request, name: &str) -> Option<String> {
    let query = request.uri().query().unwrap_or_default();
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}

fn log(shared: &Shared, namespace: &str, pod: &str, request: &Request) -> Response<Body> {
    let container = parameter(request, "container").unwrap_or_default();
    let mut state = shared.state();
    state.log_requests.push(request.uri().to_string());
    let is_previous = parameter(request, "previous").is_some_and(|value| value == "true");
    match state.logs.get(&(format!("{namespace}/{pod}"), container)) {
        Some(text) if !is_previous => Response::new(Body::from(text.clone())),
        _ => status(StatusCode::BAD_REQUEST, "BadRequest", "the container has no log"),
    }
}

/// Switches to the WebSocket protocol, and forwards the port.
fn upgrade(shared: &Arc<Shared>, namespace: &str, pod: &str, mut request: Request) -> Response<Body> {
    let bad = |message: &str| status(StatusCode::BAD_REQUEST, "BadRequest", message);
    let Some(port) = parameter(&request, "ports").and_then(|ports| ports.parse().ok()) else {
        return bad("one port is expected");
    };
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !header(header::SEC_WEBSOCKET_PROTOCOL).split(", ").any(|protocol| protocol == PROTOCOL) {
        return bad("no protocol is supported");
    }
    let accept = derive_accept_key(header(header::SEC_WEBSOCKET_KEY).as_bytes());
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else { return bad("an upgrade is expected") };
    let pod = ForwardedPod { namespace: namespace.to_owned(), name: pod.to_owned(), port };
    let shared = shared.clone();
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            // An error is that of a client that has closed the connection.
            let _ = serve(&shared, &pod, upgraded).await;
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    if let Ok(accept) = HeaderValue::from_str(&accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

async fn serve(shared: &Shared, pod: &ForwardedPod, upgraded: Upgraded) -> anyhow::Result<()> {
    let mut socket: Socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    for channel in [DATA, ERROR] {
        let [low, high] = pod.port.to_le_bytes();
        socket.send(Message::binary(vec![channel, low, high])).await?;
    }
    let address = {
        let mut state = shared.state();
        state.forwarded += 1;
        state.ports.get(&(format!("{}/{}", pod.namespace, pod.name), pod.port)).copied()
    };
    let connected = match address {
        Some(address) => TcpStream::connect(address).await.map_err(|error| error.to_string()),
        None => Err(format!("dial tcp4 127.0.0.1:{}: connect: connection refused", pod.port)),
    };
    match connected {
        Ok(stream) => {
            tokio::select! {
                copied = copy(&mut socket, stream) => copied?,
                // A kubelet that is gone says nothing more.
                () = gone(shared, pod) => return Ok(()),
            }
        }
        Err(reason) => {
            let text = format!("error forwarding port {} to pod {}: {reason}", pod.port, pod.name);
            let message: Vec<u8> = std::iter::once(ERROR).chain(text.into_bytes()).collect();
            socket.send(Message::binary(message)).await?;
        }
    }
    socket.close(None).await?;
    Ok(())
}

/// Waits until the pod is deleted.
async fn gone(shared: &Shared, pod: &ForwardedPod) {
    let mut changed = shared.changed.subscribe();
    while shared.state().store.get("", "pods", &pod.namespace, &pod.name).is_some() {
        if changed.changed().await.is_err() {
            return;
        }
    }
}

async fn copy(socket: &mut Socket, mut stream: TcpStream) -> anyhow::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        tokio::select! {
            read = stream.read(&mut buffer) => {
                let count = read?;
                if count == 0 {
                    return Ok(());
                }
                let message: Vec<u8> = std::iter::once(DATA).chain(buffer[..count].iter().copied()).collect();
                socket.send(Message::binary(message)).await?;
            }
            received = socket.next() => match received.transpose()? {
                Some(Message::Binary(bytes)) if bytes.first() == Some(&DATA) => stream.write_all(&bytes[1..]).await?,
                None | Some(Message::Close(_)) => return Ok(()),
                Some(_) => {}
            },
        }
    }
}

impl super::ApiServer {
    /// Forwards a port of a pod to an address.
    pub fn forward_port(&self, namespace: &str, pod: &str, port: u16, address: SocketAddr) {
        self.shared.state().ports.insert((format!("{namespace}/{pod}"), port), address);
    }

    /// How many connections to ports of pods were requested.
    #[must_use]
    pub fn forwarded(&self) -> usize {
        self.shared.state().forwarded
    }

    /// Sets the log of a container.
    pub fn set_log(&self, namespace: &str, pod: &str, container: &str, text: &str) {
        self.shared.state().logs.insert((format!("{namespace}/{pod}"), container.to_owned()), text.to_owned());
    }

    /// The requests for logs, with their parameters.
    #[must_use]
    pub fn log_requests(&self) -> Vec<String> {
        self.shared.state().log_requests.clone()
    }
}
