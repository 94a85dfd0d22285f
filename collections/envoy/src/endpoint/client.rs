//! Properties of a client that its endpoints depend on.

use serde::Serialize;
use sluice_model::label::{CLUSTER, HOSTNAME, NETWORK, REGION, SUBZONE, ZONE, is_east_west};
use sluice_model::{
    DestinationRule, IpFamilies, Labels, Locality, LocalityLb, OtherNetworks, Proxy, ProxyType, Service, Text,
    ZoneAwareLb,
};

use crate::cluster::{ClusterSettings, LocalityMode, locality_mode, near_first};
use crate::proxy_metadata::sends_no_hbone;

/// The properties of a client that endpoints depend on. Each tier includes those of the tiers before it.
///
/// The endpoints of a service are built once per distinct client of its tier, so a tier must not include properties that
/// the service does not depend on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The network, and the networks that are visible to the client.
    #[default]
    Network,
    /// Also the cluster.
    Cluster,
    /// Also the locality, for failover and distribution.
    Locality,
    /// Also the node.
    Node,
    /// Also labels, for failover by labels.
    Labels,
}

impl Tier {
    /// All tiers, from the fewest properties to the most.
    pub const ALL: [Self; 5] = [Self::Network, Self::Cluster, Self::Locality, Self::Node, Self::Labels];

    /// Whether the number of distinct clients is about that of nodes or workloads.
    #[must_use]
    pub fn is_rare(self) -> bool {
        self >= Self::Node
    }
}

/// Properties of a proxy that change its endpoints.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct EndpointClient {
    /// The tier, which defines the properties that are set.
    pub tier: Tier,
    /// Its address families.
    pub ip_families: IpFamilies,
    /// Its network.
    pub network: Text,
    /// Networks that are visible to it; empty for all.
    pub network_view: Vec<Text>,
    /// Its cluster.
    pub cluster: Text,
    /// Its locality.
    pub locality: Locality,
    /// Its node.
    pub node: Text,
    /// Its labels.
    pub labels: Labels,
    /// How it sends to other networks.
    pub other_networks: OtherNetworks,
    /// Whether it is an AUTO_PASSTHROUGH gateway, which uses only endpoints with mutual TLS.
    pub only_mtls: bool,
    /// Whether it does not send HBONE.
    pub no_hbone: bool,
    /// Whether it is the waypoint of the service: it sends HBONE to all endpoints that accept it, and never mutual TLS.
    pub waypoint: bool,
    /// Whether it is a waypoint that is an east-west gateway.
    pub east_west: bool,
    /// Whether it is a gateway that sends through the waypoints of services that ask for it.
    pub through_waypoints: bool,
    /// Whether it gets endpoints as resources of their own, by LEDS.
    pub by_locality: bool,
}

impl EndpointClient {
    /// The properties of a proxy in a tier.
    #[must_use]
    pub fn of(proxy: &Proxy, tier: Tier) -> Self {
        let location = proxy.shared_location();
        let mut client = Self {
            tier,
            ip_families: proxy.ip_families,
            network: location.network,
            network_view: proxy.network_view.clone(),
            other_networks: proxy.other_networks,
            // An east-west gateway has no listener for tunnels of its own.
            no_hbone: sends_no_hbone(proxy) || is_east_west_gateway(proxy),
            ..Self::default()
        };
        if tier >= Tier::Cluster {
            client.cluster = location.cluster;
        }
        if tier >= Tier::Locality {
            client.locality.clone_from(&proxy.locality);
        }
        if tier >= Tier::Node {
            client.node.clone_from(&proxy.node_name);
        }
        if tier >= Tier::Labels {
            client.labels.clone_from(&proxy.labels);
        }
        client
    }

    /// The same client as an AUTO_PASSTHROUGH gateway.
    #[must_use]
    pub fn passing_through(self) -> Self {
        Self { only_mtls: true, ..self }
    }

    /// The properties of a waypoint in a tier, for the services that it serves.
    #[must_use]
    pub fn of_waypoint(proxy: &Proxy, tier: Tier) -> Self {
        let (east_west, no_hbone) = (is_east_west_gateway(proxy), sends_no_hbone(proxy));
        Self { waypoint: true, east_west, no_hbone, ..Self::of(proxy, tier) }
    }

    /// The same client as a gateway that sends through the waypoints of services.
    #[must_use]
    pub fn through_waypoints(self) -> Self {
        Self { through_waypoints: true, ..self }
    }

