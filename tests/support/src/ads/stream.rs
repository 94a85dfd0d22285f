//! One ADS stream of either protocol, one message at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::{Stream, TryStreamExt};
use serde_json::Value;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
};
use sluice_proto::google::protobuf::Any;
use sluice_proto::google::rpc::Status;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint};

use super::Protocol;

/// Largest response. Route tables of large meshes exceed the default of 4 MiB.
const MAX_MESSAGE_BYTES: usize = 512 << 20;

/// Connects to a plaintext ADS port.
///
/// # Errors
/// The address does not accept the connection.
pub async fn connect(address: SocketAddr) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.connect_timeout(Duration::from_secs(5));
    endpoint.connect().await.with_context(|| format!("connect to {address}"))
}

/// The identity that a stream presents.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// The node, sent with the first request.
    pub node: Option<Node>,
    /// `x-forwarded-client-cert`, if any.
    pub forwarded: Option<String>,
}

impl Identity {
    /// The identity of a node in protobuf JSON.
    ///
    /// # Errors
    /// The JSON is not a node.
    pub fn of_node(node: &Value) -> Result<Self> {
        Ok(Self { node: Some(sluice_proto::json::decode::<Node>(node)?.message), forwarded: None })
    }

    /// The same with a forwarded identity.
    #[must_use]
    pub(crate) fn forwarded_as(mut self, value: String) -> Self {
        self.forwarded = Some(value);
        self
    }
}

/// A response, in either protocol.
#[derive(Clone, Debug)]
pub struct Update {
    /// Type URL of its resources.
    pub type_url: String,
    /// Its nonce.
    pub nonce: String,
    /// Version of the response.
    pub version: String,
    /// Resources with name and version. Both are empty in state of the world, where only the message has them.
    pub resources: Vec<(String, String, Any)>,
    /// Removed names; always empty in state of the world.
    pub removed: Vec<String>,
    /// Identifier of the control plane; empty if the response has none.
    pub control_plane: String,
}

/// An open stream.
pub struct AdsStream {
    wire: StreamHalves,
    node: Option<Node>,
    /// Subscribed names, by type.
    subscribed: BTreeMap<String, BTreeSet<String>>,
    /// Last version and nonce acknowledged, by type.
    acked: BTreeMap<String, (String, String)>,
}

enum StreamHalves {
    Sotw(mpsc::UnboundedSender<DiscoveryRequest>, ResponseStream<DiscoveryResponse>),
    Delta(mpsc::UnboundedSender<DeltaDiscoveryRequest>, ResponseStream<DeltaDiscoveryResponse>),
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, tonic::Status>> + Send>>;

/// Makes the call without waiting for response headers: some servers send none before the first request.
fn response_stream<T: Send + 'static>(
    call: impl Future<Output = Result<tonic::Response<Streaming<T>>, tonic::Status>> + Send + 'static,
) -> ResponseStream<T> {
    let call = tokio::spawn(call);
    let opened = async move {
        let response = call.await.map_err(|error| tonic::Status::internal(error.to_string()))?;
        response.map(tonic::Response::into_inner)
    };
    Box::pin(futures::stream::once(opened).try_flatten())
}

impl AdsStream {
    /// Opens a stream. The first request carries the node. If the server rejects the call, reading the first update fails.
    ///
    /// # Errors
    /// The identity cannot be sent as a header.
    pub fn open(channel: Channel, protocol: Protocol, identity: Identity) -> Result<Self> {
        let header = identity.forwarded.as_ref().map(|value| ("x-forwarded-client-cert", value.clone()));
        Self::open_with_headers(channel, protocol, identity, header)
    }

    /// Opens a stream of a caller with a token.
    ///
    /// # Errors
    /// The token cannot be sent as a header.
    pub fn open_with_token(channel: Channel, protocol: Protocol, identity: Identity, token: &str) -> Result<Self> {
        Self::open_with_headers(channel, protocol, identity, [("authorization", format!("Bearer {token}"))])
    }

