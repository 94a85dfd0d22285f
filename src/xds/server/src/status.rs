//! Status of the streams, for `syncz`, `adsz`, `config_dump` and the acknowledgement frontier.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use sluice_auth::Viewer;
use sluice_model::{Proxy, ProxyKey, ProxyType, ResourceType, Text};
use sluice_proto::envoy::admin::v3::UpdateFailureState;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::status::v3::client_config::GenericXdsConfig;
use sluice_proto::envoy::service::status::v3::{ClientConfig, ConfigStatus};
use sluice_proto::google::protobuf::{Struct, Timestamp, Value, value};

use sluice_xds_protocol::{ResolvedResource, SyncState, TypeSnapshot, TypeStatus, Version};

use crate::connection::Connection;
use crate::discovery_server::DiscoveryServer;
use crate::epoch_pushes::EpochPush;
use crate::named_resources::NamedResource;

/// Reads the status of the streams. The streams do no work for it.
#[derive(Clone)]
pub struct StatusReader {
    pub(crate) server: Arc<DiscoveryServer>,
}

/// One stream.
#[derive(Clone, Debug)]
pub struct StreamStatus {
    /// Number of the stream, in order of connecting.
    pub id: u64,
    /// The proxy, as its node describes it.
    pub proxy: Arc<Proxy>,
    /// Address of the client.
    pub peer: String,
    /// When the stream was opened.
    pub connected_at: SystemTime,
    /// Its subscriptions by type.
    pub types: BTreeMap<ResourceType, TypeStatus>,
}

/// One proxy of `/debug/syncz` (O11).
#[derive(Clone, Debug, Serialize)]
pub struct Syncz {
    #[serde(skip_serializing_if = "is_blank")]
    cluster_id: Text,
    proxy: Text,
    proxy_type: ProxyType,
    #[serde(skip_serializing_if = "is_blank")]
    istio_version: Text,
    #[serde(flatten)]
    by_type: BTreeMap<&'static str, String>,
    resources: BTreeMap<&'static str, SynczType>,
}

/// A type of [`Syncz`].
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SynczType {
    sent: String,
    acked: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<Text>,
}

/// `/debug/adsz` (O11). The clients are read while it is encoded, because the names of all subscriptions are many.
pub struct Adsz {
    connections: Vec<Arc<Connection>>,
}

impl Serialize for Adsz {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut page = serializer.serialize_struct("Adsz", 2)?;
        page.serialize_field("totalClients", &self.connections.len())?;
        page.serialize_field("clients", &AdszClients(&self.connections))?;
        page.end()
    }
}

struct AdszClients<'a>(&'a [Arc<Connection>]);

impl Serialize for AdszClients<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|connection| {
            let watched = connection.session().watched();
            AdszClient {
                connection_id: format!("{}-{}", short_id(&connection.proxy.id), connection.id),
                connected_at: time(connection.connected_at),
                address: connection.caller.address(),
                labels: connection.proxy.labels.clone(),
                metadata: connection.proxy.metadata.clone(),
                locality: connection.proxy.locality.clone(),
                watches: watched.into_iter().map(|(kind, names)| (kind.type_url(), names)).collect(),
            }
        }))
    }
}

/// A client of [`Adsz`].
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AdszClient {
    connection_id: String,
    connected_at: String,
    address: String,
    labels: sluice_model::Labels,
    metadata: sluice_model::Labels,
    locality: sluice_model::Locality,
    watches: BTreeMap<&'static str, Vec<Text>>,
}

/// Progress of the clients that subscribe to a resource.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct AckFrontier {
    /// Number of clients that subscribe to it.
    pub interested: usize,
    /// Number of clients that were sent its current version.
    pub sent: usize,
    /// Number of clients that acknowledged its current version.
    pub acked: usize,
    /// Clients that rejected the last response of the type, with their error messages.
    pub rejected: BTreeMap<Text, Text>,
}

/// The progress of one proxy with one resource.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyProgress {
    /// The current version, if the proxy should have the resource.
    pub version: Option<String>,
    /// Whether the proxy was sent the current version.
    pub sent: bool,
    /// Whether the proxy acknowledged the current version.
    pub acked: bool,
    /// When the last response of the type was sent.
    pub sent_at: Option<String>,
    /// When a response of the type was last acknowledged.
    pub acked_at: Option<String>,
    /// The error message of the proxy, if it rejected the last response of the type.
    pub error: Option<Text>,
}

impl StatusReader {
    /// Reads the streams of this server.
    #[must_use]
    pub fn new(server: Arc<DiscoveryServer>) -> Self {
        Self { server }
    }

    /// All identified streams, in order of connecting.
    #[must_use]
    pub fn streams(&self) -> Vec<StreamStatus> {
        let status = |connection: &Arc<Connection>| StreamStatus {
            id: connection.id,
            proxy: connection.proxy.clone(),
            peer: connection.caller.address(),
            connected_at: connection.connected_at,
            types: connection.session().status(),
        };
        self.server.connections().values().map(status).collect()
    }

