//! The assignments of a service for a client.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_envoy::cluster::ClusterSettings;
use sluice_envoy::endpoint::{AssignmentInputs, Backend, EndpointClient};
use sluice_envoy::name::{outbound_cluster, sni_cluster, udp_cluster};
use sluice_model::{DestinationRule, NetworkGateway, Protocol, Service, ServiceKey, View};

use super::has_eds;
use crate::traffic::destinations::HostDestinations;

/// A service that a client sends to, as it sees the service from a view.
pub(super) struct ClientService<'a> {
    client: &'a EndpointClient,
    service: Arc<Service>,
    rule: Option<DestinationRule>,
    /// UDP ports with assignments.
    udp_ports: BTreeSet<u16>,
}

impl<'a> ClientService<'a> {
    /// The service of a view at a host; `None` if there is none, or none that the client gets endpoints of.
    pub(super) fn of(destinations: &HostDestinations, view: &View, client: &'a EndpointClient) -> Option<Self> {
        let (service, rule) = destinations.seen_from(view)?;
        let sends = has_eds(&service) && !(client.only_mtls && service.mesh_external);
        sends.then_some(Self { client, service, rule, udp_ports: BTreeSet::new() })
    }

    /// The same with assignments of these UDP ports, unless the client is an AUTO_PASSTHROUGH gateway.
    pub(super) fn with_udp_ports(self, ports: Option<&BTreeSet<u16>>) -> Self {
        let ports = ports.filter(|_| !self.client.only_mtls);
        Self { udp_ports: ports.cloned().unwrap_or_default(), ..self }
    }

    pub(super) fn key(&self) -> ServiceKey {
        self.service.key()
    }

    /// Whether it has a virtual address for the client.
    pub(super) fn has_address(&self) -> bool {
        !self.service.addresses_for(&self.client.cluster).is_empty()
    }

    /// Calls `f` for the assignment of each port and subset, with its name and inputs.
    pub(super) fn each_assignment(
        &self,
        settings: &ClusterSettings,
        backends: &[Backend<'_>],
        gateways: &[NetworkGateway],
        mut f: impl FnMut(String, &AssignmentInputs<'_>),
    ) {
        let Self { client, service, rule, udp_ports } = self;
        let subsets = rule.iter().flat_map(|rule| &rule.subsets).map(|subset| subset.name.as_str());
        let subsets: Vec<&str> = std::iter::once("").chain(subsets).collect();
        for port in &service.ports {
            let is_udp = port.protocol == Protocol::Udp;
            let subsets = match is_udp {
                true if udp_ports.contains(&port.port) => &subsets[..1],
                true => &[],
                false => &subsets[..],
            };
            for subset in subsets {
                let policy = rule.as_ref().and_then(|rule| rule.policy(subset, port.port));
                if !is_udp && policy.is_some_and(|policy| policy.is_passthrough()) {
                    continue;
                }
                let (number, host) = (u32::from(port.port), service.host.as_str());
                let name = match (is_udp, client.only_mtls) {
                    (true, _) => udp_cluster(number, host),
                    (false, true) => sni_cluster(number, subset, host),
                    (false, false) => outbound_cluster(number, subset, host),
                };
                let rule = rule.as_ref();
                let inputs = AssignmentInputs {
                    settings,
                    client,
                    service,
                    port,
                    subset,
                    rule,
                    backends,
                    gateways,
                    by_name: false,
                };
                f(name, &inputs);
            }
        }
    }
}
