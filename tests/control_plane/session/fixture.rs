//! A mesh of test messages, whose layers, resources and scopes are set directly.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use prost::Message as _;
use sluice_model::{
    ClientProfile, Identity, Layer, Proxy, ProxyKey, Resource, ResourceKey, ResourceType, Scope, Segment, SegmentKey,
    Text, View,
};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_xds::{Admission, DiscoveryServer, Metrics, NodeError, ProxyInput, ProxyLimits, StatusReader};
use sluice_xds_protocol::{EpochChanges, Store};

pub(crate) const SIDECAR: &str = "sidecar~10.0.0.1~web.orchard~orchard.svc.cluster.local";

/// The node that proxies run on.
pub(crate) const NODE: &str = "worker-1";

/// Records the proxies that are written to the input, and whether each uses VHDS.
#[derive(Default)]
pub(crate) struct RecordedProxies(pub(crate) Mutex<Vec<(Text, Option<Text>)>>, pub(crate) Mutex<Vec<bool>>);

impl ProxyInput for RecordedProxies {
    fn parse(&self, node: &Node) -> Result<Proxy, NodeError> {
        if node.id.matches('~').count() != 3 {
            return Err(NodeError::Invalid(format!("node id {:?} has not four parts", node.id)));
        }
        let version = node.cluster.as_str().into();
        let domain = node.id.rsplit('~').next().unwrap_or_default();
        let namespace = domain.split('.').next().unwrap_or_default().into();
        Ok(Proxy {
            id: node.id.as_str().into(),
            namespace,
            istio_version: version,
            grpc: node.cluster == "grpc",
            virtual_hosts: true,
            on_demand_clusters: true,
            endpoints_by_locality: true,
            ..Proxy::default()
        })
    }

    fn profile(&self, proxy: &Proxy) -> ClientProfile {
        ClientProfile { properties: [proxy.istio_version.len() as u64, 0], ..ClientProfile::default() }
    }

    fn set(&self, key: ProxyKey, proxy: Arc<Proxy>) {
        self.0.lock().unwrap().push((key.0, Some(proxy.istio_version.clone())));
        self.1.lock().unwrap().push(proxy.virtual_hosts);
    }

    fn add_secret_client(&self, key: ProxyKey) {
        self.0.lock().unwrap().push((key.0, Some("subscribes to secrets".into())));
    }

    fn remove(&self, key: ProxyKey) {
        self.0.lock().unwrap().push((key.0, None));
    }
}

/// A server whose store is written by the test.
pub(crate) struct SessionFixture {
    pub(crate) server: Arc<DiscoveryServer>,
    pub(crate) status: StatusReader,
    pub(crate) proxies: Arc<RecordedProxies>,
    changes: Mutex<EpochChanges>,
    /// Scopes have layers of endpoints that are resources of their own.
    by_locality: bool,
}

impl SessionFixture {
    /// A ready store, and one sidecar whose scope is the layer `base` for every type.
    pub(crate) fn new() -> Self {
        Self::with(Admission::default(), ProxyLimits::default())
    }

    /// The same with limits for new streams and for the proxies of callers.
    pub(crate) fn with(admission: Admission, limits: ProxyLimits) -> Self {
        let proxies = Arc::new(RecordedProxies::default());
        let store = Arc::new(Store::default());
        let server = DiscoveryServer::with_limits(store, proxies.clone(), Metrics::default(), true, admission, limits);
        let status = StatusReader::new(server.clone());
        let mesh = Self { status, server, proxies, changes: Mutex::default(), by_locality: false };
        mesh.scope(SIDECAR, &["base"]);
        mesh.commit();
        mesh.server.store().set_ready();
        mesh
    }

    /// The same mesh; its proxies get endpoints by LEDS.
    pub(crate) fn with_endpoints_by_locality() -> Self {
        let mesh = Self { by_locality: true, ..Self::new() };
        mesh.scope(SIDECAR, &["base"]);
        mesh.commit();
        mesh
    }

