//! Workloads that stand for all workloads of a service in another network (A09).

use sluice_model::{AmbientService, HboneAddress};
use sluice_proto::istio::workload::{PortList, TunnelProtocol, Workload, WorkloadType};

use super::service::port;
use super::{WorkloadAddress, gateway, stated_trust_domain, workload_address};
use crate::wire::uint32;

/// Inputs of such a workload.
#[derive(Clone, Copy, Debug)]
pub struct SplitHorizonInputs<'a> {
    /// Unique ID.
    pub uid: &'a str,
    /// Cluster of the gateway.
    pub cluster: &'a str,
    /// The network.
    pub network: &'a str,
    /// The gateway into the network.
    pub gateway: &'a HboneAddress,
    /// Trust domain of the mesh.
    pub trust_domain: &'a str,
    /// The service.
    pub service: &'a AmbientService,
    /// Number of workloads, or the sum of their weights.
    pub capacity: u32,
}

/// The `Address` of the workload: it has no address, and is reached through the gateway with HBONE inside of HBONE.
#[must_use]
pub fn build_split_horizon_workload(inputs: &SplitHorizonInputs<'_>) -> WorkloadAddress {
    let ports = PortList { ports: inputs.service.ports.iter().map(port).collect() };
    let workload = Workload {
        uid: inputs.uid.to_owned(),
        name: inputs.uid.to_owned(),
        namespace: inputs.service.object.namespace.to_string(),
        cluster_id: inputs.cluster.to_owned(),
        network: inputs.network.to_owned(),
        network_gateway: Some(gateway(inputs.gateway)),
        trust_domain: stated_trust_domain(inputs.trust_domain).to_owned(),
        tunnel_protocol: TunnelProtocol::Hbone.into(),
        workload_type: WorkloadType::Pod.into(),
        services: [(inputs.service.resource_name().to_string(), ports)].into(),
        capacity: Some(uint32(inputs.capacity)),
        ..Workload::default()
    };
    workload_address(workload, None)
}
