//! TCP and TLS chains of outbound listeners: the routes of VirtualServices, else straight to the service (N05).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::config::listener::v3::Filter;
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::{
    TcpProxy,
    tcp_proxy::{ClusterSpecifier, TunnelingConfig, WeightedCluster, weighted_cluster::ClusterWeight},
};
use envoy_types::pb::envoy::r#type::v3::{HashPolicy, hash_policy};
use sluice_model::{
    Destination, DestinationRule, HashKey, Host, Labels, MESH_GATEWAY, Resolution, RouteDestination, Service,
    ServiceSource, Text, VirtualService, match_labels,
};

use super::chain::{Action, Chain, config_metadata};
use super::outbound::OutboundPort;
use super::settings::Settings;
use crate::filter::{Class, protocol_filters, tcp_access_logs, tcp_stats};
use crate::name;
use crate::wire::duration;

/// What a route needs to know of a destination.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, serde::Serialize)]
pub struct DestinationFacts {
    /// The service, if the client sees one of that host.
    pub service: Option<Arc<Service>>,
    /// The rule for it, as the client sees it.
    pub rule: Option<Arc<DestinationRule>>,
}

/// Destinations by host.
pub type Destinations = BTreeMap<Host, DestinationFacts>;

/// Who the client is, as far as a route's conditions ask.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, serde::Serialize)]
pub struct Client {
    /// Its namespace.
    pub namespace: Text,
    /// Its labels.
    pub labels: Labels,
}

/// Kind of the object in a chain's metadata.
const KIND: &str = "networking.istio.io/v1/virtual-service";

/// All chains of a port that is not HTTP.
pub(super) fn tcp_chains(settings: &Settings, port: &OutboundPort<'_>, bind: &str, cidrs: &[Text]) -> Vec<Chain> {
    if port.listen.protocol.is_tls() {
        tls_chains(settings, port, bind, cidrs)
    } else {
        opaque_chains(settings, port, cidrs)
    }
}

