//! Workloads that ServiceEntries and Services select by label: WorkloadEntries and pods (S09, S12).

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_model::{
    Endpoint, Health, Kind, Labels, Locality, MeshConfig, Node, ObjectKey, ObjectMeta, Pod, Text, TlsMode,
    WorkloadAddress, label,
};

use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::networks::NetworkRules;
use crate::registry::services::spiffe;

const REGISTRATION_GROUP: &str = "istio.io/autoRegistrationGroup";
const LOCALITY_LABELS: [&str; 2] = ["topology.istio.io/locality", label::LOCALITY];

/// The object that declares a workload.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct WorkloadInstanceKey {
    /// `Pod` or `WorkloadEntry`.
    pub(crate) kind: Kind,
    /// The object.
    pub(crate) object: ObjectKey,
}

/// A workload that selectors can select: an endpoint that does not belong to a service yet.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct WorkloadInstance {
    /// All fields but the port and its name.
    pub(crate) endpoint: Endpoint,
    /// Port numbers by name.
    pub(crate) ports: BTreeMap<Text, u32>,
}

/// Workloads that selectors can select, and their indexes.
pub(crate) struct WorkloadInstances<'s> {
    /// By the object that declares them.
    pub(crate) all: Collection<'s, WorkloadInstanceKey, WorkloadInstance>,
    /// WorkloadEntries by address.
    pub(crate) by_address: Index<'s, Text, WorkloadInstanceKey, WorkloadInstance>,
}

/// Workloads that a selector may select: all WorkloadEntries, and the pods of namespaces that have a ServiceEntry with
/// a selector. Other pods are reached only through slices, and there are many.
/// Key: `WorkloadInstanceKey`. From: `workload_entries`, `pods`, `nodes`, `service_entries`, `mesh_config`, `networks`.
/// Changes when: the workload does; for all pods of a namespace, when its first such ServiceEntry is added.
/// Size: WorkloadEntries + pods of those namespaces. Rejects: none.
pub(crate) fn derive_workload_instances<'s>(
    objects: &ObjectCollections<'s>,
    mesh: &Collection<'s, (), MeshConfig>,
    networks: &Collection<'s, (), NetworkRules>,
    options: &GraphOptions,
) -> WorkloadInstances<'s> {
    let trust_domain = trust_domain(mesh);
    let entries = objects.workload_entries.derive_many("workload_instances/entries", |deps| {
        let (trust_domain, networks) = (deps.on(&trust_domain), deps.on(networks));
        move |cx, key, entry| {
            if !entry.healthy {
                return Vec::new();
            }
            let trust_domain = cx.get(&trust_domain, &()).map(|found| (*found).clone()).unwrap_or_default();
            let networks = cx.get(&networks, &()).map(|found| (*found).clone()).unwrap_or_default();
            let name = entry_workload_name(&entry.meta);
            let endpoint = address_endpoint(&entry.workload, key, name, &trust_domain, &networks);
            let instance = WorkloadInstance { endpoint, ports: entry.workload.ports.clone() };
            vec![(WorkloadInstanceKey { kind: Kind::WorkloadEntry, object: key.clone() }, instance)]
        }
    });
    let selecting = objects
        .service_entries
        .index("workload_instances/selecting", |key, entry| {
            entry.workload_selector.as_ref().map(|_| (key.namespace.clone(), ()))
        })
        .distinct("selecting_namespaces");
    let (config_cluster, entries_select_pods) = (options.cluster.clone(), options.entries_select_pods);
    let pods = objects.pods.derive_many("workload_instances/pods", |deps| {
        let (selecting, nodes) = (deps.on(&selecting), deps.on(&objects.nodes));
        let (trust_domain, networks) = (deps.on(&trust_domain), deps.on(networks));
        move |cx, key, pod| {
            let selectable = key.cluster == config_cluster && pod.ready && !pod.is_stopping() && !pod.ips.is_empty();
            if !entries_select_pods || !selectable || cx.get(&selecting, &key.namespace).is_none() {
                return Vec::new();
            }
            let trust_domain = cx.get(&trust_domain, &()).map(|found| (*found).clone()).unwrap_or_default();
            let networks = cx.get(&networks, &()).map(|found| (*found).clone()).unwrap_or_default();
            let node = cx.get(&nodes, &ObjectKey::new(key.cluster.clone(), "", pod.node.clone()));
            let endpoint = pod_endpoint(pod, key, node.as_deref(), &trust_domain, &networks);
            let endpoint = Endpoint { health: Health::Healthy, ..endpoint };
            let tcp = pod.ports.iter().rev().filter(|(name, _, transport)| !name.is_empty() && transport == "TCP");
            let ports = tcp.map(|(name, port, _)| (name.clone(), u32::from(*port))).collect();
            vec![(WorkloadInstanceKey { kind: Kind::Pod, object: key.clone() }, WorkloadInstance { endpoint, ports })]
        }
    });
    let all = entries.union("workload_instances", &[pods]);
    let by_address = all.index("workload_instances/by-address", |key, instance| {
        let address = instance.endpoint.addresses.first().filter(|_| key.kind == Kind::WorkloadEntry);
        address.map(|address| (address.clone(), instance.clone()))
    });
    WorkloadInstances { all, by_address }
}

