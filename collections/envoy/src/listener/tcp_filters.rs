//! Network filters that proxy TCP to a destination, for routes of sidecars and of gateways.

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::config::listener::v3::Filter;
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::{
    TcpProxy,
    tcp_proxy::{ClusterSpecifier, TunnelingConfig, WeightedCluster, weighted_cluster::ClusterWeight},
};
use envoy_types::pb::envoy::r#type::v3::{HashPolicy, hash_policy};
use sluice_model::{
    Destination, DestinationRule, HashKey, Host, Protocol, RouteDestination, Service, Text, VirtualService,
};

use crate::filter::{Extensions, metadata_exchange, protocol_filters, tcp_access_logs, tcp_stats};
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name;
use crate::security::PolicySteps;
use crate::stat_name::StatNameValues;
use crate::wire::duration;

/// Service and rule of a destination.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, serde::Serialize)]
pub struct DestinationFacts {
    /// The service, if one of that host is visible to the client.
    pub service: Option<Arc<Service>>,
    /// The DestinationRule for this client.
    pub rule: Option<Arc<DestinationRule>>,
}

/// Destinations by host.
pub type Destinations = BTreeMap<Host, DestinationFacts>;

/// Inputs of the network filters of a port.
#[derive(Clone, Copy)]
pub(super) struct TcpFilterInputs<'a> {
    /// Traffic direction of the listener.
    pub(super) class: ListenerClass,
    /// Protocol of the port.
    pub(super) protocol: Protocol,
    /// Port number, which is the default port of destinations.
    pub(super) port: u16,
    /// Port name, for statistics.
    pub(super) port_name: &'a Text,
    /// Destinations of its routes.
    pub(super) destinations: &'a Destinations,
    /// Whether metadata is exchanged with the client.
    pub(super) exchanges_metadata: bool,
    /// Whether rules may configure a tunnel.
    pub(super) tunnels: bool,
    /// Authorization filters.
    pub(super) policies: Option<&'a PolicySteps<Filter>>,
    /// Filters directly before the TCP proxy.
    pub(super) before_proxy: &'a [Filter],
}

