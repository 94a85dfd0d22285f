//! What there is to say of the streams: for `syncz`, `adsz`, `config_dump` and the ack frontier.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Instant, SystemTime};

use serde::Serialize;
use sluice_auth::Viewer;
use sluice_model::{Proxy, ProxyKey, ProxyType, ResourceType, Text};
use sluice_proto::envoy::admin::v3::UpdateFailureState;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::status::v3::client_config::GenericXdsConfig;
use sluice_proto::envoy::service::status::v3::{ClientConfig, ConfigStatus};
use sluice_proto::google::protobuf::{Struct, Timestamp, Value, value};

use crate::xds::debug::DebugResource;
use crate::xds::hub::{Hub, Seat};
use crate::xds::session::TypeStatus;
use crate::xds::store::Found;
use crate::xds::version::Version;

/// A handle to ask what the streams are at. Reading costs the reader, not the streams.
#[derive(Clone)]
pub struct Status {
    hub: Arc<Hub>,
}

/// One stream.
#[derive(Clone, Debug)]
pub struct StreamStatus {
    /// Number of the stream, in order of beginning.
    pub id: u64,
    /// The proxy, as its node says.
    pub proxy: Arc<Proxy>,
    /// Address of the client.
    pub peer: String,
    /// When it began.
    pub connected_at: SystemTime,
    /// Its subscriptions.
    pub types: BTreeMap<ResourceType, TypeStatus>,
}

/// How far a type is, in the reference's words.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum SyncState {
    /// Nothing was sent yet.
    NotSent,
    /// The last response was acknowledged.
    Synced,
    /// The last response was not acknowledged yet.
    Stale,
    /// The last response was rejected.
    Error,
}

impl TypeStatus {
    /// How far the type is.
    #[must_use]
    pub fn state(&self) -> SyncState {
        match (&self.error, &self.sent, &self.acked) {
            (Some(_), ..) => SyncState::Error,
            (None, None, _) => SyncState::NotSent,
            (None, sent, acked) if sent == acked => SyncState::Synced,
            _ => SyncState::Stale,
        }
    }
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

/// `/debug/adsz` (O11).
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Adsz {
    total_clients: usize,
    clients: Vec<AdszClient>,
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
    watches: BTreeMap<&'static str, usize>,
}

/// How many of the clients that want a resource have its current version.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Frontier {
    /// Clients that want it.
    pub interested: usize,
    /// Those that were sent their current version.
    pub sent: usize,
    /// Those that acknowledged it.
    pub acked: usize,
    /// Those that rejected the last response of the type, with what they said.
    pub rejected: BTreeMap<Text, Text>,
}

impl Status {
    /// A handle to the hub's streams.
    #[must_use]
    pub fn new(hub: Arc<Hub>) -> Self {
        Self { hub }
    }

    /// Every stream whose client is known, in order of beginning.
    #[must_use]
    pub fn streams(&self) -> Vec<StreamStatus> {
        let status = |seat: &Arc<Seat>| StreamStatus {
            id: seat.id,
            proxy: seat.proxy.clone(),
            peer: seat.caller.address(),
            connected_at: seat.connected_at,
            types: seat.session.lock().unwrap_or_else(PoisonError::into_inner).status(),
        };
        self.hub.seats().values().map(status).collect()
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
        let of = |stream: StreamStatus| AdszClient {
            connection_id: format!("{}-{}", short_id(&stream.proxy.id), stream.id),
            connected_at: time(stream.connected_at),
            address: stream.peer,
            labels: stream.proxy.labels.clone(),
            metadata: stream.proxy.metadata.clone(),
            locality: stream.proxy.locality.clone(),
            watches: stream.types.iter().map(|(kind, status)| (kind.type_url(), status.names)).collect(),
        };
        let clients: Vec<AdszClient> = self.streams().into_iter().map(of).collect();
        Adsz { total_clients: clients.len(), clients }
    }

