//! Ambient mode: the workloads, services and policies of node proxies (ztunnel) (A01 to A05).
//!
//! Everything is of the config cluster, unless several networks are served: then pods, slices, global Services, waypoints
//! and gateways of remote clusters count too. `services.rs` derives one service for each namespace and host of a cluster.
//! `pods.rs`, `entries.rs` and `slices.rs` derive workloads. `policies.rs` derives policies and finds those of a workload.
//! `waypoints.rs` finds the waypoint of a workload or service. `gateways.rs` derives the gateways of other networks, and
//! `split_horizon.rs` what is known of these networks. `conditions.rs` derives conditions of objects, and
//! `inference_pools.rs` InferencePools as services.

mod conditions;
mod entries;
mod gateways;
mod inference_pools;
mod pods;
mod policies;
mod services;
mod slices;
mod split_horizon;
pub(crate) mod waypoints;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_envoy::ztunnel::WorkloadAddress;
use sluice_model::gateway_api::Gateway;
use sluice_model::{
    AmbientService, HboneDestination, Labels, MeshConfig, Namespace, ObjectKey, Resource, Service, ServiceKey, Text,
    Waypoint, match_labels,
};

use crate::inputs::ObjectCollections;
use crate::inputs::discovery::Discovery;
use crate::options::{AmbientOptions, GraphOptions};
use crate::registry::networks::NetworkRules;
use crate::registry::services::DeclaredKey;
use crate::registry::workloads::selector_key;
use crate::statuses::{ConditionUpdate, StatusKey};

use gateways::{GatewayReads, RemoteGateways};
use policies::{AmbientPolicies, PolicyReads};
use services::{ClusterService, ClusterServices};
use split_horizon::RemoteWorkload;
use waypoints::{WaypointReads, Waypoints};

/// Inputs of the derivation of ambient mode.
pub(crate) struct AmbientInputs<'a, 's> {
    pub(crate) objects: &'a ObjectCollections<'s>,
    /// Gateways of the Gateway API in remote clusters. Without several networks, they have no effect.
    pub(crate) remote_gateways: &'a Collection<'s, ObjectKey, Gateway>,
    pub(crate) mesh: &'a Collection<'s, (), MeshConfig>,
    pub(crate) networks: &'a Collection<'s, (), NetworkRules>,
    pub(crate) discovery: &'a Discovery<'s>,
    pub(crate) declared: &'a Collection<'s, DeclaredKey, Service>,
}

/// The workloads, services and policies of node proxies.
#[derive(Clone)]
pub(crate) struct Ambient<'s> {
    /// Services.
    pub(crate) services: Collection<'s, ServiceKey, AmbientService>,
    /// InferencePools as services, if agentgateways send to them. Only these get them.
    pub(crate) pools: Option<Collection<'s, ServiceKey, AmbientService>>,
    /// Workloads by uid; each uid is in only one of the collections.
    pub(crate) workloads: Vec<Collection<'s, Text, AmbientWorkload>>,
    /// Policies by name (`NAMESPACE/NAME`).
    pub(crate) policies: Collection<'s, Text, Resource>,
    /// Waypoints, by their Gateway.
    pub(crate) waypoints: Collection<'s, ObjectKey, Waypoint>,
    /// The network of the cluster, empty if there is only one: one record.
    pub(crate) network: Collection<'s, (), Text>,
    /// With several networks, whether each service is global.
    pub(crate) scopes: Option<Collection<'s, ServiceKey, bool>>,
    /// Conditions of objects that have to be written, unless none are (`AMBIENT_ENABLE_STATUS`).
    pub(crate) condition_updates: Option<Collection<'s, StatusKey, ConditionUpdate>>,
}

/// A workload in the form that node proxies get.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct AmbientWorkload {
    /// The encoded `Address`.
    pub(crate) address: Resource,
    /// The encoded `Workload`: a part of the same bytes.
    pub(crate) workload: Resource,
    /// Its waypoint, and the addresses that the waypoint serves.
    pub(crate) waypoint: Option<(HboneDestination, Vec<IpAddr>)>,
    /// A sidecar accepts its connections.
    pub(crate) has_sidecar: bool,
}

