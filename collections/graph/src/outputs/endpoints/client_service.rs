//! The assignments of a service for a client.

use std::sync::Arc;

use sluice_envoy::cluster::ClusterSettings;
use sluice_envoy::endpoint::{AssignmentInputs, Backend, EndpointClient};
use sluice_envoy::name::{outbound_cluster, sni_cluster};
use sluice_model::{DestinationRule, NetworkGateway, Protocol, Service, ServiceKey, View};

use super::has_eds;
use crate::traffic::destinations::HostDestinations;

/// A service that a client sends to, as it sees the service from a view.
pub(super) struct ClientService<'a> {
    client: &'a EndpointClient,
    service: Arc<Service>,
    rule: Option<DestinationRule>,
}

impl<'a> ClientService<'a> {
    /// The service of a view at a host; `None` if there is none, or none that the client gets endpoints of.
    pub(super) fn of(destinations: &HostDestinations, view: &View, client: &'a EndpointClient) -> Option<Self> {
        let (service, rule) = destinations.seen_from(view)?;
        let sends = has_eds(&service) && !(client.only_mtls && service.mesh_external);
        sends.then_some(Self { client, service, rule })
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
        let Self { client, service, rule } = self;
        let subsets = rule.iter().flat_map(|rule| &rule.subsets).map(|subset| subset.name.as_str());
        let subsets: Vec<&str> = std::iter::once("").chain(subsets).collect();
        for port in service.ports.iter().filter(|port| port.protocol != Protocol::Udp) {
            for subset in &subsets {
                let policy = rule.as_ref().and_then(|rule| rule.policy(subset, port.port));
                if policy.is_some_and(|policy| policy.is_passthrough()) {
                    continue;
                }
                let cluster = if client.only_mtls { sni_cluster } else { outbound_cluster };
                let name = cluster(u32::from(port.port), subset, service.host.as_str());
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
