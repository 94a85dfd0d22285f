//! Workloads that are pods.

use std::net::IpAddr;
use std::sync::Arc;

use sluice_engine::Collection;
use sluice_envoy::ztunnel::{WorkloadDetails, WorkloadInputs, build_workload, pod_ports};
use sluice_model::{AmbientService, Pod, ServiceKey, ServiceSource, Text};

use super::split_horizon::RemoteWorkload;
use super::{AmbientInputs, FoundWorkload, WorkloadContext};
use crate::inputs::discovery::is_read;
use crate::options::GraphOptions;
use crate::registry::services::service_host;

/// Workloads of pods that have an address and have not finished. With several networks, also those of remote clusters.
/// Key: uid. From: `pods`, `ambient_services`, `endpoint_slices` (which Services without a selector name the pod),
/// `nodes`, `ambient_policies`, `waypoints`, `ambient_gateways`, `namespaces`, `mesh_config`.
/// Changes when: the pod does, a service or policy that selects it, its waypoint, or the locality of its node.
/// Size: pods. Rejects: none.
pub(super) fn derive_pods<'s>(
    inputs: &AmbientInputs<'_, 's>,
    context: &WorkloadContext<'s>,
    options: &GraphOptions,
) -> Collection<'s, Text, FoundWorkload> {
    // Only the pods in a slice, so that no other edit of the slice recomputes them.
    let slices = inputs.objects.endpoint_slices.index("ambient_pods/slices", |key, slice| {
        let counts = !slice.service.is_empty() && slice.address_type != "FQDN";
        let pods = slice.endpoints.iter().filter(|_| counts).filter_map(|endpoint| endpoint.target_pod.clone());
        let row = |(namespace, pod): (Text, Text)| {
            let pod = sluice_model::ObjectKey::new(key.cluster.clone(), namespace, pod);
            (pod, ServiceName { namespace: key.namespace.clone(), name: slice.service.clone() })
        };
        pods.map(row).collect::<std::collections::BTreeMap<_, _>>()
    });
    let places = inputs.objects.nodes.map("ambient_pods/places", |_, node| node.locality.clone());
    let multi_network = context.switches.tunnels.multi_network;
    let GraphOptions { cluster, domain, entries_select_pods, .. } = options.clone();
    inputs.objects.pods.derive_many("found_workloads/pods", |deps| {
        let reads = context.read(deps);
        let (slices, places, discovery) = (deps.by(&slices), deps.on(&places), deps.on(inputs.discovery));
        move |cx, key, pod: &Pod| {
            let exists = (key.cluster == cluster || multi_network) && is_read(cx, &discovery, key);
            let addresses = pod.ips.iter().map(|address| address.parse::<IpAddr>());
            let addresses: Vec<IpAddr> = addresses.collect::<Result<_, _>>().unwrap_or_default();
            let settings = cx.get(&reads.settings, &());
            let (false, true, false, Some(settings)) = (pod.finished, exists, addresses.is_empty(), settings) else {
                return Vec::new();
            };
            let mut services = reads.services.selecting(cx, &key.cluster, &key.namespace, &pod.labels);
            services.retain(|_, service| entries_select_pods || service.source == ServiceSource::Kubernetes);
            for (_, named) in cx.by(&slices, key) {
                let host = service_host(&named.name, &named.namespace, &domain);
                let service = ServiceKey { namespace: named.namespace.clone(), host };
                if services.keys().any(|known| known.host == service.host) {
                    continue;
                }
                let found = reads.services.get(cx, &key.cluster, &service);
                let found = found.filter(|service| service.source == ServiceSource::Kubernetes);
                services.extend(found.map(|found| (service, found)));
            }
            let network = settings.networks.of(&key.cluster);
            let uid: Text = format!("{}//Pod/{}/{}", key.cluster, key.namespace, key.name).into();
            if multi_network && settings.is_remote(network) {
                let account = (&key.namespace, &pod.service_account);
                let remote = RemoteWorkload::of(&settings, network, account, services.into_keys(), 0);
                return vec![(uid, FoundWorkload::Remote(remote))];
            }
            let through = reads.waypoints.of_workload(cx, key, &pod.labels);
            let namespace = &key.namespace;
            let mut policies = reads.policies.of_workload(cx, &settings.root_namespace, namespace, &pod.labels);
            let all = services.values().map(|service: &Arc<AmbientService>| &**service);
            policies.extend(reads.policies.of_waypoints(cx, &reads.waypoints, through.waypoint.as_ref(), all));
            let node = sluice_model::ObjectKey::new(key.cluster.clone(), "", pod.node.clone());
            let place = if pod.node.is_empty() { None } else { cx.get(&places, &node) };
            let network_gateway = reads.gateways.to(cx, network);
            let made = build_workload(WorkloadInputs {
                uid: &uid,
                name: &pod.name,
                namespace,
                cluster: &key.cluster,
                network,
                network_gateway: network_gateway.as_ref(),
                addresses,
                trust_domain: &settings.trust_domain,
                service_account: &pod.service_account,
                node: &pod.node,
                known: Some(WorkloadDetails {
                    workload_name: &pod.workload_name,
                    labels: &pod.labels,
                    annotations: &pod.annotations,
                }),
                services: services.values().map(|service| (service.resource_name(), pod_ports(service, pod))).collect(),
                policies: &policies,
                unhealthy: !pod.ready || pod.terminating,
                waypoint: through.waypoint.as_ref().and_then(|waypoint| waypoint.address.as_ref()),
                binding: through.binding,
                locality: place.map(|place| (*place).clone()).unwrap_or_default(),
                shared_address: pod.host_network,
                ..WorkloadInputs::default()
            });
            vec![(uid, made.into())]
        }
    })
}

/// A Kubernetes Service.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, serde::Serialize)]
struct ServiceName {
    namespace: Text,
    name: Text,
}