    /// An EDS cluster whose message contains its version.
    pub(crate) fn cluster(&self, layer: &str, name: &str, content: &str) {
        use sluice_proto::envoy::config::cluster::v3::{Cluster, cluster::EdsClusterConfig};
        let cluster = Cluster {
            name: name.to_owned(),
            alt_stat_name: content.to_owned(),
            eds_cluster_config: Some(EdsClusterConfig::default()),
            ..Cluster::default()
        };
        self.set(ResourceType::Cluster, layer, name, &cluster.encode_to_vec());
    }

    pub(crate) fn set(&self, kind: ResourceType, layer: &str, name: &str, content: &[u8]) {
        self.put(kind, layer, name, Some(Resource::Encoded(Bytes::copy_from_slice(content))));
    }

    pub(crate) fn delete(&self, kind: ResourceType, layer: &str, name: &str) {
        self.put(kind, layer, name, None);
    }

    pub(crate) fn put(&self, resource_type: ResourceType, layer_name: &str, name: &str, resource: Option<Resource>) {
        let key = ResourceKey { resource_type, layer: layer(layer_name), name: name.into() };
        let mut changes = self.changes.lock().unwrap();
        changes.resources.retain(|(known, _)| *known != key);
        changes.resources.push((key, resource));
    }

    pub(crate) fn segment(&self, layer_name: &str, name: &str, segment: &str, content: Option<Segment>) {
        let key = SegmentKey {
            resource_type: ResourceType::Route,
            layer: layer(layer_name),
            name: name.into(),
            segment: segment.into(),
        };
        let mut changes = self.changes.lock().unwrap();
        changes.segments.retain(|(known, _)| *known != key);
        changes.segments.push((key, content));
    }

    /// Sets the scope of a proxy: these layers for every type, in this order.
    pub(crate) fn scope(&self, proxy: &str, layers: &[&str]) {
        self.scope_for(proxy, None, layers);
    }

    /// The same for a proxy with an authenticated identity.
    pub(crate) fn scope_for(&self, proxy: &str, identity: Option<Identity>, layers: &[&str]) {
        self.scope_with(proxy, identity, proxy, layers);
    }

    /// The same with a value of the slot `who`.
    pub(crate) fn scope_with(&self, proxy: &str, identity: Option<Identity>, who: &str, layers: &[&str]) {
        let layers: Arc<[Layer]> = layers.iter().map(|name| layer(name)).collect();
        let kinds = ResourceType::ALL.into_iter().filter(|kind| self.by_locality || *kind != ResourceType::LbEndpoint);
        let scope = Scope {
            layers: kinds.map(|kind| (kind, layers.clone())).collect(),
            slots: BTreeMap::from([("who".into(), Arc::from(who.as_bytes()))]),
            identity,
            node: NODE.into(),
        };
        let key = ProxyKey(proxy.into());
        let mut changes = self.changes.lock().unwrap();
        changes.scopes.retain(|(known, _)| *known != key);
        changes.scopes.push((key, Some(Arc::new(scope))));
    }

    /// Applies the changes since the last call, as one epoch.
    pub(crate) fn commit(&self) {
        let changes = std::mem::take(&mut *self.changes.lock().unwrap());
        self.server.store().apply(changes, std::time::Instant::now());
    }

    /// Name and bytes of every resource of a type in the scope of the proxy.
    pub(crate) fn current(&self, proxy: &str, kind: ResourceType) -> BTreeMap<String, Bytes> {
        let resources = self.status.current(&ProxyKey(proxy.into()), kind);
        resources.into_iter().map(|resource| (resource.name.to_string(), resource.bytes())).collect()
    }
}

/// The layer of that name. With `on-demand:` before it, the layer beside it whose resources a client has to name.
pub(crate) fn layer(name: &str) -> Layer {
    if let Some(name) = name.strip_prefix("on-demand:") {
        return layer(name).on_demand();
    }
    match name {
        "base" => Layer::default(),
        name => Layer { view: View::Namespace(name.into()), profile: Text::default() },
    }
}