/// Name of the workload that a WorkloadEntry is a replica of.
pub(crate) fn entry_workload_name(meta: &ObjectMeta) -> &Text {
    let group = meta.annotations.get(REGISTRATION_GROUP);
    group.or_else(|| meta.labels.get(label::WORKLOAD_NAME)).unwrap_or(&meta.name)
}

/// Namespace, label and value by which a selector is found, empty for one without labels; the caller checks the whole
/// selector.
pub(crate) fn selector_key(namespace: &Text, selector: &Labels) -> (Text, Text, Text) {
    let (label, value) = selector.iter().next().map(|(l, v)| (l.clone(), v.clone())).unwrap_or_default();
    (namespace.clone(), label, value)
}

/// The trust domain alone, so that no other change of the mesh config recomputes endpoints.
pub(crate) fn trust_domain<'s>(mesh: &Collection<'s, (), MeshConfig>) -> Collection<'s, (), Text> {
    mesh.map("trust_domain", |(), mesh| mesh.trust_domain.clone())
}

/// The endpoint of a pod, without port.
pub(crate) fn pod_endpoint(
    pod: &Pod,
    key: &ObjectKey,
    node: Option<&Node>,
    trust_domain: &str,
    networks: &NetworkRules,
) -> Endpoint {
    let locality = pod_locality(&pod.labels, node);
    let address = pod.ips.first().map(Text::as_str).unwrap_or_default();
    let network = networks.network(&key.cluster, address, &pod.labels);
    let hostname = match (pod.subdomain.as_str(), pod.hostname.as_str()) {
        ("", _) => Text::default(),
        (_, "") => pod.name.clone(),
        _ => pod.hostname.clone(),
    };
    Endpoint {
        addresses: pod.ips.first().cloned().into_iter().collect(),
        port: 0,
        port_name: Text::default(),
        labels: with_topology(&pod.labels, &key.cluster, &locality, &pod.node, &network),
        locality,
        node: pod.node.clone(),
        cluster: key.cluster.clone(),
        network,
        namespace: pod.namespace.clone(),
        workload_name: pod.workload_name.clone(),
        service_account: spiffe(trust_domain, &pod.namespace, &pod.service_account),
        tls_mode: tls_mode(&pod.labels, false),
        health: Health::Unknown,
        weight: 0,
        hostname,
        subdomain: pod.subdomain.clone(),
        hbone: accepts_hbone(&pod.labels) || label::is_redirected_to_ztunnel(&pod.annotations),
        cluster_local: false,
    }
}