    /// What a proxy was told of, by type: for `/debug/config_dump`. `proxy` is a node id or `pod.namespace`; nothing if no
    /// such proxy is connected here that the viewer may see.
    #[must_use]
    pub fn config_dump(&self, proxy: &str, viewer: &Viewer) -> Option<BTreeMap<ResourceType, Vec<Found>>> {
        let seat = self.seat(proxy, viewer)?;
        let session = seat.session.lock().unwrap_or_else(PoisonError::into_inner);
        Some(session.kinds().iter().map(|kind| (kind, session.held(kind))).collect())
    }

    /// The proxy of that node id or `pod.namespace`, if it is connected here and the viewer may see it.
    #[must_use]
    pub fn find(&self, proxy: &str, viewer: &Viewer) -> Option<ProxyKey> {
        self.seat(proxy, viewer).map(|seat| seat.key.clone())
    }

    fn seat(&self, proxy: &str, viewer: &Viewer) -> Option<Arc<Seat>> {
        let seats = self.hub.seats();
        let is = |seat: &&Arc<Seat>| is_named(&seat.key, proxy) && viewer.sees(&seat.proxy.namespace);
        seats.values().rev().find(is).cloned()
    }

    /// How far the proxies are that the viewer may see, as `istioctl proxy-status` reads it: a `ClientConfig` each.
    #[must_use]
    pub fn client_configs(&self, viewer: &Viewer) -> Vec<DebugResource> {
        let streams = self.streams().into_iter().filter(|stream| viewer.sees(&stream.proxy.namespace));
        streams.map(client_config).collect()
    }

    /// What a proxy should have now of a type, whether or not it was told; by node id.
    #[must_use]
    pub fn current(&self, proxy: &ProxyKey, kind: ResourceType) -> Vec<Found> {
        let cut = self.hub.store().cut(proxy, [kind]);
        cut.view(kind).map_or_else(Vec::new, |view| view.names().iter().filter_map(|name| view.find(name)).collect())
    }

    /// How far the clients are with a resource.
    #[must_use]
    pub fn frontier(&self, kind: ResourceType, name: &str) -> Frontier {
        let mut frontier = Frontier::default();
        for seat in self.hub.seats().values() {
            let cut = self.hub.store().cut(&seat.key, [kind]);
            let current: Option<Version> = cut.view(kind).and_then(|view| view.version(name));
            let session = seat.session.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(progress) = session.progress(kind, name) else { continue };
            if current.is_none() && progress.sent.is_none() {
                continue;
            }
            frontier.interested += 1;
            frontier.sent += usize::from(progress.sent == current);
            frontier.acked += usize::from(progress.acked == current);
            if let Some(error) = progress.error {
                frontier.rejected.insert(seat.key.0.clone(), error);
            }
        }
        frontier
    }
}

fn client_config(stream: StreamStatus) -> DebugResource {
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
    let node = Node { id: proxy.id.to_string(), metadata: Some(Struct { fields: metadata }), ..Node::default() };
    let client = ClientConfig { node: Some(node), generic_xds_configs: configs, ..ClientConfig::default() };
    let any = sluice_proto::wire::to_any(&client);
    DebugResource { name: proxy.id.to_string(), type_url: any.type_url, bytes: any.value.into() }
}

fn timestamp(at: SystemTime) -> Timestamp {
    let at = prost_types::Timestamp::from(at);
    Timestamp { seconds: at.seconds, nanos: at.nanos }
}

/// `pod.namespace` of a node id.
fn short_id(id: &Text) -> Text {
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

/// The time of day of an instant that has passed.
fn wall(at: Instant) -> SystemTime {
    SystemTime::now().checked_sub(at.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn time(at: SystemTime) -> String {
    prost_types::Timestamp::from(at).to_string()
}

fn is_blank(text: &Text) -> bool {
    text.as_str().is_empty()
}
