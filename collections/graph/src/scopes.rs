//! Scopes: the layers of each resource type that a proxy gets.

use sluice_engine::Collection;
use sluice_model::{ProxyKey, ProxyType, ResourceType, Scope, Text};

use crate::graph_context::GraphContext;
use crate::outputs::layers::LayerReader;
use crate::proxies::selected_labels::SelectedLabels;
use crate::traffic::secrets::SecretLayer;

/// What each proxy gets: for each type its layers in order, and what it fills into templates.
/// Key: `ProxyKey`. From: `proxies`, `workload_names`, `listener_facts`, `selected_labels`, `rare_tiers`,
/// `routers/auto-passthrough`, `proxy_patches`, `secret_access`, `pull_access`.
/// Changes when: the proxy's own facts do, the services it is part of, what is attached to it, the labels that rules
/// select on, the rare tiers that are needed, or its patches; for a router also its first or last server of TLS mode
/// AUTO_PASSTHROUGH.
/// Size: connected proxies. Rejects: none.
pub(crate) fn derive_scopes<'s>(
    context: &GraphContext<'s>,
    labels: &Collection<'s, (), SelectedLabels>,
) -> Collection<'s, ProxyKey, Scope> {
    context.proxies.derive("scopes", |deps| {
        let clients = LayerReader::on(deps, context, labels);
        let patches = deps.on(&context.patches.of_proxies);
        let (access, pulls) = (deps.on(&context.secrets.access), deps.on(&context.pulls));
        move |cx, key, proxy| {
            let mut layers = clients.layers(cx, key, proxy)?;
            if let Some(access) = cx.get(&access, key) {
                layers.insert(ResourceType::Secret, access.layers.iter().map(SecretLayer::layer).collect());
            }
            if let Some(pulls) = cx.get(&pulls, key) {
                layers.entry(ResourceType::ExtensionConfig).or_default().insert(0, pulls.layer());
            }
            if let Some(patches) = cx.get(&patches, key) {
                patches.lay_over(&mut layers);
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
