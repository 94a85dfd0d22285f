//! Scopes: the layers of each resource type that a proxy gets.

use sluice_engine::Collection;
use sluice_model::{Proxy, ProxyKey, ProxyType, ResourceType, Scope, Text};

use crate::outputs::endpoints::self_discovery::ReplicaGroup;
use crate::outputs::layers::{LayerInputs, LayerReader};
use crate::outputs::on_demand_clusters;
use crate::proxies::envoy_filters::PatchSet;
use crate::traffic::pull_secrets::PullAccess;
use crate::traffic::secrets::{SecretAccess, SecretLayer};

/// Inputs of the derivation of scopes.
pub(crate) struct ScopeInputs<'a, 's> {
    /// Connected proxies.
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    /// Inputs of the layers of proxies.
    pub(crate) layers: LayerInputs<'a, 's>,
    /// The patch set of each proxy that has one.
    pub(crate) proxy_patches: &'a Collection<'s, ProxyKey, PatchSet>,
    /// The Secrets that each proxy may read.
    pub(crate) secret_access: &'a Collection<'s, ProxyKey, SecretAccess>,
    /// The pull secrets that each proxy may use.
    pub(crate) pull_access: &'a Collection<'s, ProxyKey, PullAccess>,
    /// The group of replicas of each proxy that discovers itself.
    pub(crate) replica_groups: &'a Collection<'s, ProxyKey, ReplicaGroup>,
}

/// The scope of each proxy: the layers of each type in order, and the values of the slots of templates.
/// Key: `ProxyKey`. From: `proxies`, `workload_names`, `listener_facts`, `selected_labels`, `rare_tiers`,
/// `routers/auto-passthrough`, `proxy_patches`, `secret_access`, `pull_access`, `replica_groups`.
/// Changes when: the facts of the proxy change, or its services, its telemetry or extensions, the labels that rules
/// select, the rare tiers that are needed, or its patches; for a router also when its first server of TLS mode
/// AUTO_PASSTHROUGH is added or its last one removed.
/// Size: connected proxies. Rejects: none.
pub(crate) fn derive_scopes<'s>(inputs: &ScopeInputs<'_, 's>) -> Collection<'s, ProxyKey, Scope> {
    inputs.proxies.derive("scopes", |deps| {
        let clients = LayerReader::on(deps, &inputs.layers);
        let patches = deps.on(inputs.proxy_patches);
        let (access, pulls) = (deps.on(inputs.secret_access), deps.on(inputs.pull_access));
        let replicas = deps.on(inputs.replica_groups);
        move |cx, key, proxy| {
            let mut layers = clients.layers(cx, key, proxy)?;
            if let Some(access) = cx.get(&access, key) {
                layers.insert(ResourceType::Secret, access.layers.iter().map(SecretLayer::layer).collect());
            }
            if let Some(pulls) = cx.get(&pulls, key) {
                layers.entry(ResourceType::ExtensionConfig).or_default().insert(0, pulls.layer());
            }
            if let Some(replicas) = cx.get(&replicas, key) {
                layers.entry(ResourceType::Endpoint).or_default().insert(0, replicas.layer());
            }
            if let Some(patches) = cx.get(&patches, key) {
                patches.add_layers(&mut layers);
            }
            if proxy.on_demand_clusters
                && let Some(clusters) = layers.get_mut(&ResourceType::Cluster)
            {
                on_demand_clusters::add_layers(clusters);
            }
            if proxy.endpoints_by_locality {
                let of_assignments = layers.get(&ResourceType::Endpoint).cloned().unwrap_or_default();
                layers.insert(ResourceType::LbEndpoint, of_assignments);
            }
            if proxy.virtual_hosts {
                let of_tables = layers.get(&ResourceType::Route).cloned().unwrap_or_default();
                layers.insert(ResourceType::VirtualHost, of_tables);
            }
            let node = if proxy.proxy_type == ProxyType::Ztunnel { proxy.node_name.clone() } else { Text::default() };
            let identity = proxy.identity.clone();
            let layers = layers.into_iter().map(|(kind, layers)| (kind, layers.into())).collect();
            Some(Scope { layers, slots: sluice_envoy::identity_slots(proxy), identity, node })
        }
    })
}