    /// The connected proxies with their keys, in order of connecting.
    #[must_use]
    pub fn proxies(&self) -> Vec<(ProxyKey, Arc<Proxy>)> {
        let of = |connection: &Arc<Connection>| (connection.key.clone(), connection.proxy.clone());
        self.server.connections().values().map(of).collect()
    }

    /// The epoch of the engine up to which all its changes are served.
    #[must_use]
    pub fn served_epoch(&self) -> u64 {
        self.server.store().source_epoch()
    }

    /// The names of all resources of a type that a proxy should have now.
    #[must_use]
    pub fn names(&self, proxy: &ProxyKey, kind: ResourceType) -> BTreeSet<Text> {
        let snapshot = self.server.store().snapshot(proxy, [kind]);
        snapshot.view(kind).map(TypeSnapshot::names).unwrap_or_default()
    }

    /// The progress of a proxy with a resource: by its last stream, `None` if it does not subscribe to it.
    #[must_use]
    pub fn progress(&self, proxy: &ProxyKey, kind: ResourceType, name: &str) -> Option<ProxyProgress> {
        let connections = self.server.connections();
        let connection = connections.values().rev().find(|connection| connection.key == *proxy)?;
        let current = self.server.store().snapshot(proxy, [kind]).view(kind).and_then(|view| view.version(name));
        let session = connection.session();
        let progress = session.progress(kind, name)?;
        let status = session.status().remove(&kind)?;
        Some(ProxyProgress {
            version: current.map(|version| version.to_string()),
            sent: progress.sent == current,
            acked: progress.acked == current,
            sent_at: status.sent_at.map(|at| time(wall(at))),
            acked_at: status.acked_at.map(|at| time(wall(at))),
            error: progress.error,
        })
    }

    /// The proxies for `/debug/syncz`: those of a namespace, or all.
    #[must_use]
    pub fn syncz(&self, namespace: Option<&str>) -> Vec<Syncz> {
        let of = |stream: StreamStatus| {
            let mut by_type = BTreeMap::new();
            let mut resources = BTreeMap::new();
            for (kind, status) in stream.types {
                let (sent, acked) = (status.sent.unwrap_or_default(), status.acked.unwrap_or_default());
                if let Some((sent_key, acked_key)) = sync_keys(kind) {
                    by_type.insert(sent_key, sent.clone());
                    by_type.insert(acked_key, acked.clone());
                }
                let sent_time = status.sent_at.map(|at| time(wall(at)));
                let last_error = status.error.map(|(_, message)| message);
                resources.insert(kind.type_url(), SynczType { sent, acked, sent_time, last_error });
            }
            let proxy = stream.proxy;
            Syncz {
                cluster_id: proxy.cluster.clone(),
                proxy: short_id(&proxy.id),
                proxy_type: proxy.proxy_type,
                istio_version: proxy.istio_version.clone(),
                by_type,
                resources,
            }
        };
        let is_of = |stream: &StreamStatus| namespace.is_none_or(|wanted| stream.proxy.namespace.as_str() == wanted);
        self.streams().into_iter().filter(is_of).map(of).collect()
    }

    /// The clients for `/debug/adsz`.
    #[must_use]
    pub fn adsz(&self) -> Adsz {
        Adsz { connections: self.server.connections().values().cloned().collect() }
    }

    /// The resources that a proxy was sent, by type: for `/debug/config_dump`. `proxy` is a node id or `pod.namespace`; `None` if
    /// no such proxy is connected here or the viewer may not see it.
    #[must_use]
    pub fn config_dump(&self, proxy: &str, viewer: &Viewer) -> Option<BTreeMap<ResourceType, Vec<ResolvedResource>>> {
        let connection = self.connection(proxy, viewer)?;
        let session = connection.session();
        Some(session.kinds().iter().map(|kind| (kind, session.held(kind))).collect())
    }

    /// The proxy of this node id or `pod.namespace`, if it is connected here and the viewer may see it.
    #[must_use]
    pub fn find(&self, proxy: &str, viewer: &Viewer) -> Option<ProxyKey> {
        self.connection(proxy, viewer).map(|connection| connection.key.clone())
    }

    /// Closes the stream of the proxy of this node id or `pod.namespace`. Returns whether it is connected here and the viewer may
    /// see it.
    #[must_use]
    pub fn disconnect(&self, proxy: &str, viewer: &Viewer) -> bool {
        let connection = self.connection(proxy, viewer);
        if let Some(connection) = &connection {
            connection.refusal.refuse("an operator has closed the stream".to_owned());
        }
        connection.is_some()
    }

    fn connection(&self, proxy: &str, viewer: &Viewer) -> Option<Arc<Connection>> {
        let connections = self.server.connections();
        let matches = |connection: &&Arc<Connection>| {
            is_named(&connection.key, proxy) && viewer.sees(&connection.proxy.namespace)
        };
        connections.values().rev().find(matches).cloned()
    }

