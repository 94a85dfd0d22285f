//! Workloads (A01, A02).

use std::collections::BTreeMap;
use std::net::IpAddr;

use sluice_model::{HboneAddress, InboundBinding, Labels, Locality, Text};
use sluice_proto::istio::workload::application_tunnel::Protocol;
use sluice_proto::istio::workload::{
    ApplicationTunnel, Locality as Place, NetworkMode, Port, PortList, TunnelProtocol, Workload, WorkloadStatus,
    WorkloadType,
};

use super::{PortPair, WorkloadAddress, gateway, octets, workload_address};
use crate::endpoint::canonical_service;
use crate::wire::uint32;

/// Annotation of pods whose traffic the node's proxy takes.
const REDIRECTION: &str = "ambient.istio.io/redirection";
/// Label with the tunnels a workload takes itself.
const TUNNEL: &str = "networking.istio.io/tunnel";

/// Trust domain that is not worth its bytes.
const DEFAULT_TRUST_DOMAIN: &str = "cluster.local";

/// What a workload is made of. What nothing says is empty.
#[derive(Clone, Debug, Default)]
pub struct WorkloadInputs<'a> {
    /// What it is known by.
    pub uid: &'a str,
    /// Name of the declaring object.
    pub name: &'a str,
    /// Namespace of it.
    pub namespace: &'a str,
    /// Cluster of it.
    pub cluster: &'a str,
    /// Network it is on, empty if there is only one.
    pub network: &'a str,
    /// How other networks reach it.
    pub network_gateway: Option<&'a HboneAddress>,
    /// Its addresses, the primary first.
    pub addresses: Vec<IpAddr>,
    /// Its host name, if it is known by one instead.
    pub hostname: &'a str,
    /// Trust domain of the mesh.
    pub trust_domain: &'a str,
    /// Its service account.
    pub service_account: &'a str,
    /// The node it runs on.
    pub node: &'a str,
    /// What it is part of; `None` if nothing is known but its addresses.
    pub known: Option<KnownWorkload<'a>>,
    /// Ports by service (`NAMESPACE/HOST`).
    pub services: BTreeMap<Text, Vec<PortPair>>,
    /// Policies for it (`NAMESPACE/NAME`), in order.
    pub policies: &'a [Text],
    /// It is not ready.
    pub unhealthy: bool,
    /// The waypoint it is reached through.
    pub waypoint: Option<&'a HboneAddress>,
    /// How it is handed connections.
    pub binding: Option<InboundBinding>,
    /// Where it runs.
    pub locality: Locality,
    /// Its addresses are those of its node, or may be anybody's.
    pub shared_address: bool,
    /// Share of the traffic relative to others, 0 if unset.
    pub weight: u32,
}

/// What is known of a workload that some object describes.
#[derive(Clone, Copy, Debug)]
pub struct KnownWorkload<'a> {
    /// Name of what controls it.
    pub workload_name: &'a str,
    /// Its labels.
    pub labels: &'a Labels,
    /// Its annotations.
    pub annotations: &'a Labels,
}

/// The `Address` of a workload.
#[must_use]
pub fn build_workload(inputs: WorkloadInputs<'_>) -> WorkloadAddress {
    let trust_domain = if inputs.trust_domain == DEFAULT_TRUST_DOMAIN { "" } else { inputs.trust_domain };
    let ports = |pairs: Vec<PortPair>| {
        let port = |(service_port, target_port)| Port { service_port, target_port, app_protocol: 0 };
        PortList { ports: pairs.into_iter().map(port).collect() }
    };
    let mut workload = Workload {
        uid: inputs.uid.to_owned(),
        name: inputs.name.to_owned(),
        namespace: inputs.namespace.to_owned(),
        cluster_id: inputs.cluster.to_owned(),
        network: inputs.network.to_owned(),
        network_gateway: inputs.network_gateway.map(gateway),
        addresses: inputs.addresses.into_iter().map(octets).collect(),
        hostname: inputs.hostname.to_owned(),
        trust_domain: trust_domain.to_owned(),
        service_account: inputs.service_account.to_owned(),
        node: inputs.node.to_owned(),
        services: inputs.services.into_iter().map(|(name, pairs)| (name.to_string(), ports(pairs))).collect(),
        authorization_policies: inputs.policies.iter().map(ToString::to_string).collect(),
        status: if inputs.unhealthy { WorkloadStatus::Unhealthy } else { WorkloadStatus::Healthy }.into(),
        waypoint: inputs.waypoint.map(gateway),
        application_tunnel: inputs.binding.map(tunnel),
        locality: (!inputs.locality.is_empty()).then(|| Place {
            region: inputs.locality.region.to_string(),
            zone: inputs.locality.zone.to_string(),
            subzone: inputs.locality.subzone.to_string(),
        }),
        network_mode: if inputs.shared_address { NetworkMode::HostNetwork } else { NetworkMode::Standard }.into(),
        capacity: (inputs.weight > 0).then(|| uint32(inputs.weight)),
        ..Workload::default()
    };
    if let Some(known) = inputs.known {
        let (name, revision) = canonical_service(known.labels, known.workload_name);
        workload.workload_name = known.workload_name.to_owned();
        // Whatever it is: clients that tell kinds apart have never been told another.
        workload.workload_type = WorkloadType::Pod.into();
        workload.canonical_name = name.to_owned();
        workload.canonical_revision = revision.to_owned();
        workload.native_tunnel =
            known.labels.get(TUNNEL).is_some_and(|tunnels| tunnels.split(',').any(|tunnel| tunnel == "http"));
        let captured = known.annotations.get(REDIRECTION).is_some_and(|word| *word == *"enabled");
        if workload.native_tunnel || captured {
            workload.tunnel_protocol = TunnelProtocol::Hbone.into();
        }
    }
    workload_address(workload)
}

fn tunnel(binding: InboundBinding) -> ApplicationTunnel {
    let protocol = if binding.proxy_protocol { Protocol::Proxy } else { Protocol::None };
    ApplicationTunnel { protocol: protocol.into(), port: binding.port }
}