impl From<WorkloadAddress> for AmbientWorkload {
    fn from(made: WorkloadAddress) -> Self {
        Self {
            address: Resource::Encoded(made.address),
            workload: Resource::Encoded(made.workload),
            waypoint: made.waypoint,
            has_sidecar: made.has_sidecar,
        }
    }
}

/// A workload as it is derived from an object.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
enum FoundWorkload {
    /// Node proxies get it.
    Local(AmbientWorkload),
    /// It is in another network: node proxies get the gateway of that network instead.
    Remote(RemoteWorkload),
}

impl From<WorkloadAddress> for FoundWorkload {
    fn from(made: WorkloadAddress) -> Self {
        Self::Local(made.into())
    }
}

/// The networks of clusters.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ClusterNetworks {
    /// The config cluster.
    local: Text,
    /// Clusters with a network; with one network, only the config cluster.
    by_cluster: BTreeMap<Text, Text>,
    none: Text,
}

impl ClusterNetworks {
    /// The network of a cluster, empty if it has none.
    fn of(&self, cluster: &Text) -> &Text {
        self.by_cluster.get(cluster).unwrap_or(&self.none)
    }
}

/// The settings that every workload depends on.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct AmbientSettings {
    trust_domain: Text,
    root_namespace: Text,
    networks: ClusterNetworks,
}

impl AmbientSettings {
    /// The network of the config cluster, empty if there is only one.
    fn network(&self) -> &Text {
        self.networks.of(&self.networks.local)
    }

    /// Whether a network is another one than that of the config cluster.
    fn is_remote(&self, network: &Text) -> bool {
        network != self.network()
    }
}

/// Derives everything of ambient mode.
pub(crate) fn derive_ambient<'s>(
    inputs: &AmbientInputs<'_, 's>,
    switches: AmbientOptions,
    options: &GraphOptions,
) -> Ambient<'s> {
    let settings = derive_settings(inputs, switches, options);
    let networks = settings.map("ambient_networks", |(), settings| settings.networks.clone());
    let network = settings.map("ambient_network", |(), settings| settings.network().clone());
    let known_gateways = match switches.tunnels.multi_network {
        true => inputs.objects.kubernetes_gateways.union_disjoint("ambient_gateways/known", &[inputs.remote_gateways]),
        false => inputs.objects.kubernetes_gateways.clone(),
    };
    let waypoints = Waypoints::new(inputs, &known_gateways, &networks, options);
    let services = services::derive_services(inputs, &networks, &waypoints, switches, options);
    let policies = policies::derive_policies(inputs, &settings, &waypoints, switches);
    let gateways = gateways::derive_gateways(&known_gateways, &settings, options);
    let serves_pools = options.gateway_api.agentgateway && options.gateway_api.inference;
    let pools = serves_pools.then(|| inference_pools::derive_pool_services(inputs, &networks, options));
    let selectable = match &pools {
        Some(pools) => services.local.union("ambient_services/with-pools", &[pools]),
        None => services.local.clone(),
    };
    let selecting = SelectingServices::new(&services, selectable, options);
    let context = WorkloadContext { settings, services: selecting, policies, waypoints, gateways, switches };
    let found = [
        pods::derive_pods(inputs, &context, options),
        entries::derive_workload_entries(inputs, &context, options),
        entries::derive_service_entries(inputs, &context, options),
        slices::derive_slices(inputs, &context, options),
    ];
    let mut workloads: Vec<_> = found.iter().map(sent_workloads).collect();
    workloads.push(context.gateways.workloads.clone());
    // Agentgateways need addresses also without ambient mode, but no conditions.
    let writes_conditions = options.writes_conditions && options.ambient.is_some();
    let condition_updates = writes_conditions
        .then(|| conditions::derive_condition_updates(inputs, &services.local, &context.waypoints, options));
    let services = match &services.remote {
        Some(remote) => {
            let horizon = split_horizon::derive_split_horizon(&context, &found, &services.local, remote, options);
            workloads.push(horizon.workloads);
            horizon.services
        }
        None => services.local,
    };
    let waypoints = context.waypoints.local().clone();
    let multi_network = switches.tunnels.multi_network;
    let scopes = multi_network.then(|| services.map("ambient_services/scopes", |_, service| service.global));
    Ambient {
        services,
        pools,
        workloads,
        policies: context.policies.all,
        waypoints,
        network,
        scopes,
        condition_updates,
    }
}