impl TcpFilterInputs<'_> {
    /// The filters for a route of a VirtualService.
    pub(super) fn for_route(
        &self,
        settings: &ListenerSettings,
        virtual_service: &VirtualService,
        route: &[RouteDestination],
    ) -> Vec<Filter> {
        let Some(first) = route.first().map(|route| &route.destination) else { return Vec::new() };
        let first_service = self.service(&first.host);
        // A rule applies only if its service is visible to the client.
        let rule =
            first_service.and_then(|_| self.destinations.get(&first.host).and_then(|facts| facts.rule.as_deref()));
        if let [only] = route {
            let cluster = self.cluster(&only.destination);
            let pattern = &settings.mesh.outbound_cluster_stat_name;
            let stat_prefix = match first_service {
                Some(service) if !pattern.is_empty() => {
                    let port = u32::from(self.port);
                    StatNameValues::outbound(service, &first.subset, port, self.port_name).expand(pattern)
                }
                _ => cluster.clone(),
            };
            return self.to_cluster(settings, stat_prefix, cluster, &first.subset, rule);
        }
        let stat_prefix = format!("{}.{}", virtual_service.name, virtual_service.namespace);
        self.to_clusters(settings, stat_prefix, route, rule, &|destination| self.cluster(destination))
    }

    /// The filters for the clusters of several destinations, by their weights.
    pub(super) fn to_clusters(
        self,
        settings: &ListenerSettings,
        stat_prefix: String,
        route: &[RouteDestination],
        rule: Option<&DestinationRule>,
        cluster: &dyn Fn(&Destination) -> String,
    ) -> Vec<Filter> {
        let clusters: Vec<ClusterWeight> = route
            .iter()
            .filter_map(|route| {
                let weight = u32::try_from(route.weight).ok().filter(|weight| *weight > 0)?;
                Some(ClusterWeight { name: cluster(&route.destination), weight, ..ClusterWeight::default() })
            })
            .collect();
        let specifier = ClusterSpecifier::WeightedClusters(WeightedCluster { clusters });
        self.complete(settings, self.proxy(settings, stat_prefix, specifier, "", rule))
    }

    /// The filters for a single cluster.
    pub(super) fn to_cluster(
        self,
        settings: &ListenerSettings,
        stat_prefix: String,
        cluster: String,
        subset: &str,
        rule: Option<&DestinationRule>,
    ) -> Vec<Filter> {
        self.complete(settings, self.proxy(settings, stat_prefix, ClusterSpecifier::Cluster(cluster), subset, rule))
    }

    fn service(&self, host: &Host) -> Option<&Service> {
        self.destinations.get(host).and_then(|facts| facts.service.as_deref())
    }

    /// The cluster of a destination, by its port, or the only port of its service, or the port of the listener.
    fn cluster(&self, destination: &Destination) -> String {
        if destination.host.as_str().is_empty() {
            return name::UNKNOWN_SERVICE.to_owned();
        }
        let port = destination.port.unwrap_or_else(|| {
            match self.service(&destination.host).map(|service| service.ports.as_slice()) {
                Some([only]) => u32::from(only.port),
                _ => u32::from(self.port),
            }
        });
        name::outbound_cluster(port, &destination.subset, destination.host.as_str())
    }

    fn complete(&self, settings: &ListenerSettings, proxy: TcpProxy) -> Vec<Filter> {
        let exchange = self.exchanges_metadata.then(|| metadata_exchange(settings)).flatten();
        let extensions = Extensions::on(settings, self.class, u32::from(self.port));
        let mut filters: Vec<Filter> = exchange.into_iter().collect();
        match self.policies {
            Some(policies) => filters.extend(extensions.network_around(policies)),
            None => filters.extend(extensions.all_network()),
        }
        filters.extend(tcp_stats(settings, self.class));
        filters.extend(self.before_proxy.iter().cloned());
        let cluster = match &proxy.cluster_specifier {
            Some(ClusterSpecifier::Cluster(cluster)) => cluster.as_str(),
            Some(ClusterSpecifier::WeightedClusters(all)) => all.clusters.first().map_or("", |first| &first.name),
            None => "",
        };
        filters.extend(protocol_filters(settings, self.protocol, &proxy.stat_prefix, cluster, &proxy));
        filters
    }

    fn proxy(
        &self,
        settings: &ListenerSettings,
        stat_prefix: String,
        specifier: ClusterSpecifier,
        subset: &str,
        rule: Option<&DestinationRule>,
    ) -> TcpProxy {
        let tcp = rule.and_then(|rule| rule.traffic_policy.as_ref()?.connection_pool.as_ref()?.tcp.as_ref());
        TcpProxy {
            stat_prefix,
            cluster_specifier: Some(specifier),
            idle_timeout: tcp.and_then(|tcp| tcp.idle_timeout).or(settings.profile.idle_timeout).map(duration),
            max_downstream_connection_duration: tcp.and_then(|tcp| tcp.max_connection_duration).map(duration),
            hash_policy: if hashes_by_source(rule, subset) { vec![source_hash()] } else { Vec::new() },
            tunneling_config: rule.filter(|_| self.tunnels).and_then(|rule| tunnel(rule, subset)),
            access_log: tcp_access_logs(settings, self.class),
            ..TcpProxy::default()
        }
    }
}

/// The hash policy if the rule hashes by source IP.
fn hashes_by_source(rule: Option<&DestinationRule>, subset: &str) -> bool {
    let Some(rule) = rule else { return false };
    let by_source = |policy: Option<&sluice_model::TrafficPolicy>| {
        let balancer = policy.and_then(|policy| policy.load_balancer.as_ref())?;
        let hash = balancer.consistent_hash.as_ref();
        Some(hash.is_some_and(|hash| hash.key == Some(HashKey::SourceIp(true))))
    };
    let of_rule = by_source(rule.traffic_policy.as_ref()).unwrap_or(false);
    let of_subset = rule.subset(subset).and_then(|subset| by_source(subset.traffic_policy.as_deref()));
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
        rule.subset(subset).and_then(|subset| subset.traffic_policy.as_deref())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_without_a_host_has_a_cluster_that_does_not_exist() {
        let (destinations, port_name) = (Destinations::new(), Text::default());
        let inputs = TcpFilterInputs {
            class: ListenerClass::Gateway,
            protocol: Protocol::Tcp,
            port: 34001,
            port_name: &port_name,
            destinations: &destinations,
            exchanges_metadata: false,
            tunnels: false,
            policies: None,
            before_proxy: &[],
        };
        assert_eq!(inputs.cluster(&Destination::default()), "UnknownService");
        let known = Destination { host: "a.example".into(), ..Destination::default() };
        assert_eq!(inputs.cluster(&known), "outbound|34001||a.example");
    }
}