    /// Opens a stream with these headers.
    ///
    /// # Errors
    /// A value cannot be sent as a header.
    pub fn open_with_headers(
        channel: Channel,
        protocol: Protocol,
        identity: Identity,
        headers: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Self> {
        let mut client = AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let mut metadata = MetadataMap::new();
        for (name, value) in headers {
            let value: MetadataValue<Ascii> = value.parse().with_context(|| format!("encode header {name}"))?;
            metadata.insert(name, value);
        }
        let wire = match protocol {
            Protocol::Sotw => {
                let (sender, requests) = mpsc::unbounded_channel();
                let mut request = tonic::Request::new(UnboundedReceiverStream::new(requests));
                *request.metadata_mut() = metadata;
                StreamHalves::Sotw(
                    sender,
                    response_stream(async move { client.stream_aggregated_resources(request).await }),
                )
            }
            Protocol::Delta => {
                let (sender, requests) = mpsc::unbounded_channel();
                let mut request = tonic::Request::new(UnboundedReceiverStream::new(requests));
                *request.metadata_mut() = metadata;
                StreamHalves::Delta(
                    sender,
                    response_stream(async move { client.delta_aggregated_resources(request).await }),
                )
            }
        };
        Ok(Self { wire, node: identity.node, subscribed: BTreeMap::new(), acked: BTreeMap::new() })
    }

    /// Subscribes to names of a type, or to all its resources if there are no names, in place of the earlier
    /// subscription. `held` are resources from an earlier stream, with their versions (delta only).
    ///
    /// # Errors
    /// The stream is closed.
    pub fn subscribe(&mut self, type_url: &str, names: &[String], held: BTreeMap<String, String>) -> Result<()> {
        let wanted: BTreeSet<String> = names.iter().cloned().collect();
        let before = self.subscribed.insert(type_url.to_owned(), wanted.clone());
        match &self.wire {
            StreamHalves::Sotw(sender, _) => {
                let (version_info, response_nonce) = self.acked.get(type_url).cloned().unwrap_or_default();
                send(
                    sender,
                    DiscoveryRequest {
                        node: self.node.take(),
                        type_url: type_url.to_owned(),
                        resource_names: names.to_vec(),
                        version_info,
                        response_nonce,
                        ..DiscoveryRequest::default()
                    },
                )
            }
            StreamHalves::Delta(sender, _) => {
                let before = before.unwrap_or_default();
                send(
                    sender,
                    DeltaDiscoveryRequest {
                        node: self.node.take(),
                        type_url: type_url.to_owned(),
                        resource_names_subscribe: wanted.difference(&before).cloned().collect(),
                        resource_names_unsubscribe: before.difference(&wanted).cloned().collect(),
                        initial_resource_versions: held.into_iter().collect(),
                        ..DeltaDiscoveryRequest::default()
                    },
                )
            }
        }
    }

    /// Acknowledges an update.
    ///
    /// # Errors
    /// The stream is closed.
    pub fn ack(&mut self, update: &Update) -> Result<()> {
        self.acked.insert(update.type_url.clone(), (update.version.clone(), update.nonce.clone()));
        self.acknowledge(update, &update.version, None)
    }

    /// Rejects an update. The acknowledged version does not change.
    ///
    /// # Errors
    /// The stream is closed.
    pub fn nack(&mut self, update: &Update, reason: &str) -> Result<()> {
        let version = self.acked.get(&update.type_url).map(|(version, _)| version.clone()).unwrap_or_default();
        let status = Status { code: 13, message: reason.to_owned(), details: Vec::new() };
        self.acknowledge(update, &version, Some(status))
    }

    fn acknowledge(&self, update: &Update, version: &str, error_detail: Option<Status>) -> Result<()> {
        match &self.wire {
            StreamHalves::Sotw(sender, _) => send(
                sender,
                DiscoveryRequest {
                    type_url: update.type_url.clone(),
                    resource_names: self.subscribed.get(&update.type_url).into_iter().flatten().cloned().collect(),
                    version_info: version.to_owned(),
                    response_nonce: update.nonce.clone(),
                    error_detail,
                    ..DiscoveryRequest::default()
                },
            ),
            StreamHalves::Delta(sender, _) => send(
                sender,
                DeltaDiscoveryRequest {
                    type_url: update.type_url.clone(),
                    response_nonce: update.nonce.clone(),
                    error_detail,
                    ..DeltaDiscoveryRequest::default()
                },
            ),
        }
    }

    /// Sends a request that the test has built, in the stream's protocol.
    ///
    /// # Errors
    /// The stream is closed or is incremental.
    pub fn send_sotw(&self, request: DiscoveryRequest) -> Result<()> {
        match &self.wire {
            StreamHalves::Sotw(sender, _) => send(sender, request),
            StreamHalves::Delta(..) => bail!("the stream is incremental"),
        }
    }

    /// Sends a request that the test has built, in the stream's protocol.
    ///
    /// # Errors
    /// The stream is closed or is not incremental.
    pub fn send_delta(&self, request: DeltaDiscoveryRequest) -> Result<()> {
        match &self.wire {
            StreamHalves::Delta(sender, _) => send(sender, request),
            StreamHalves::Sotw(..) => bail!("the stream is not incremental"),
        }
    }

    /// Waits for the next response; `None` if the server ends the stream.
    ///
    /// # Errors
    /// The server ends it with a status.
    pub async fn next(&mut self) -> Result<Option<Update>> {
        Ok(match &mut self.wire {
            StreamHalves::Sotw(_, responses) => responses.try_next().await?.map(|response| Update {
                type_url: response.type_url,
                nonce: response.nonce,
                version: response.version_info,
                resources: response.resources.into_iter().map(|any| (String::new(), String::new(), any)).collect(),
                removed: Vec::new(),
                control_plane: response.control_plane.unwrap_or_default().identifier,
            }),
            StreamHalves::Delta(_, responses) => responses.try_next().await?.map(|response| Update {
                type_url: response.type_url,
                nonce: response.nonce,
                version: response.system_version_info,
                resources: response
                    .resources
                    .into_iter()
                    .map(|resource| (resource.name, resource.version, resource.resource.unwrap_or_default()))
                    .collect(),
                removed: response.removed_resources,
                control_plane: response.control_plane.unwrap_or_default().identifier,
            }),
        })
    }

    /// Waits for the next response for at most `limit`; `None` if none arrives.
    ///
    /// # Errors
    /// The stream ended.
    pub async fn next_within(&mut self, limit: Duration) -> Result<Option<Update>> {
        match tokio::time::timeout(limit, self.next()).await {
            Err(_) => Ok(None),
            Ok(Ok(Some(update))) => Ok(Some(update)),
            Ok(Ok(None)) => bail!("the server ended the stream"),
            Ok(Err(error)) => Err(error),
        }
    }
}

fn send<T>(sender: &mpsc::UnboundedSender<T>, request: T) -> Result<()> {
    sender.send(request).map_err(|_| anyhow::anyhow!("the stream is closed"))
}
