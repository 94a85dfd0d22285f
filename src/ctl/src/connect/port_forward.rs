//! A stream to a port of a pod, over a WebSocket of the API server with the protocol `v4.channel.k8s.io`.
//!
//! The first byte of a message is its channel: data, or the reason of a failure. The first message of each channel is the port.
//! `kube::Api::portforward` reads the same protocol, but ends when a write fails, and drops a reason that has arrived by then.

use std::time::Duration;

use futures::{SinkExt as _, Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

const DATA: u8 = 0;
const FAILURE: u8 = 1;
/// Size of the largest message to the pod in bytes.
const MAX_SENT_BYTES: usize = 16 << 10;
/// How long the reason of a failure is awaited after a write has failed.
const REASON_TIMEOUT: Duration = Duration::from_secs(5);

/// Forwards a connection to a port of a pod until one side ends.
///
/// # Errors
/// The reason of the API server or of the kubelet, or how the WebSocket fails.
pub(super) async fn forward(
    connection: impl AsyncRead + AsyncWrite,
    client: &Client,
    (namespace, pod): (&str, &str),
    port: u16,
) -> Result<(), String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let request = kube::core::Request::new(pods.resource_url()).portforward(pod, &[port]);
    let opened = client.connect(request.map_err(|error| error.to_string())?).await;
    let socket = opened.map_err(|error| {
        let reason = sluice_kube::chain(&error);
        match error {
            // An API server before Kubernetes 1.30, or a proxy in front of it, may accept SPDY only.
            kube::Error::UpgradeConnection(_) => format!("the API server opens no WebSocket: {reason}"),
            _ => reason,
        }
    })?;
    copy(connection, socket.into_stream(), port).await
}

/// Copies between a connection and the channels of a port.
async fn copy<S: AsyncRead + AsyncWrite + Unpin>(
    connection: impl AsyncRead + AsyncWrite,
    socket: WebSocketStream<S>,
    port: u16,
) -> Result<(), String> {
    let (mut from_client, mut to_client) = tokio::io::split(connection);
    let (mut to_pod, mut from_pod) = socket.split();
    let send = async {
        let mut buffer = vec![DATA; 1 + MAX_SENT_BYTES];
        // The client is gone at the end of its stream, and after an error.
        while let Ok(count @ 1..) = from_client.read(&mut buffer[1..]).await {
            to_pod.send(Message::binary(buffer[..=count].to_vec())).await?;
        }
        to_pod.close().await
    };
    let sent = async {
        let sent = send.await.map_err(|error| error.to_string());
        if sent.is_err() {
            // The other side has closed the connection. What it sent before is read first.
            tokio::time::sleep(REASON_TIMEOUT).await;
        }
        sent
    };
    tokio::select! {
        biased;
        received = receive(&mut from_pod, &mut to_client, port) => received,
        sent = sent => sent,
    }
}

/// Writes the data of a port to the client until the stream ends.
async fn receive(
    from_pod: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
    to_client: &mut (impl AsyncWrite + Unpin),
    port: u16,
) -> Result<(), String> {
    let mut is_open = [false; 2];
    while let Some(message) = from_pod.next().await {
        let message = match message.map_err(|error| error.to_string())? {
            Message::Binary(message) => message,
            Message::Close(_) => return Ok(()),
            _ => continue,
        };
        let Some((&channel, content)) = message.split_first() else { continue };
        let Some(is_open) = is_open.get_mut(usize::from(channel)) else {
            return Err(format!(
                "the API server sends a message of channel {channel}; {DATA} and {FAILURE} are expected"
            ));
        };
        if !std::mem::replace(is_open, true) {
            if content != port.to_le_bytes() {
                return Err(format!("the API server opens another port than {port}: {content:?}"));
            }
        } else if channel == FAILURE {
            return Err(String::from_utf8_lossy(content).into_owned());
        } else if to_client.write_all(content).await.is_err() {
            // The client is gone.
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    const PORT: u16 = 8_080;

    /// Both sides of a WebSocket.
    async fn sockets() -> (WebSocketStream<DuplexStream>, WebSocketStream<DuplexStream>) {
        let (client, server) = tokio::io::duplex(1 << 10);
        let socket = |stream, role| WebSocketStream::from_raw_socket(stream, role, None);
        (socket(client, Role::Client).await, socket(server, Role::Server).await)
    }

    async fn open_channels(server: &mut WebSocketStream<DuplexStream>, port: u16) {
        let [low, high] = port.to_le_bytes();
        for channel in [DATA, FAILURE] {
            server.send(Message::binary(vec![channel, low, high])).await.expect("sent");
        }
    }

    /// The result, and what the client receives, if it sends a request to a server that has closed the connection.
    async fn copied_after(messages: &[&[u8]], port: u16) -> (Result<(), String>, String) {
        let (socket, mut server) = sockets().await;
        open_channels(&mut server, port).await;
        for message in messages {
            server.send(Message::binary(message.to_vec())).await.expect("sent");
        }
        server.close(None).await.expect("closed");
        drop(server);
        let (mut client, connection) = tokio::io::duplex(1 << 10);
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("written");
        let copied = copy(connection, socket, PORT).await;
        let mut received = String::new();
        client.read_to_string(&mut received).await.expect("read");
        (copied, received)
    }

    #[tokio::test]
    async fn reason_is_read_although_the_request_cannot_be_written() {
        let (copied, received) = copied_after(&[b"\x01connection refused"], PORT).await;
        assert_eq!((copied, received.as_str()), (Err("connection refused".to_owned()), ""));
    }

    #[tokio::test]
    async fn data_before_the_end_reaches_the_client() {
        let (copied, received) = copied_after(&[b"\x00one ", b"\x00two"], PORT).await;
        assert_eq!((copied, received.as_str()), (Ok(()), "one two"));
    }

    #[tokio::test]
    async fn other_ports_and_channels_are_errors() {
        let (copied, _) = copied_after(&[], 9_090).await;
        assert_eq!(copied.expect_err("another port"), "the API server opens another port than 8080: [130, 35]");
        let (copied, received) = copied_after(&[b"\x00one", b"\x02two"], PORT).await;
        let expected = "the API server sends a message of channel 2; 0 and 1 are expected";
        assert_eq!((copied.expect_err("another channel").as_str(), received.as_str()), (expected, "one"));
    }

    #[tokio::test]
    async fn end_of_the_client_closes_the_stream_of_the_pod() {
        let (socket, mut server) = sockets().await;
        let (mut client, connection) = tokio::io::duplex(1 << 10);
        open_channels(&mut server, PORT).await;
        let pod = async {
            let mut received = Vec::new();
            while let Some(Ok(Message::Binary(message))) = server.next().await {
                received.extend_from_slice(message.strip_prefix(&[DATA]).expect("data"));
            }
            received
        };
        client.write_all(b"request").await.expect("written");
        drop(client);
        let (copied, received) = tokio::join!(copy(connection, socket, PORT), pod);
        assert_eq!((copied, received.as_slice()), (Ok(()), b"request".as_slice()));
    }
}
