//! Target ports of workloads.

use std::collections::BTreeMap;

use sluice_model::{AmbientPort, AmbientService, EndpointSlice, Pod, ServiceSource, Text};

/// A service port and the target port of the workload.
pub type PortPair = (u32, u32);

/// Ports of a pod. A target name for which the pod has no TCP port is left out; ports of a ServiceEntry refer to the port
/// names of the pod.
#[must_use]
pub fn pod_ports(service: &AmbientService, pod: &Pod) -> Vec<PortPair> {
    let named = |name: &Text| {
        let mut ports = pod.ports.iter();
        ports.find(|(own, _, transport)| own == name && transport == "TCP").map(|(_, number, _)| u32::from(*number))
    };
    let target = |port: &AmbientPort| match (port.target_name.is_empty(), service.source) {
        (false, _) => named(&port.target_name),
        (true, ServiceSource::ServiceEntry) if !port.name.is_empty() => Some(named(&port.name).unwrap_or(port.target)),
        (true, _) => Some(port.target),
    };
    pairs(service, target)
}

/// Ports of a WorkloadEntry or of an endpoint in a ServiceEntry, which maps port names to numbers.
#[must_use]
pub fn entry_ports(service: &AmbientService, ports: &BTreeMap<Text, u32>) -> Vec<PortPair> {
    let target = |port: &AmbientPort| match port.target_name.is_empty() {
        false => ports.get(&port.target_name).copied(),
        true => Some(ports.get(&port.name).copied().unwrap_or(port.target)),
    };
    pairs(service, target)
}

fn pairs(service: &AmbientService, target: impl Fn(&AmbientPort) -> Option<u32>) -> Vec<PortPair> {
    service.ports.iter().filter_map(|port| Some((port.port, target(port)?))).collect()
}

/// Ports of the addresses of an EndpointSlice, whose TCP ports have the names of the service's ports.
#[must_use]
pub fn slice_ports(service: &AmbientService, slice: &EndpointSlice) -> Vec<PortPair> {
    let ports = slice.ports.iter().filter(|port| port.port > 0 && port.transport == "TCP");
    let service_port = |name: &Text| service.ports.iter().find(|port| port.name == *name);
    ports.filter_map(|port| Some((service_port(&port.name)?.port, u32::from(port.port)))).collect()
}