    /// The synchronization status of the proxies that the viewer may see, as `istioctl proxy-status` reads it: a `ClientConfig`
    /// for each.
    #[must_use]
    pub fn client_configs(&self, viewer: &Viewer) -> Vec<NamedResource> {
        let streams = self.streams().into_iter().filter(|stream| viewer.sees(&stream.proxy.namespace));
        streams.map(client_config).collect()
    }

    /// The resources of a type that a proxy should have now, whether or not it was sent them; by node id.
    #[must_use]
    pub fn current(&self, proxy: &ProxyKey, kind: ResourceType) -> Vec<ResolvedResource> {
        let snapshot = self.server.store().snapshot(proxy, [kind]);
        snapshot
            .view(kind)
            .map_or_else(Vec::new, |view| view.names().iter().filter_map(|name| view.find(name)).collect())
    }

    /// The responses of the latest epochs that were sent to any proxy, in the order of the epochs.
    #[must_use]
    pub fn pushes(&self) -> Vec<EpochPush> {
        self.server.pushes().all()
    }

    /// The acknowledgement frontier of a resource.
    #[must_use]
    pub fn frontier(&self, kind: ResourceType, name: &str) -> AckFrontier {
        let mut frontier = AckFrontier::default();
        for connection in self.server.connections().values() {
            let snapshot = self.server.store().snapshot(&connection.key, [kind]);
            let current: Option<Version> = snapshot.view(kind).and_then(|view| view.version(name));
            let session = connection.session();
            let Some(progress) = session.progress(kind, name) else { continue };
            if current.is_none() && progress.sent.is_none() {
                continue;
            }
            frontier.interested += 1;
            frontier.sent += usize::from(progress.sent == current);
            frontier.acked += usize::from(progress.acked == current);
            if let Some(error) = progress.error {
                frontier.rejected.insert(connection.key.0.clone(), error);
            }
        }
        frontier
    }
}

fn client_config(stream: StreamStatus) -> NamedResource {
    let config = |(kind, status): (ResourceType, TypeStatus)| GenericXdsConfig {
        type_url: kind.type_url().to_owned(),
        config_status: i32::from(match status.state() {
            SyncState::NotSent => ConfigStatus::NotSent,
            SyncState::Synced => ConfigStatus::Synced,
            SyncState::Stale => ConfigStatus::Stale,
            SyncState::Error => ConfigStatus::Error,
        }),
        last_updated: status.sent_at.map(|at| timestamp(wall(at))),
        error_state: status.error.map(|(_, details)| UpdateFailureState {
            last_update_attempt: status.sent_at.map(|at| timestamp(wall(at))),
            details: details.to_string(),
            ..UpdateFailureState::default()
        }),
        ..GenericXdsConfig::default()
    };
    let proxy = stream.proxy;
    let metadata =
        [("CLUSTER_ID", &proxy.cluster), ("ISTIO_VERSION", &proxy.istio_version), ("NAMESPACE", &proxy.namespace)];
    let text = |text: &Text| Value { kind: Some(value::Kind::StringValue(text.to_string())) };
    let metadata = metadata.into_iter().filter(|(_, value)| !is_blank(value));
    let metadata = metadata.map(|(name, value)| (name.to_owned(), text(value))).collect();
    let mut configs: Vec<GenericXdsConfig> = stream.types.into_iter().map(config).collect();
    configs.sort_by(|one, other| one.type_url.cmp(&other.type_url));
    // As istioctl prints it.
    let id = short_id(&proxy.id).to_string();
    let node = Node { id: id.clone(), metadata: Some(Struct { fields: metadata }), ..Node::default() };
    let client = ClientConfig { node: Some(node), generic_xds_configs: configs, ..ClientConfig::default() };
    let any = sluice_proto::wire::to_any(&client);
    NamedResource { name: id, type_url: any.type_url, bytes: any.value.into() }
}

fn timestamp(at: SystemTime) -> Timestamp {
    let at = prost_types::Timestamp::from(at);
    Timestamp { seconds: at.seconds, nanos: at.nanos }
}

/// `pod.namespace` of a node id.
#[must_use]
pub fn short_id(id: &Text) -> Text {
    id.split('~').nth(2).map_or_else(|| id.clone(), Text::from)
}

fn is_named(key: &ProxyKey, name: &str) -> bool {
    key.0 == *name || short_id(&key.0) == *name
}

const fn sync_keys(kind: ResourceType) -> Option<(&'static str, &'static str)> {
    match kind {
        ResourceType::Cluster => Some(("cluster_sent", "cluster_acked")),
        ResourceType::Listener => Some(("listener_sent", "listener_acked")),
        ResourceType::Route => Some(("route_sent", "route_acked")),
        ResourceType::Endpoint => Some(("endpoint_sent", "endpoint_acked")),
        ResourceType::ExtensionConfig => Some(("extensionconfig_sent", "extensionconfig_acked")),
        _ => None,
    }
}

/// The wall-clock time of a past instant.
fn wall(at: Instant) -> SystemTime {
    SystemTime::now().checked_sub(at.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn time(at: SystemTime) -> String {
    prost_types::Timestamp::from(at).to_string()
}

fn is_blank(text: &Text) -> bool {
    text.as_str().is_empty()
}
