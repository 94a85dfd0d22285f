//! Endpoints of `local_cluster`: the replicas of the proxy itself, of which Envoy takes its share for zone-aware routing (X30).

use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::cluster::ClusterSettings;
use sluice_envoy::endpoint::{AssignmentInputs, Backend, EndpointClient, Tier, build_assignment, build_head};
use sluice_envoy::wire;
use sluice_model::{
    Endpoint, Layer, LocalityLb, Proxy, ProxyKey, Resource, ResourceKey, ResourceType, Service, ServiceKey, Text,
    TrafficDistribution, View,
};

use super::EndpointInputs;
use super::lookup::WholeServices;
use crate::content_names::content_hash;
use crate::proxies::targets::ServiceTarget;

/// The name of the cluster in the bootstrap of agents.
const CLUSTER: &str = "local_cluster";
/// Labels that differ between the ReplicaSets of one workload, between which traffic is not balanced evenly.
const TEMPLATE_HASHES: [&str; 2] = ["pod-template-hash", "rollouts-pod-template-hash"];

/// Proxies that are sent the same endpoints of `local_cluster`: the replicas of a workload in a region.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct ReplicaGroup {
    /// The first service that they are part of, and its port. Without one there are no endpoints.
    target: Option<(ServiceKey, u16)>,
    /// Name of the workload.
    workload: Text,
    /// Values of [`TEMPLATE_HASHES`]; empty without the label.
    template_hashes: [Text; 2],
    region: Text,
    client: EndpointClient,
}

impl ReplicaGroup {
    fn of(proxy: &Proxy, target: Option<(&Service, &ServiceTarget)>) -> Self {
        let tier = if target.is_some_and(|(service, _)| service.node_local) { Tier::Node } else { Tier::Cluster };
        Self {
            target: target.map(|(_, target)| (target.service.clone(), target.port.port)),
            workload: proxy.workload_name.clone(),
            template_hashes: TEMPLATE_HASHES.map(|label| proxy.labels.get(label).cloned().unwrap_or_default()),
            region: proxy.locality.region.clone(),
            client: EndpointClient::of(proxy, tier),
        }
    }

    /// Whether an endpoint of the service is one of the replicas.
    fn contains(&self, endpoint: &Endpoint) -> bool {
        let hashes = TEMPLATE_HASHES.iter().zip(&self.template_hashes);
        endpoint.workload_name == self.workload
            && endpoint.locality.region == self.region
            && hashes.into_iter().all(|(label, hash)| endpoint.labels.get(label).unwrap_or(&Text::default()) == hash)
    }

    /// The layer of the assignment, above those of all others.
    pub(crate) fn layer(&self) -> Layer {
        let view = View::Workload(format!("replicas#{}", content_hash(self)).into());
        Layer { view, profile: Text::default() }
    }
}

/// The group of replicas of each proxy that discovers itself (`ENABLE_SELF_DISCOVERY`); others are absent.
/// Key: `ProxyKey`. From: `proxies`, `service_targets`, `services`.
/// Changes when: the first service of the proxy does, or its workload, template, location or network. Size: such proxies.
/// Rejects: none.
pub(crate) fn derive_replica_groups<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    targets: &Collection<'s, ProxyKey, Vec<ServiceTarget>>,
    services: &Collection<'s, ServiceKey, Service>,
) -> Collection<'s, ProxyKey, ReplicaGroup> {
    proxies.derive("replica_groups", |deps| {
        let (targets, services) = (deps.on(targets), deps.on(services));
        move |cx, key, proxy| {
            if !proxy.self_discovery {
                return None;
            }
            let targets = cx.get(&targets, key);
            let first = targets.as_ref().and_then(|targets| targets.first());
            let service = first.and_then(|first| cx.get(&services, &first.service));
            Some(ReplicaGroup::of(proxy, service.as_deref().zip(first)))
        }
    })
}

/// The assignment of `local_cluster` of each group of replicas.
/// Key: layer and name. From: `replica_groups`, `services`, `endpoints`, `endpoint_chunks`, `peer_authentications`,
/// `network_gateways`, `mesh_config`.
/// Changes when: an endpoint of the group is added, removed or changed. Size: groups of replicas. Rejects: none.
pub(super) fn derive_assignments<'s>(inputs: &EndpointInputs<'_, 's>) -> Collection<'s, ResourceKey, Resource> {
    let groups = inputs.replica_groups.index("replica_groups/each", |_, group| [(group.clone(), ())]);
    groups.distinct("replica_groups/distinct").derive_many("replica_groups/assignments", |deps| {
        let endpoints = WholeServices::on(deps, &inputs.endpoints);
        let (settings, services) = (deps.on(inputs.settings), deps.on(inputs.destinations.services));
        let root = deps.on(inputs.root_namespace);
        move |cx, group, ()| {
            let (Some(settings), Some(root)) = (cx.get(&settings, &()), cx.get(&root, &())) else { return Vec::new() };
            // All replicas count: no load balancing prefers some of them.
            let settings = ClusterSettings {
                locality_lb: LocalityLb { enabled: Some(false), ..LocalityLb::default() },
                zone_aware_lb: None,
                ..(*settings).clone()
            };
            let gateways = endpoints.lookup.gateways(cx, false);
            let assignment = group.target.as_ref().and_then(|(key, port)| {
                let service = (*cx.get(&services, key)?).clone();
                let service = Service { traffic_distribution: TrafficDistribution::Any, ..service };
                let port = service.ports.iter().find(|it| it.port == *port)?;
                let list = endpoints.list(cx, key, &root);
                let replicas = list.backends().into_iter().filter(|backend| group.contains(backend.endpoint));
                let backends: Vec<Backend<'_>> = replicas.collect();
                let inputs = AssignmentInputs {
                    settings: &settings,
                    client: &group.client,
                    service: &service,
                    port,
                    subset: "",
                    rule: None,
                    backends: &backends,
                    gateways: &gateways,
                    by_name: false,
                };
                Some(wire::encode(&build_assignment(&inputs, CLUSTER)))
            });
            let assignment = assignment.unwrap_or_else(|| build_head(CLUSTER).into());
            let name = Text::from(CLUSTER);
            let key = ResourceKey { resource_type: ResourceType::Endpoint, layer: group.layer(), name };
            vec![(key, Resource::Encoded(assignment))]
        }
    })
}
