//! The stream to a source: connection, subscriptions, acknowledgements.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use sluice_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::tls::SourceTls;

/// Time limit to connect, including the handshake, and for the response to the call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// An idle connection is pinged after this time.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// The connection is closed if the ping is not acknowledged within this time.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Initial size of HTTP/2 windows, as in Istio.
const WINDOW_BYTES: u32 = 1 << 20;
/// Largest response. It has all objects of a kind.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

/// An open stream.
pub(super) struct SourceStream {
    requests: mpsc::UnboundedSender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

impl SourceStream {
    /// Connects to `HOST:PORT`, and subscribes to all objects of these types. `node` makes the node for the client's address.
    ///
    /// # Errors
    /// The server cannot be reached or verified, or refuses the call: the reason.
    pub(super) async fn open(
        address: &str,
        tls: Option<(SourceTls, ServerName<'static>)>,
        node: impl Fn(IpAddr) -> Node,
        types: Vec<String>,
    ) -> Result<Self, String> {
        let opening = async {
            let (channel, client_address) = connect(address, tls).await?;
            let client = AggregatedDiscoveryServiceClient::new(channel);
            let mut client = client.max_decoding_message_size(MAX_RESPONSE_BYTES);
            let (requests, receiver) = mpsc::unbounded_channel();
            let mut node = Some(node(client_address));
            for type_url in types {
                // The first request of a stream has the node. The receiver exists.
                let _ = requests.send(DiscoveryRequest { node: node.take(), type_url, ..DiscoveryRequest::default() });
            }
            let call = client.stream_aggregated_resources(UnboundedReceiverStream::new(receiver));
            let responses = call.await.map_err(|status| reason_of(&status))?.into_inner();
            Ok(Self { requests, responses })
        };
        let late = |_| format!("no stream within {} s", CONNECT_TIMEOUT.as_secs());
        tokio::time::timeout(CONNECT_TIMEOUT, opening).await.map_err(late)?
    }

    /// The next response.
    ///
    /// # Errors
    /// The stream has ended: the reason.
    pub(super) async fn next(&mut self) -> Result<DiscoveryResponse, String> {
        let response = self.responses.message().await.map_err(|status| reason_of(&status))?;
        response.ok_or_else(|| "the server ended the stream".to_owned())
    }

    /// Acknowledges a response.
    pub(super) fn acknowledge(&self, type_url: String, version_info: String, response_nonce: String) {
        let request = DiscoveryRequest { type_url, version_info, response_nonce, ..DiscoveryRequest::default() };
        // After the end of the stream, the next response is an error.
        let _ = self.requests.send(request);
    }
}

fn reason_of(status: &tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// A channel over one connection, and the client's address. The channel does not connect again.
async fn connect(address: &str, tls: Option<(SourceTls, ServerName<'static>)>) -> Result<(Channel, IpAddr), String> {
    let tcp = TcpStream::connect(address).await.map_err(|error| format!("connect to {address}: {error}"))?;
    let _ = tcp.set_nodelay(true);
    let client_address = tcp.local_addr().map_err(|error| error.to_string())?.ip();
    let channel = match tls {
        None => over(address, "http", tcp).await?,
        Some((tls, name)) => {
            let SourceTls { config, .. } = &tls;
            let handshake = TlsConnector::from(Arc::new(config.clone())).connect(name, tcp).await;
            let stream = handshake.map_err(|error| format!("TLS handshake with {address}: {error}"))?;
            tls.check(stream.get_ref().1.peer_certificates().unwrap_or_default())?;
            over(address, "https", stream).await?
        }
    };
    Ok((channel, client_address))
}

async fn over<S>(address: &str, scheme: &str, stream: S) -> Result<Channel, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(|error| error.to_string())?;
    let endpoint = endpoint
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_: http::Uri| {
        let stream = stream.take().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected));
        std::future::ready(stream)
    });
    endpoint.connect_with_connector(connector).await.map_err(|error| sluice_kube::chain(&error))
}