/// The endpoint of a WorkloadEntry or of an address of a ServiceEntry, without port. `key` is the object that declares
/// it.
pub(crate) fn address_endpoint(
    workload: &WorkloadAddress,
    key: &ObjectKey,
    name: &Text,
    trust_domain: &str,
    networks: &NetworkRules,
) -> Endpoint {
    let label = locality_label(&workload.labels);
    let locality = if workload.locality.is_empty() { label } else { Some(Locality::parse(&workload.locality)) };
    let locality = locality.unwrap_or_default();
    let found = networks.network(&key.cluster, &workload.address, &workload.labels);
    let network = if workload.network.is_empty() { found } else { workload.network.clone() };
    let account = &workload.service_account;
    Endpoint {
        addresses: vec![workload.address.clone()],
        port: 0,
        port_name: Text::default(),
        labels: with_topology(&workload.labels, &key.cluster, &locality, "", &network),
        locality,
        node: Text::default(),
        cluster: key.cluster.clone(),
        network: workload.network.clone(),
        namespace: key.namespace.clone(),
        workload_name: name.clone(),
        service_account: match account.as_str() {
            "" => Text::default(),
            account => spiffe(trust_domain, &key.namespace, account),
        },
        tls_mode: tls_mode(&workload.labels, !account.is_empty()),
        health: Health::Unknown,
        weight: workload.weight,
        hostname: Text::default(),
        subdomain: Text::default(),
        hbone: accepts_hbone(&workload.labels),
        cluster_local: false,
    }
}

/// Whether a workload itself accepts HBONE: by its label, or because it is a waypoint.
fn accepts_hbone(labels: &Labels) -> bool {
    label::accepts_http_tunnel(labels)
        || labels.get(label::GATEWAY_MANAGED).is_some_and(|by| *by == *label::MANAGED_BY_MESH_CONTROLLER)
}

/// Whether an endpoint accepts HBONE only because it is a waypoint: metadata is exchanged with it nevertheless.
pub(crate) fn is_waypoint(endpoint: &Endpoint) -> bool {
    accepts_hbone(&endpoint.labels) && !label::accepts_http_tunnel(&endpoint.labels)
}

/// By label; without one, by whether the workload has an identity, which implies a sidecar.
fn tls_mode(labels: &Labels, has_identity: bool) -> TlsMode {
    match labels.get(label::TLS_MODE).map(Text::as_str) {
        Some("istio") => TlsMode::Istio,
        None if has_identity => TlsMode::Istio,
        _ => TlsMode::Disabled,
    }
}

/// The locality in a label.
fn locality_label(labels: &Labels) -> Option<Locality> {
    let text = LOCALITY_LABELS.iter().find_map(|name| labels.get(name)).filter(|text| !text.is_empty())?;
    Some(Locality::parse_label(text))
}

/// A pod's locality: that of its label, else that of its node (S06).
pub(crate) fn pod_locality(labels: &Labels, node: Option<&Node>) -> Locality {
    locality_label(labels).or_else(|| node.map(|node| node.locality.clone())).unwrap_or_default()
}

/// Labels with those of the workload's topology: subsets and failover may select them.
pub(crate) fn with_topology(labels: &Labels, cluster: &str, locality: &Locality, node: &str, network: &str) -> Labels {
    let mut labels = labels.clone();
    let places = [
        (label::REGION, locality.region.as_str()),
        (label::ZONE, &locality.zone),
        (label::SUBZONE, &locality.subzone),
        (label::CLUSTER, cluster),
        (label::HOSTNAME, node),
    ];
    for (name, value) in places.into_iter().filter(|(_, value)| !value.is_empty()) {
        labels.insert(name.into(), value.into());
    }
    if !network.is_empty() && labels.get(label::NETWORK).is_none_or(|own| own.is_empty()) {
        labels.insert(label::NETWORK.into(), network.into());
    }
    labels
}
