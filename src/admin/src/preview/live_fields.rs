//! Fields that the API server and controllers set: an object that is applied without them keeps those of the live object.

use sluice_engine::InputsSnapshot;
use sluice_graph::Inputs;
use sluice_model::{KubernetesService, Object, ObjectKey, Pod, ServiceType};

/// Copies the fields that the object does not state from the live object.
pub(super) fn keep_live_fields(
    object: &mut Object,
    has_status: bool,
    key: &ObjectKey,
    live: &InputsSnapshot,
    inputs: &Inputs,
) {
    match object {
        Object::Service(service) => {
            if let Some(live) = live.get(&inputs.kubernetes_services, key) {
                keep_service(service, has_status, live);
            }
        }
        Object::ServiceEntry(entry) if !has_status => {
            if let Some(live) = live.get(&inputs.service_entries, key) {
                entry.allocated_addresses.clone_from(&live.allocated_addresses);
                entry.conditions.clone_from(&live.conditions);
            }
        }
        Object::WorkloadEntry(entry) if !has_status => {
            if let Some(live) = live.get(&inputs.workload_entries, key) {
                entry.healthy = live.healthy;
                entry.conditions.clone_from(&live.conditions);
            }
        }
        Object::Pod(pod) => {
            if let Some(live) = live.get(&inputs.pods, key) {
                keep_pod(pod, has_status, live);
            }
        }
        Object::Node(node) if !has_status => {
            if let Some(live) = live.get(&inputs.nodes, key) {
                node.addresses.clone_from(&live.addresses);
                node.kubelet_version.clone_from(&live.kubelet_version);
            }
        }
        _ => {}
    }
}

fn keep_service(service: &mut KubernetesService, has_status: bool, live: &KubernetesService) {
    if service.cluster_ips.is_empty() && !service.headless && service.service_type != ServiceType::ExternalName {
        service.cluster_ips.clone_from(&live.cluster_ips);
        service.ip_families = service.ip_families.or(live.ip_families);
    }
    if !has_status {
        service.conditions.clone_from(&live.conditions);
    }
    if !has_status && service.service_type == ServiceType::LoadBalancer {
        service.load_balancer.clone_from(&live.load_balancer);
    }
    if matches!(service.service_type, ServiceType::NodePort | ServiceType::LoadBalancer) {
        for port in service.ports.iter_mut().filter(|port| port.node_port == 0) {
            let same = live.ports.iter().find(|live| (live.port, &live.transport) == (port.port, &port.transport));
            port.node_port = same.map_or(0, |live| live.node_port);
        }
    }
}

fn keep_pod(pod: &mut Pod, has_status: bool, live: &Pod) {
    if pod.node.is_empty() {
        pod.node.clone_from(&live.node);
    }
    if pod.uid.is_empty() {
        pod.uid.clone_from(&live.uid);
    }
    if pod.workload_kind == "Pod" || pod.workload_kind.is_empty() {
        // The owner is in the metadata of the live object only.
        pod.workload_name.clone_from(&live.workload_name);
        pod.workload_kind.clone_from(&live.workload_kind);
    }
    if !has_status {
        pod.ips.clone_from(&live.ips);
        (pod.ready, pod.running, pod.finished, pod.terminating) =
            (live.ready, live.running, live.finished, live.terminating);
    }
}

#[cfg(test)]
mod tests {
    use sluice_model::KubernetesServicePort;

    use super::*;

    #[test]
    fn service_keeps_the_addresses_and_node_ports_that_were_assigned() {
        let port = |port, node_port| KubernetesServicePort { port, node_port, ..KubernetesServicePort::default() };
        let live = KubernetesService {
            service_type: ServiceType::LoadBalancer,
            cluster_ips: vec!["10.0.0.1".into()],
            load_balancer: vec!["192.0.2.1".into()],
            ports: vec![port(80, 30_080), port(81, 30_081)],
            ..KubernetesService::default()
        };
        let mut applied = KubernetesService {
            service_type: ServiceType::LoadBalancer,
            ports: vec![port(80, 0), port(82, 0)],
            ..KubernetesService::default()
        };
        keep_service(&mut applied, false, &live);
        assert_eq!((&applied.cluster_ips, &applied.load_balancer), (&live.cluster_ips, &live.load_balancer));
        assert_eq!(applied.ports, [port(80, 30_080), port(82, 0)]);

        let mut headless = KubernetesService { headless: true, ..KubernetesService::default() };
        keep_service(&mut headless, true, &live);
        assert!(headless.cluster_ips.is_empty() && headless.load_balancer.is_empty());
    }

    #[test]
    fn pod_keeps_its_status_and_node() {
        let live = Pod { ips: vec!["10.1.0.1".into()], ready: true, node: "n1".into(), ..Pod::default() };
        let mut applied = Pod { labels: [("a".into(), "b".into())].into(), ..Pod::default() };
        keep_pod(&mut applied, false, &live);
        assert_eq!((&applied.ips, applied.ready, applied.node.as_str()), (&live.ips, true, "n1"));
        let mut stated = Pod { ips: vec!["10.1.0.2".into()], ..Pod::default() };
        keep_pod(&mut stated, true, &live);
        assert_eq!((stated.ips[0].as_str(), stated.ready), ("10.1.0.2", false));
    }
}