/// The workloads that node proxies get.
fn sent_workloads<'s>(found: &Collection<'s, Text, FoundWorkload>) -> Collection<'s, Text, AmbientWorkload> {
    let name = found.name().replace("found_workloads/", "ambient_workloads/");
    found.filter_map(&name, |_, workload| match workload {
        FoundWorkload::Local(workload) => Some(workload.clone()),
        FoundWorkload::Remote(_) => None,
    })
}

/// The settings that every workload depends on.
/// Key: none, one record. From: `mesh_config`, `networks`. Changes when: one of the settings does. Size: 1.
/// Rejects: none.
fn derive_settings<'s>(
    inputs: &AmbientInputs<'_, 's>,
    switches: AmbientOptions,
    options: &GraphOptions,
) -> Collection<'s, (), AmbientSettings> {
    let cluster = options.cluster.clone();
    inputs.mesh.join("ambient_settings", inputs.networks, move |(), mesh, networks| {
        let mut by_cluster = networks.by_system_namespace().clone();
        by_cluster.retain(|of, _| switches.tunnels.multi_network || *of == cluster);
        Some(AmbientSettings {
            trust_domain: mesh.trust_domain.clone(),
            root_namespace: mesh.root_namespace.clone(),
            networks: ClusterNetworks { local: cluster.clone(), by_cluster, none: Text::default() },
        })
    })
}

/// The collections that all workloads look up.
struct WorkloadContext<'s> {
    settings: Collection<'s, (), AmbientSettings>,
    services: SelectingServices<'s>,
    policies: AmbientPolicies<'s>,
    waypoints: Waypoints<'s>,
    gateways: RemoteGateways<'s>,
    switches: AmbientOptions,
}

/// The same, inside a `derive`.
struct WorkloadReads {
    settings: Dep<(), AmbientSettings>,
    services: ServiceReads,
    policies: PolicyReads,
    waypoints: WaypointReads,
    gateways: GatewayReads,
    /// Several networks are served.
    multi_network: bool,
}

impl<'s> WorkloadContext<'s> {
    fn read(&self, deps: &mut Deps<'s>) -> WorkloadReads {
        WorkloadReads {
            settings: deps.on(&self.settings),
            services: self.services.read(deps),
            policies: PolicyReads::on(deps, &self.policies),
            waypoints: WaypointReads::on(deps, &self.waypoints),
            gateways: GatewayReads::on(deps, &self.gateways),
            multi_network: self.switches.tunnels.multi_network,
        }
    }
}

/// Services by the labels that they select.
struct SelectingServices<'s> {
    local: Collection<'s, ServiceKey, AmbientService>,
    by_label: Index<'s, LabelKey, ServiceKey, ()>,
    labels: Collection<'s, (), BTreeSet<Text>>,
    /// Services of remote clusters, and their selectors by cluster and namespace: there are few of them.
    remote: Option<RemoteServices<'s>>,
    /// The config cluster.
    cluster: Text,
}

/// Services of remote clusters.
struct RemoteServices<'s> {
    all: Collection<'s, ClusterService, AmbientService>,
    selectors: Index<'s, (Text, Text), ClusterService, Labels>,
}

impl<'s> SelectingServices<'s> {
    fn new(
        services: &ClusterServices<'s>,
        local: Collection<'s, ServiceKey, AmbientService>,
        options: &GraphOptions,
    ) -> Self {
        let by_label = local.index("ambient_services/by-label", |key, service| {
            let selects = !service.selector.is_empty();
            selects.then(|| (selector_key(&key.namespace, &service.selector), ()))
        });
        let labels = first_labels("ambient_services/labels", &by_label.distinct("ambient_services/selectors"));
        let remote = services.remote.as_ref().map(|all| RemoteServices {
            all: all.clone(),
            selectors: all.index("ambient_services/remote-selectors", |key: &ClusterService, service| {
                let scope = || (key.cluster.clone(), key.service.namespace.clone());
                (!service.selector.is_empty()).then(|| (scope(), service.selector.clone()))
            }),
        });
        Self { local, by_label, labels, remote, cluster: options.cluster.clone() }
    }