    /// The same client for the assignments of outbound clusters: by LEDS if the proxy supports it.
    #[must_use]
    pub fn of_outbound(proxy: &Proxy, tier: Tier) -> Self {
        Self { by_locality: proxy.endpoints_by_locality, ..Self::of(proxy, tier) }
    }

    /// The value of a label of the client: of its topology or of its own labels.
    #[must_use]
    pub fn label(&self, key: &str) -> &str {
        let own = || self.labels.get(key).map_or("", |value| value.as_str());
        let place = match key {
            REGION => self.locality.region.as_str(),
            ZONE => self.locality.zone.as_str(),
            SUBZONE => self.locality.subzone.as_str(),
            CLUSTER => self.cluster.as_str(),
            HOSTNAME => self.node.as_str(),
            NETWORK if own().is_empty() => self.network.as_str(),
            _ => "",
        };
        if place.is_empty() { own() } else { place }
    }
}

fn is_east_west_gateway(proxy: &Proxy) -> bool {
    proxy.proxy_type == ProxyType::Waypoint && is_east_west(&proxy.labels)
}

/// The tier of a port or subset of a service under a rule.
#[must_use]
pub fn tier(
    settings: &ClusterSettings,
    service: &Service,
    port: u16,
    subset: &str,
    rule: Option<&DestinationRule>,
) -> Tier {
    let tier = own_tier(service);
    let policy = rule.and_then(|rule| rule.policy(subset, port));
    let outlier = policy.as_ref().is_some_and(|policy| policy.outlier_detection.is_some());
    let lb = policy.as_ref().and_then(|policy| policy.load_balancer.as_ref());
    let mode = locality_mode(lb, service, settings);
    let order = match &mode {
        LocalityMode::Locality { setting, .. } if !setting.distribute.is_empty() => return tier.max(Tier::Locality),
        LocalityMode::Locality { setting, .. } => &setting.failover_priority,
        LocalityMode::ZoneAware(setting) => &setting.failover_priority,
        LocalityMode::Off => return tier,
    };
    if !mode.fails_over(outlier) {
        return tier;
    }
    tier.max(tier_of_order(order))
}

/// The tier by the settings of the service itself.
fn own_tier(service: &Service) -> Tier {
    match (service.node_local, service.cluster_local || service.needs_export) {
        (true, _) => Tier::Node,
        (false, true) => Tier::Cluster,
        (false, false) => Tier::Network,
    }
}

/// The tier of failover by labels.
fn tier_of_order(order: &[Text]) -> Tier {
    let of_label = |entry: &Text| match entry.split('=').next().unwrap_or_default() {
        REGION | ZONE | SUBZONE | CLUSTER => Tier::Locality,
        HOSTNAME => Tier::Node,
        // All clients have a network. The workload label may override it.
        NETWORK => Tier::Locality,
        _ => Tier::Labels,
    };
    order.iter().map(of_label).fold(Tier::Locality, Tier::max)
}

/// The highest tier that a service has by its own settings. A [`tier`] is always at most this one, or one of
/// [`tiers_of_rule`] of its rule, or one of [`tiers_of_mesh`].
#[must_use]
pub fn tier_of_service(service: &Service) -> Tier {
    let order = near_first(service.traffic_distribution).map(|setting| tier_of_order(&setting.failover_priority));
    order.unwrap_or_default().max(own_tier(service))
}

/// The tiers that the policies of a rule can result in.
pub fn tiers_of_rule(rule: &DestinationRule) -> impl Iterator<Item = Tier> {
    let balancers = rule.policies().flat_map(|policy| {
        let ports = policy.port_level.iter().filter_map(|port| port.load_balancer.as_ref());
        policy.load_balancer.iter().chain(ports)
    });
    balancers.flat_map(|balancer| tiers_of_settings(balancer.zone_aware.as_ref(), balancer.locality.as_ref()))
}

/// The tiers that the settings of the mesh can result in.
#[must_use]
pub fn tiers_of_mesh(settings: &ClusterSettings) -> Vec<Tier> {
    tiers_of_settings(settings.zone_aware_lb.as_ref(), Some(&settings.locality_lb)).collect()
}

fn tiers_of_settings<'a>(
    zone_aware: Option<&'a ZoneAwareLb>,
    locality: Option<&'a LocalityLb>,
) -> impl Iterator<Item = Tier> + 'a {
    let zone_aware = zone_aware.map(|setting| &setting.failover_priority);
    let orders = zone_aware.into_iter().chain(locality.map(|setting| &setting.failover_priority));
    orders.map(|order| tier_of_order(order))
}
