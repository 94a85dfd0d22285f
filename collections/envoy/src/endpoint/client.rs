//! What of a client its endpoints depend on.

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_model::{DestinationRule, IpFamilies, Labels, Locality, NetworkGateway, Proxy, ProxyType, Service, Text};

use crate::cluster::{ClusterSettings, LocalityMode, locality_mode};

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

/// The facts of a proxy that can change what endpoints it is sent.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct EndpointClient {
    /// Sidecar or gateway.
    pub proxy_type: ProxyType,
    /// Its address families.
    pub ip_families: IpFamilies,
    /// Cluster it runs in.
    pub cluster: Text,
    /// Network it is on.
    pub network: Text,
    /// Networks it may see, empty is all.
    pub network_view: Vec<Text>,
    /// Node it runs on.
    pub node: Text,
    /// Where it is.
    pub locality: Locality,
    /// Its labels, with those its place stands for.
    pub labels: Labels,
}

impl EndpointClient {
    /// All facts of a proxy.
    #[must_use]
    pub fn of(proxy: &Proxy) -> Self {
        let mut labels = proxy.labels.clone();
        let mut place = |key: &str, value: &Text| {
            if !value.is_empty() {
                labels.insert(key.into(), value.clone());
            }
        };
        place(REGION, &proxy.locality.region);
        place(ZONE, &proxy.locality.zone);
        place(SUBZONE, &proxy.locality.subzone);
        place(CLUSTER, &proxy.cluster);
        place(NODE, &proxy.node_name);
        if !proxy.network.is_empty() {
            labels.entry(NETWORK.into()).or_insert_with(|| proxy.network.clone());
        }
        Self {
            proxy_type: proxy.proxy_type,
            ip_families: proxy.ip_families,
            cluster: proxy.cluster.clone(),
            network: proxy.network.clone(),
            network_view: proxy.network_view.clone(),
            node: proxy.node_name.clone(),
            locality: proxy.locality.clone(),
            labels,
        }
    }

    /// Only the facts that count; clients with equal ones get the same endpoints.
    #[must_use]
    pub fn project(&self, needs: &Needs) -> Self {
        let mut out = Self { network_view: self.network_view.clone(), ..Self::default() };
        if needs.networks {
            out.proxy_type = self.proxy_type;
            out.ip_families = self.ip_families;
            out.network.clone_from(&self.network);
        }
        if needs.cluster {
            out.cluster.clone_from(&self.cluster);
        }
        if needs.node {
            out.node.clone_from(&self.node);
        }
        if needs.locality {
            out.locality.clone_from(&self.locality);
        }
        for key in &needs.labels {
            if let Some((key, value)) = self.labels.get_key_value(key) {
                out.labels.insert(key.clone(), value.clone());
            }
        }
        out
    }
}

/// Which facts count for a cluster's endpoints.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Needs {
    /// Networks have gateways.
    pub networks: bool,
    /// Only endpoints of the client's cluster are used.
    pub cluster: bool,
    /// Only endpoints of the client's node are used.
    pub node: bool,
    /// Near localities come first, or get a share.
    pub locality: bool,
    /// Labels that endpoints are compared by.
    pub labels: BTreeSet<Text>,
}

/// The facts that count for a port or subset of a service under a rule.
#[must_use]
pub fn needs(
    settings: &ClusterSettings,
    service: &Service,
    port: u16,
    subset: &str,
    rule: Option<&DestinationRule>,
    gateways: &[NetworkGateway],
) -> Needs {
    let mut needs = Needs {
        networks: !gateways.is_empty(),
        cluster: service.cluster_local || service.node_local,
        node: service.node_local,
        ..Needs::default()
    };
    let policy = rule.and_then(|rule| rule.policy(subset, port));
    let outlier = policy.as_ref().is_some_and(|policy| policy.outlier_detection.is_some());
    let lb = policy.as_ref().and_then(|policy| policy.load_balancer.as_ref());
    let key_of = |label: &Text| Text::from(label.split('=').next().unwrap_or_default());
    let mode = locality_mode(lb, service, settings);
    let fails_over = mode.fails_over(outlier);
    match mode {
        LocalityMode::Off => {}
        LocalityMode::Locality { setting, .. } => {
            if !setting.distribute.is_empty() {
                needs.locality = true;
            } else if fails_over {
                needs.labels = setting.failover_priority.iter().map(key_of).collect();
                needs.locality = setting.failover_priority.is_empty() || !setting.failover.is_empty();
            }
        }
        LocalityMode::ZoneAware(setting) => {
            if fails_over {
                needs.labels = setting.failover_priority.iter().map(key_of).collect();
                needs.locality = true;
            }
        }
    }
    needs
}
