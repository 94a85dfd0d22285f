//! Workloads (A01, A02).

use std::collections::BTreeMap;
use std::net::IpAddr;

use sluice_model::{HboneAddress, InboundBinding, Labels, Locality, Text, label};
use sluice_proto::istio::workload::application_tunnel::Protocol;
use sluice_proto::istio::workload::{
    ApplicationTunnel, Locality as WorkloadLocality, NetworkMode, Port, PortList, TunnelProtocol, Workload,
    WorkloadStatus, WorkloadType,
};

use super::{PortPair, WorkloadAddress, gateway, octets, stated_trust_domain, workload_address};
use crate::endpoint::canonical_service;
use crate::wire::uint32;

/// Inputs of a workload. Unknown fields are empty.
#[derive(Clone, Debug, Default)]
pub struct WorkloadInputs<'a> {
    /// Unique ID.
    pub uid: &'a str,
    /// Name of the declaring object.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its cluster.
    pub cluster: &'a str,
    /// Its network; empty if there is only one.
    pub network: &'a str,
    /// Gateway by which other networks reach it.
    pub network_gateway: Option<&'a HboneAddress>,
    /// Its addresses, the primary first.
    pub addresses: Vec<IpAddr>,
    /// Its host name, if it has no address.
    pub hostname: &'a str,
    /// Trust domain of the mesh.
    pub trust_domain: &'a str,
    /// Its service account.
    pub service_account: &'a str,
    /// The node it runs on.
    pub node: &'a str,
    /// Details of its object; `None` if only its addresses are known.
    pub known: Option<WorkloadDetails<'a>>,
    /// Ports by service (`NAMESPACE/HOST`).
    pub services: BTreeMap<Text, Vec<PortPair>>,
    /// Policies that apply (`NAMESPACE/NAME`), in order.
    pub policies: &'a [Text],
    /// Whether it is not ready.
    pub unhealthy: bool,
    /// Its waypoint.
    pub waypoint: Option<&'a HboneAddress>,
    /// Application tunnel: how it accepts connections.
    pub binding: Option<InboundBinding>,
    /// Its locality.
    pub locality: Locality,
    /// Whether it uses the host network, so its address is not unique.
    pub shared_address: bool,
    /// Relative weight; 0 if unset.
    pub weight: u32,
}

/// Details of a workload with an object of its own.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadDetails<'a> {
    /// Name of its controller.
    pub workload_name: &'a str,
    /// Its labels.
    pub labels: &'a Labels,
    /// Its annotations.
    pub annotations: &'a Labels,
}

/// The `Address` of a workload.
#[must_use]
pub fn build_workload(inputs: WorkloadInputs<'_>) -> WorkloadAddress {
    let ports = |pairs: Vec<PortPair>| {
        let port = |(service_port, target_port)| Port { service_port, target_port, app_protocol: 0 };
        PortList { ports: pairs.into_iter().map(port).collect() }
    };
    let waypoint = inputs.waypoint.map(|waypoint| (waypoint.destination.clone(), inputs.addresses.clone()));
    let mut workload = Workload {
        uid: inputs.uid.to_owned(),
        name: inputs.name.to_owned(),
        namespace: inputs.namespace.to_owned(),
        cluster_id: inputs.cluster.to_owned(),
        network: inputs.network.to_owned(),
        network_gateway: inputs.network_gateway.map(gateway),
        addresses: inputs.addresses.into_iter().map(octets).collect(),
        hostname: inputs.hostname.to_owned(),
        trust_domain: stated_trust_domain(inputs.trust_domain).to_owned(),
        service_account: inputs.service_account.to_owned(),
        node: inputs.node.to_owned(),
        services: inputs.services.into_iter().map(|(name, pairs)| (name.to_string(), ports(pairs))).collect(),
        authorization_policies: inputs.policies.iter().map(ToString::to_string).collect(),
        status: if inputs.unhealthy { WorkloadStatus::Unhealthy } else { WorkloadStatus::Healthy }.into(),
        waypoint: inputs.waypoint.map(gateway),
        application_tunnel: inputs.binding.map(tunnel),
        locality: (!inputs.locality.is_empty()).then(|| WorkloadLocality {
            region: inputs.locality.region.to_string(),
            zone: inputs.locality.zone.to_string(),
            subzone: inputs.locality.subzone.to_string(),
        }),
        network_mode: if inputs.shared_address { NetworkMode::HostNetwork } else { NetworkMode::Standard }.into(),
        capacity: (inputs.weight > 0).then(|| uint32(inputs.weight)),
        ..Workload::default()
    };
    let mut has_sidecar = false;
    if let Some(known) = inputs.known {
        let (name, revision) = canonical_service(known.labels, known.workload_name);
        workload.workload_name = known.workload_name.to_owned();
        // The same for all kinds of workloads: ztunnel does not depend on the kind.
        workload.workload_type = WorkloadType::Pod.into();
        workload.canonical_name = name.to_owned();
        workload.canonical_revision = revision.to_owned();
        workload.native_tunnel = label::accepts_http_tunnel(known.labels);
        if workload.native_tunnel || label::is_redirected_to_ztunnel(known.annotations) {
            workload.tunnel_protocol = TunnelProtocol::Hbone.into();
        } else {
            has_sidecar = known.labels.get(label::TLS_MODE).is_some_and(|mode| *mode == *"istio");
        }
    }
    WorkloadAddress { has_sidecar, ..workload_address(workload, waypoint) }
}

fn tunnel(binding: InboundBinding) -> ApplicationTunnel {
    let protocol = if binding.proxy_protocol { Protocol::Proxy } else { Protocol::None };
    ApplicationTunnel { protocol: protocol.into(), port: binding.port }
}