    fn read(&self, deps: &mut Deps<'s>) -> ServiceReads {
        ServiceReads {
            local: deps.on(&self.local),
            by_label: deps.by(&self.by_label),
            labels: deps.on(&self.labels),
            remote: self
                .remote
                .as_ref()
                .map(|remote| RemoteServiceReads { all: deps.on(&remote.all), selectors: deps.by(&remote.selectors) }),
            cluster: self.cluster.clone(),
        }
    }
}

/// Looks up services, inside a `derive`.
struct ServiceReads {
    local: Dep<ServiceKey, AmbientService>,
    by_label: IndexDep<LabelKey, ServiceKey, ()>,
    labels: Dep<(), BTreeSet<Text>>,
    remote: Option<RemoteServiceReads>,
    cluster: Text,
}

/// Looks up services of remote clusters, inside a `derive`.
struct RemoteServiceReads {
    all: Dep<ClusterService, AmbientService>,
    selectors: IndexDep<(Text, Text), ClusterService, Labels>,
}

impl ServiceReads {
    /// The services of a namespace of a cluster that select these labels.
    fn selecting(
        &self,
        cx: &Context,
        cluster: &Text,
        namespace: &Text,
        labels: &Labels,
    ) -> BTreeMap<ServiceKey, Arc<AmbientService>> {
        let mut found = BTreeMap::new();
        if *cluster != self.cluster {
            let Some(remote) = &self.remote else { return found };
            let selecting = cx.by(&remote.selectors, &(cluster.clone(), namespace.clone())).into_iter();
            for (key, _) in selecting.filter(|(_, selector)| match_labels(selector, labels)) {
                found.extend(cx.get(&remote.all, &key).map(|service| (key.service, service)));
            }
            return found;
        }
        for at in label_keys(cx, &self.labels, namespace, labels) {
            for (key, _) in cx.by(&self.by_label, &at) {
                let service = cx.get(&self.local, &key);
                if let Some(service) = service.filter(|service| match_labels(&service.selector, labels)) {
                    found.insert(key, service);
                }
            }
        }
        found
    }

    /// A service of a cluster.
    fn get(&self, cx: &Context, cluster: &Text, key: &ServiceKey) -> Option<Arc<AmbientService>> {
        if *cluster == self.cluster {
            return cx.get(&self.local, key);
        }
        cx.get(&self.remote.as_ref()?.all, &ClusterService { cluster: cluster.clone(), service: key.clone() })
    }
}

/// A namespace, and the key and value of the first label of a selector.
type LabelKey = (Text, Text, Text);

/// The labels that are first in some selector: only these have to be looked up.
/// Key: none, one record. From: the selectors. Changes when: one begins with a label that none did. Size: 1.
/// Rejects: none.
fn first_labels<'s>(name: &str, selectors: &Collection<'s, LabelKey, ()>) -> Collection<'s, (), BTreeSet<Text>> {
    let by_label = selectors.index(&format!("{name}/by-label"), |(_, label, _), ()| [(label.clone(), ())]);
    let all =
        by_label.distinct(&format!("{name}/each")).index(&format!("{name}/all"), |label, ()| [((), label.clone())]);
    all.group(name, |(), rows| Some(rows.iter().map(|(_, label)| (*label).clone()).collect::<BTreeSet<Text>>()))
}

/// The keys under which selectors of these labels are found.
fn label_keys(cx: &Context, first: &Dep<(), BTreeSet<Text>>, namespace: &Text, labels: &Labels) -> Vec<LabelKey> {
    let Some(first) = cx.get(first, &()) else { return Vec::new() };
    let concerned = labels.iter().filter(|(label, _)| first.contains(*label));
    concerned.map(|(label, value)| (namespace.clone(), label.clone(), value.clone())).collect()
}

/// The key of the namespace that an object is in.
fn namespace_of(key: &ObjectKey) -> ObjectKey {
    ObjectKey::new(key.cluster.clone(), "", key.namespace.clone())
}

/// The labels of the namespace that an object is in.
fn namespace_labels(cx: &Context, namespaces: &Dep<ObjectKey, Namespace>, key: &ObjectKey) -> Labels {
    cx.get(namespaces, &namespace_of(key)).map(|namespace| namespace.labels.clone()).unwrap_or_default()
}