fn tls_chains(settings: &Settings, port: &OutboundPort<'_>, bind: &str, cidrs: &[Text]) -> Vec<Chain> {
    let mut chains = Vec::new();
    let mut destinations = cidrs.to_vec();
    // Conditions the proxy evaluates; of two with the same ones the second could never match.
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
            if !applies.holds(port) {
                continue;
            }
            if !condition.destination_subnets.is_empty() && port.listen.port > 0 {
                destinations.clone_from(&condition.destination_subnets);
            }
            if handled.insert((&condition.sni_hosts, &condition.destination_subnets)) {
                let filters = route_filters(settings, port, service, &route.route);
                chains.push(Chain {
                    server_names: condition.sni_hosts.clone(),
                    destinations: destinations.clone(),
                    metadata: Some(config_metadata(KIND, &service.namespace, &service.name)),
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

/// The server names that tell a service from others at the same address; none where the address is its own.
fn default_server_names(settings: &Settings, port: &OutboundPort<'_>, bind: &str, by_network: bool) -> Vec<Text> {
    let service = port.service;
    let address = service_address(settings, service).filter(|address| !address.contains('/'));
    let wildcard = if settings.ipv4() { "0.0.0.0" } else { "::" };
    let is_cidr = service_address(settings, service).is_some_and(|address| address.contains('/'));
    let at_wildcard = address.is_none() && bind == wildcard;
    if by_network || is_cidr || at_wildcard || is_dynamic_dns(service) {
        vec![service.host.0.clone()]
    } else {
        Vec::new()
    }
}

pub(super) fn is_dynamic_dns(service: &Service) -> bool {
    service.host.is_wildcard() && service.resolution == Resolution::DynamicDns
}

fn opaque_chains(settings: &Settings, port: &OutboundPort<'_>, cidrs: &[Text]) -> Vec<Chain> {
    let mut chains = Vec::new();
    let mut cidrs_taken = false;
    for (service, route) in port.virtual_services.iter().flat_map(|vs| vs.tcp.iter().map(move |route| (vs, route))) {
        if route.route.is_empty() {
            continue;
        }
        let chain = |destinations: Vec<Text>, named: bool| Chain {
            destinations,
            metadata: named.then(|| config_metadata(KIND, &service.namespace, &service.name)),
            ..Chain::new(Action::Network(route_filters(settings, port, service, &route.route)))
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
            if !applies.holds(port) {
                continue;
            }
            // Without addresses to tell it by, nothing after this can match.
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

/// The part of a route's condition that is decided here and not by the proxy.
struct Condition<'a> {
    gateways: &'a [Text],
    port: u32,
    labels: &'a Labels,
    namespace: &'a Text,
}

impl Condition<'_> {
    fn holds(&self, port: &OutboundPort<'_>) -> bool {
        (self.gateways.is_empty() || self.gateways.iter().any(|gateway| *gateway == *MESH_GATEWAY))
            && (self.port == 0 || self.port == u32::from(port.listen.port))
            && match_labels(self.labels, &port.client.labels)
            && (self.namespace.is_empty() || *self.namespace == port.client.namespace)
    }
}

/// Straight to the service.
fn service_filters(settings: &Settings, port: &OutboundPort<'_>) -> Vec<Filter> {
    let service = port.service;
    // A Sidecar may listen on a port the service does not have; with one port only there is no doubt which is meant.
    let target = match service.ports.as_slice() {
        [only] => only.port,
        _ => port.listen.port,
    };
    let cluster = name::outbound_cluster(u32::from(target), "", service.host.as_str());
    let pattern = &settings.mesh.outbound_cluster_stat_name;
    let stat_prefix = if pattern.is_empty() {
        cluster.clone()
    } else {
        stat_name(pattern, service.host.as_str(), "", u32::from(target), "", Some(service))
    };
    let mut extra = Vec::new();
    if is_dynamic_dns(service) {
        extra.push(super::dynamic_dns::sni_filter(settings, service, port.listen.port));
    }
    single(settings, port, stat_prefix, cluster, "", port.rule.map(Arc::as_ref), extra)
}

/// Along the route of a VirtualService.
fn route_filters(
    settings: &Settings,
    port: &OutboundPort<'_>,
    virtual_service: &VirtualService,
    route: &[RouteDestination],
) -> Vec<Filter> {
    let facts = |host: &Host| port.destinations.get(host);
    let cluster_of = |destination: &Destination| {
        let service = facts(&destination.host).and_then(|facts| facts.service.as_deref());
        destination_cluster(destination, service, port.listen.port)
    };
    let Some(first) = route.first().map(|route| &route.destination) else { return Vec::new() };
    let first_service = facts(&first.host).and_then(|facts| facts.service.as_deref());
    // Only the rule of a service the client sees counts.
    let rule = first_service.and_then(|_| facts(&first.host).and_then(|facts| facts.rule.as_deref()));
    if let [only] = route {
        let cluster = cluster_of(&only.destination);
        let pattern = &settings.mesh.outbound_cluster_stat_name;
        let stat_prefix = match first_service {
            Some(service) if !pattern.is_empty() => stat_name(
                pattern,
                first.host.as_str(),
                &first.subset,
                u32::from(port.listen.port),
                &port.listen.name,
                Some(service),
            ),
            _ => cluster.clone(),
        };
        return single(settings, port, stat_prefix, cluster, &first.subset, rule, Vec::new());
    }
    let stat_prefix = format!("{}.{}", virtual_service.name, virtual_service.namespace);
    let clusters: Vec<ClusterWeight> = route
        .iter()
        .filter_map(|route| {
            let weight = u32::try_from(route.weight).ok().filter(|weight| *weight > 0)?;
            Some(ClusterWeight { name: cluster_of(&route.destination), weight, ..ClusterWeight::default() })
        })
        .collect();
    let specifier = ClusterSpecifier::WeightedClusters(WeightedCluster { clusters });
    let proxy = proxy(settings, stat_prefix.clone(), specifier, "", rule);
    complete(settings, port, &stat_prefix, &proxy, Vec::new())
}

fn single(
    settings: &Settings,
    port: &OutboundPort<'_>,
    stat_prefix: String,
    cluster: String,
    subset: &str,
    rule: Option<&DestinationRule>,
    extra: Vec<Filter>,
) -> Vec<Filter> {
    let proxy = proxy(settings, stat_prefix.clone(), ClusterSpecifier::Cluster(cluster), subset, rule);
    complete(settings, port, &stat_prefix, &proxy, extra)
}

fn complete(
    settings: &Settings,
    port: &OutboundPort<'_>,
    stat_prefix: &str,
    proxy: &TcpProxy,
    extra: Vec<Filter>,
) -> Vec<Filter> {
    let mut filters = tcp_stats(settings, Class::Outbound);
    filters.extend(extra);
    filters.extend(protocol_filters(port.listen.protocol, stat_prefix, proxy));
    filters
}

fn proxy(
    settings: &Settings,
    stat_prefix: String,
    specifier: ClusterSpecifier,
    subset: &str,
    rule: Option<&DestinationRule>,
) -> TcpProxy {
    let tcp = rule.and_then(|rule| rule.traffic_policy.as_ref()?.connection_pool.as_ref()?.tcp.as_ref());
    TcpProxy {
        stat_prefix,
        cluster_specifier: Some(specifier),
        idle_timeout: tcp.and_then(|tcp| tcp.idle_timeout).or(settings.facts.idle_timeout).map(duration),
        max_downstream_connection_duration: tcp.and_then(|tcp| tcp.max_connection_duration).map(duration),
        hash_policy: if hashes_by_source(rule, subset) { vec![source_hash()] } else { Vec::new() },
        tunneling_config: rule.and_then(|rule| tunnel(rule, subset)),
        access_log: tcp_access_logs(settings, Class::Outbound),
        ..TcpProxy::default()
    }
}

/// Whether connections of one client address are kept together.
fn hashes_by_source(rule: Option<&DestinationRule>, subset: &str) -> bool {
    let Some(rule) = rule else { return false };
    let by_source = |policy: Option<&sluice_model::TrafficPolicy>| {
        let balancer = policy.and_then(|policy| policy.load_balancer.as_ref())?;
        let hash = balancer.consistent_hash.as_ref();
        Some(hash.is_some_and(|hash| hash.key == Some(HashKey::SourceIp(true))))
    };
    let of_rule = by_source(rule.traffic_policy.as_ref()).unwrap_or(false);
    let of_subset = rule.subset(subset).and_then(|subset| by_source(subset.traffic_policy.as_ref()));
    of_subset.unwrap_or(of_rule)
}

fn source_hash() -> HashPolicy {
    let source = hash_policy::SourceIp::default();
    HashPolicy { policy_specifier: Some(hash_policy::PolicySpecifier::SourceIp(source)) }
}

fn tunnel(rule: &DestinationRule, subset: &str) -> Option<TunnelingConfig> {
    let policy = if subset.is_empty() {
        rule.traffic_policy.as_ref()
    } else {
        rule.subset(subset).and_then(|subset| subset.traffic_policy.as_ref())
    };
    let tunnel = policy?.tunnel.as_ref()?;
    let host = &tunnel.target_host;
    let hostname = if host.contains(':') {
        format!("[{host}]:{}", tunnel.target_port)
    } else {
        format!("{host}:{}", tunnel.target_port)
    };
    Some(TunnelingConfig { hostname, use_post: tunnel.protocol == *"POST", ..TunnelingConfig::default() })
}

/// The cluster a destination means: its port, else the only port of its service, else the port listened on.
pub(crate) fn destination_cluster(destination: &Destination, service: Option<&Service>, listen_port: u16) -> String {
    let port = destination.port.unwrap_or_else(|| match service.map(|service| service.ports.as_slice()) {
        Some([only]) => u32::from(only.port),
        _ => u32::from(listen_port),
    });
    name::outbound_cluster(port, &destination.subset, destination.host.as_str())
}

/// A statistics name by the mesh's pattern.
pub(crate) fn stat_name(
    pattern: &str,
    host: &str,
    subset: &str,
    port: u32,
    port_name: &str,
    service: Option<&Service>,
) -> String {
    let kubernetes = service.filter(|service| service.source == ServiceSource::Kubernetes);
    let short = kubernetes.map_or_else(|| host.to_owned(), |s| format!("{}.{}", s.name, s.namespace));
    let own = kubernetes.map_or(host, |service| service.name.as_str());
    pattern
        .replace("%SERVICE%", &short)
        .replace("%SERVICE_NAME%", own)
        .replace("%SERVICE_FQDN%", host)
        .replace("%SUBSET_NAME%", subset)
        .replace("%TARGET_PORT%", "0")
        .replace("%SERVICE_PORT%", &port.to_string())
        .replace("%SERVICE_PORT_NAME%", port_name)
}

/// The address a service has for the client, of a family the client speaks if there is one; `None` if it has none.
pub(crate) fn service_address(settings: &Settings, service: &Service) -> Option<Text> {
    let own = service.addresses.get(&settings.facts.cluster).map_or(&[][..], Vec::as_slice);
    if let Some(address) = own.iter().find(|address| speaks(settings, address)) {
        return Some(address.clone());
    }
    let declared = service.addresses_for(&settings.facts.cluster).first();
    if declared.is_none() && settings.facts.auto_allocated {
        return service.auto_allocated_addresses.iter().find(|address| speaks(settings, address)).cloned();
    }
    declared.cloned()
}

/// Further addresses of the service beside the first.
pub(crate) fn extra_addresses(settings: &Settings, service: &Service) -> Vec<Text> {
    let mut addresses = service.addresses.get(&settings.facts.cluster).cloned().unwrap_or_default();
    if addresses.is_empty() && settings.facts.auto_allocated {
        addresses.clone_from(&service.auto_allocated_addresses);
    }
    addresses.retain(|address| speaks(settings, address));
    // A second family is listened for only where both are used throughout.
    if !settings.dual_stack
        && let Some(first) = addresses.first().cloned()
    {
        addresses.retain(|address| address.contains(':') == first.contains(':'));
    }
    addresses.drain(..1.min(addresses.len()));
    addresses
}

fn speaks(settings: &Settings, address: &str) -> bool {
    if address.contains(':') { settings.ipv6() } else { settings.ipv4() }
}
