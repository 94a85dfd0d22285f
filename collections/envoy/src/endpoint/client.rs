//! What of a client its endpoints depend on.

use serde::Serialize;
use sluice_model::{DestinationRule, IpFamilies, Labels, Locality, LocalityLb, Proxy, Service, Text, ZoneAwareLb};

use crate::cluster::{ClusterSettings, LocalityMode, locality_mode, near_first, sends_no_hbone};

/// Labels that an endpoint or client has by its place.
pub(super) const REGION: &str = "topology.kubernetes.io/region";
/// See `REGION`.
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
/// See `REGION`.
pub(super) const SUBZONE: &str = "topology.istio.io/subzone";
/// See `REGION`.
pub(super) const CLUSTER: &str = "topology.istio.io/cluster";
/// See `REGION`.
pub(super) const NETWORK: &str = "topology.istio.io/network";
/// See `REGION`.
pub(super) const NODE: &str = "kubernetes.io/hostname";

/// How much of a client its endpoints depend on: each tier has the facts of those before it.
///
/// A service's endpoints are written once for each distinct client of its tier, so a tier must not tell clients apart
/// that do not differ for the service.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The network, and which ones it may see.
    #[default]
    Network,
    /// The cluster too.
    Cluster,
    /// The place too: near localities come first, or get a share.
    Place,
    /// The node too.
    Node,
    /// Labels too, which endpoints are compared by.
    Labels,
}

impl Tier {
    /// Every tier, that of the fewest facts first.
    pub const ALL: [Self; 5] = [Self::Network, Self::Cluster, Self::Place, Self::Node, Self::Labels];

    /// Whether it tells apart about as many clients as there are nodes or workloads.
    #[must_use]
    pub fn is_rare(self) -> bool {
        self >= Self::Node
    }
}

/// The facts of a proxy that can change what endpoints it is sent.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct EndpointClient {
    /// How many of the facts are here.
    pub tier: Tier,
    /// Its address families.
    pub ip_families: IpFamilies,
    /// Network it is on.
    pub network: Text,
    /// Networks it may see, empty is all.
    pub network_view: Vec<Text>,
    /// Cluster it runs in.
    pub cluster: Text,
    /// Where it is.
    pub locality: Locality,
    /// Node it runs on.
    pub node: Text,
    /// Its labels.
    pub labels: Labels,
    /// It passes mutual TLS on, so endpoints that take none are not for it.
    pub only_mtls: bool,
    /// It sends no HBONE.
    pub no_hbone: bool,
}

impl EndpointClient {
    /// The facts of a proxy that belong to a tier.
    #[must_use]
    pub fn of(proxy: &Proxy, tier: Tier) -> Self {
        let mut client = Self {
            tier,
            ip_families: proxy.ip_families,
            network: proxy.network.clone(),
            network_view: proxy.network_view.clone(),
            no_hbone: sends_no_hbone(proxy),
            ..Self::default()
        };
        if tier >= Tier::Cluster {
            client.cluster.clone_from(&proxy.cluster);
        }
        if tier >= Tier::Place {
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

    /// The same client where it passes mutual TLS on by its server name.
    #[must_use]
    pub fn passing_through(self) -> Self {
        Self { only_mtls: true, ..self }
    }

    /// The value of a label of the client, by its place or its own.
    #[must_use]
    pub fn label(&self, key: &str) -> &str {
        let own = || self.labels.get(key).map_or("", |value| value.as_str());
        let place = match key {
            REGION => self.locality.region.as_str(),
            ZONE => self.locality.zone.as_str(),
            SUBZONE => self.locality.subzone.as_str(),
            CLUSTER => self.cluster.as_str(),
            NODE => self.node.as_str(),
            NETWORK if own().is_empty() => self.network.as_str(),
            _ => "",
        };
        if place.is_empty() { own() } else { place }
    }
}

/// The tier of clients that a port or subset of a service tells apart under a rule.
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
        LocalityMode::Locality { setting, .. } if !setting.distribute.is_empty() => return tier.max(Tier::Place),
        LocalityMode::Locality { setting, .. } => &setting.failover_priority,
        LocalityMode::ZoneAware(setting) => &setting.failover_priority,
        LocalityMode::Off => return tier,
    };
    if !mode.fails_over(outlier) {
        return tier;
    }
    tier.max(tier_of_order(order))
}

/// What the service says itself.
fn own_tier(service: &Service) -> Tier {
    match (service.node_local, service.cluster_local) {
        (true, _) => Tier::Node,
        (false, true) => Tier::Cluster,
        (false, false) => Tier::Network,
    }
}

/// The tier of clients that an order of labels tells apart.
fn tier_of_order(order: &[Text]) -> Tier {
    let of_label = |entry: &Text| match entry.split('=').next().unwrap_or_default() {
        REGION | ZONE | SUBZONE | CLUSTER => Tier::Place,
        NODE => Tier::Node,
        // A network is the tier of all, unless the workload's label says another.
        NETWORK => Tier::Place,
        _ => Tier::Labels,
    };
    order.iter().map(of_label).fold(Tier::Place, Tier::max)
}

/// The highest tier that a service can be of by what it says itself. A [`tier`] is always this, or less, or one of
/// [`tiers_of_rule`] of its rule, or [`tiers_of_mesh`].
#[must_use]
pub fn tier_of_service(service: &Service) -> Tier {
    let order = near_first(service.traffic_distribution).map(|setting| tier_of_order(&setting.failover_priority));
    order.unwrap_or_default().max(own_tier(service))
}

/// The tiers that some policy of a rule can lead to.
pub fn tiers_of_rule(rule: &DestinationRule) -> impl Iterator<Item = Tier> {
    let subsets = rule.subsets.iter().filter_map(|subset| subset.traffic_policy.as_ref());
    let policies = rule.traffic_policy.iter().chain(subsets);
    let balancers = policies.flat_map(|policy| {
        let ports = policy.port_level.iter().filter_map(|port| port.load_balancer.as_ref());
        policy.load_balancer.iter().chain(ports)
    });
    balancers.flat_map(|balancer| tiers_of_settings(balancer.zone_aware.as_ref(), balancer.locality.as_ref()))
}

/// The tiers that the mesh's own settings can lead to.
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
