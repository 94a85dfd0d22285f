//! Which network an address is on (S19).

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;
use sluice_engine::Collection;
use sluice_model::{Labels, MeshNetworks, Namespace, NetworkEndpoints, ObjectKey, Text, label};

use crate::options::GraphOptions;

/// How the network of an endpoint is found.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct NetworkRules {
    /// By cluster: the label of its system namespace.
    by_system_namespace: BTreeMap<Text, Text>,
    /// By cluster: the network that names it in `fromRegistry`.
    by_registry: BTreeMap<Text, Text>,
    /// (block, network), the narrowest block first.
    by_block: Vec<(ipnet::IpNet, Text)>,
}

impl NetworkRules {
    /// The network of an endpoint in `cluster`: by its own label, its cluster's system namespace, its cluster, its
    /// address. Empty if none of them determines a network.
    #[must_use]
    pub(crate) fn network(&self, cluster: &str, address: &str, labels: &Labels) -> Text {
        let label = labels.get(label::NETWORK).filter(|network| !network.is_empty());
        let by_cluster = || self.by_system_namespace.get(cluster).or_else(|| self.by_registry.get(cluster));
        let by_block = || {
            let address: IpAddr = address.parse().ok()?;
            self.by_block.iter().find(|(block, _)| block.contains(&address)).map(|(_, network)| network)
        };
        label.or_else(by_cluster).or_else(by_block).cloned().unwrap_or_default()
    }
}

impl NetworkRules {
    /// By cluster, the network in the label of its system namespace.
    #[must_use]
    pub(crate) fn by_system_namespace(&self) -> &BTreeMap<Text, Text> {
        &self.by_system_namespace
    }
}

/// The rules that give the network of an endpoint.
/// Key: none, one record. From: `mesh_networks`, `namespaces`.
/// Changes when: `meshNetworks` does, or the network label of a system namespace.
/// Size: 1. Rejects: none.
pub(crate) fn derive_networks<'s>(
    mesh_networks: &Collection<'s, (), MeshNetworks>,
    namespaces: &Collection<'s, ObjectKey, Namespace>,
    options: &GraphOptions,
) -> Collection<'s, (), NetworkRules> {
    let system_namespace = options.system_namespace.clone();
    let labelled = namespaces.filter_map("system_networks", move |key, namespace| {
        let network = namespace.labels.get(label::NETWORK).filter(|network| !network.is_empty())?;
        (key.name == system_namespace).then(|| network.clone())
    });
    mesh_networks.derive("networks", |deps| {
        let labelled = deps.on(&labelled);
        move |cx, (), configured| {
            let labelled = cx.all(&labelled).into_iter();
            let mut rules = NetworkRules {
                by_system_namespace: labelled.map(|(key, network)| (key.cluster, (*network).clone())).collect(),
                ..NetworkRules::default()
            };
            for (id, network) in &configured.networks {
                for endpoints in &network.endpoints {
                    match endpoints {
                        NetworkEndpoints::Registry(cluster) => {
                            rules.by_registry.entry(cluster.clone()).or_insert_with(|| id.clone());
                        }
                        NetworkEndpoints::Cidr(block) => {
                            rules.by_block.extend(block.parse().ok().map(|block: ipnet::IpNet| (block, id.clone())));
                        }
                    }
                }
            }
            rules.by_block.sort_by_key(|(block, id)| (std::cmp::Reverse(block.prefix_len()), *block, id.clone()));
            Some(rules)
        }
    })
}
