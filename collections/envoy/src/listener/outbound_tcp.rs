//! TCP and TLS filter chains of outbound listeners: from routes of VirtualServices, or directly to the service (N05).

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_types::pb::envoy::config::listener::v3::Filter;
use sluice_model::{Labels, MESH_GATEWAY, Text, match_labels};

use super::chain::{Action, Chain};
use super::outbound_port::OutboundPort;
use super::service_address::service_address;
use super::tcp_filters::TcpFilterInputs;
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name;
use crate::object_metadata::{ConfigKind, object_metadata};
use crate::stat_name::StatNameValues;

/// All filter chains of a port that is not HTTP.
pub(super) fn tcp_chains(
    settings: &ListenerSettings,
    port: &OutboundPort<'_>,
    bind: &str,
    cidrs: &[Text],
) -> Vec<Chain> {
    if port.listen.protocol.is_tls() {
        tls_chains(settings, port, bind, cidrs)
    } else {
        opaque_chains(settings, port, cidrs)
    }
}

fn tls_chains(settings: &ListenerSettings, port: &OutboundPort<'_>, bind: &str, cidrs: &[Text]) -> Vec<Chain> {
    let mut chains = Vec::new();
    let mut destinations = cidrs.to_vec();
    // Conditions that the proxy evaluates. The second of two equal ones can never match.
    let mut handled: BTreeSet<(&[Text], &[Text])> = BTreeSet::new();
    for (service, route) in port.virtual_services.iter().flat_map(|vs| vs.tls.iter().map(move |route| (vs, route))) {
        if route.route.is_empty() {
            continue;
        }
        for condition in &route.matches {
            let applies = Condition {
                gateways: &condition.gateways,
                port: condition.port,
                labels: &condition.source_labels,
                namespace: &condition.source_namespace,
            };
            if !applies.matches(port) {
                continue;
            }
            if !condition.destination_subnets.is_empty() && port.listen.port > 0 {
                destinations.clone_from(&condition.destination_subnets);
            }
            if handled.insert((&condition.sni_hosts, &condition.destination_subnets)) {
                let filters = filter_inputs(port).for_route(settings, service, &route.route);
                chains.push(Chain {
                    server_names: condition.sni_hosts.clone(),
                    destinations: destinations.clone(),
                    metadata: Some(object_metadata(ConfigKind::VirtualService, &service.namespace, &service.name)),
                    ..Chain::new(Action::Network(filters))
                });
            }
        }
    }
    if chains.is_empty() {
        chains.push(Chain {
            server_names: default_server_names(settings, port, bind, !destinations.is_empty()),
            destinations,
            ..Chain::new(Action::Network(service_filters(settings, port)))
        });
    }
    chains
}

/// The server names that distinguish a service from others at the same address; empty if the address is its own.
fn default_server_names(
    settings: &ListenerSettings,
    port: &OutboundPort<'_>,
    bind: &str,
    by_network: bool,
) -> Vec<Text> {
    let service = port.service;
    let address = service_address(settings, service).filter(|address| !address.contains('/'));
    let wildcard = if settings.ipv4() { "0.0.0.0" } else { "::" };
    let is_cidr = service_address(settings, service).is_some_and(|address| address.contains('/'));
    let at_wildcard = address.is_none() && bind == wildcard;
    if by_network || is_cidr || at_wildcard || service.is_dynamic_dns() {
        vec![service.host.0.clone()]
    } else {
        Vec::new()
    }
}

fn opaque_chains(settings: &ListenerSettings, port: &OutboundPort<'_>, cidrs: &[Text]) -> Vec<Chain> {
    let mut chains = Vec::new();
    let mut cidrs_taken = false;
    for (service, route) in port.virtual_services.iter().flat_map(|vs| vs.tcp.iter().map(move |route| (vs, route))) {
        if route.route.is_empty() {
            continue;
        }
        let chain = |destinations: Vec<Text>, named: bool| Chain {
            destinations,
            metadata: named.then(|| object_metadata(ConfigKind::VirtualService, &service.namespace, &service.name)),
            ..Chain::new(Action::Network(filter_inputs(port).for_route(settings, service, &route.route)))
        };
        if route.matches.is_empty() {
            chains.push(chain(cidrs.to_vec(), true));
            return chains;
        }
        let mut subnets: Vec<Text> = Vec::new();
        for condition in &route.matches {
            let applies = Condition {
                gateways: &condition.gateways,
                port: condition.port,
                labels: &condition.source_labels,
                namespace: &condition.source_namespace,
            };
            if !applies.matches(port) {
                continue;
            }
            // A chain without addresses matches everything, so later chains would never match.
            if condition.destination_subnets.is_empty() || port.listen.port == 0 {
                chains.push(chain(cidrs.to_vec(), true));
                return chains;
            }
            subnets.extend(condition.destination_subnets.iter().cloned());
        }
        if !subnets.is_empty() {
            let same = subnets.iter().collect::<BTreeSet<_>>() == cidrs.iter().collect::<BTreeSet<_>>();
            cidrs_taken |= same;
            chains.push(chain(subnets, false));
        }
    }
    if !cidrs_taken {
        chains.push(Chain {
            destinations: cidrs.to_vec(),
            ..Chain::new(Action::Network(service_filters(settings, port)))
        });
    }
    chains
}

/// The part of a route match that depends on the client and is evaluated here.
struct Condition<'a> {
    gateways: &'a [Text],
    port: u32,
    labels: &'a Labels,
    namespace: &'a Text,
}

impl Condition<'_> {
    fn matches(&self, port: &OutboundPort<'_>) -> bool {
        (self.gateways.is_empty() || self.gateways.iter().any(|gateway| *gateway == *MESH_GATEWAY))
            && (self.port == 0 || self.port == u32::from(port.listen.port))
            && match_labels(self.labels, &port.client.labels)
            && (self.namespace.is_empty() || *self.namespace == port.client.namespace)
    }
}

/// The chain directly to the service.
fn service_filters(settings: &ListenerSettings, port: &OutboundPort<'_>) -> Vec<Filter> {
    let service = port.service;
    // A Sidecar may declare a port that the service does not have. The only port of the service is used then.
    let target = match service.ports.as_slice() {
        [only] => only.port,
        _ => port.listen.port,
    };
    let cluster = name::outbound_cluster(u32::from(target), "", service.host.as_str());
    let pattern = &settings.mesh.outbound_cluster_stat_name;
    let stat_prefix = if pattern.is_empty() {
        cluster.clone()
    } else {
        StatNameValues::outbound(service, "", u32::from(target), "").expand(pattern)
    };
    let resolver =
        service.is_dynamic_dns().then(|| super::dynamic_dns::sni_filter(settings, service, port.listen.port));
    let mut inputs = filter_inputs(port);
    inputs.before_proxy = resolver.as_slice();
    inputs.to_cluster(settings, stat_prefix, cluster, "", port.rule.map(Arc::as_ref))
}

/// Inputs of the network filters of a port.
fn filter_inputs<'a>(port: &OutboundPort<'a>) -> TcpFilterInputs<'a> {
    TcpFilterInputs {
        class: ListenerClass::Outbound,
        protocol: port.listen.protocol,
        port: port.listen.port,
        port_name: &port.listen.name,
        destinations: port.destinations,
        exchanges_metadata: false,
        tunnels: true,
        policies: None,
        before_proxy: &[],
    }
}
