//! The tiers of clients that the services of the mesh need.

use sluice_engine::Collection;
use sluice_envoy::cluster::ClusterSettings;
use sluice_envoy::endpoint::{Tier, tier_of_service, tiers_of_mesh, tiers_of_rule};
use sluice_model::{DestinationRule, MeshConfig, ObjectKey, Proxy, ProxyKey, Service, ServiceKey};

/// Tiers with very many distinct clients. Their layers exist only while some service needs them; otherwise every node
/// or workload would have its own empty layers.
#[derive(Clone)]
pub(crate) struct RareTiers<'s> {
    /// The rare tiers that some service may need.
    pub(crate) needed: Collection<'s, Tier, ()>,
    of_nodes: Collection<'s, ProxyKey, Proxy>,
    of_labels: Collection<'s, ProxyKey, Proxy>,
}

impl<'s> RareTiers<'s> {
    pub(crate) fn new(
        services: &Collection<'s, ServiceKey, Service>,
        rules: &Collection<'s, ObjectKey, DestinationRule>,
        mesh: &Collection<'s, (), MeshConfig>,
        proxies: &Collection<'s, ProxyKey, Proxy>,
    ) -> Self {
        let needed = derive_rare_tiers(services, rules, mesh);
        let of_nodes = derive_rare_clients(proxies, &needed, Tier::Node);
        let of_labels = derive_rare_clients(proxies, &needed, Tier::Labels);
        Self { needed, of_nodes, of_labels }
    }

    /// The clients of a tier, out of all `proxies`.
    pub(crate) fn clients<'a>(
        &'a self,
        proxies: &'a Collection<'s, ProxyKey, Proxy>,
        tier: Tier,
    ) -> &'a Collection<'s, ProxyKey, Proxy> {
        match tier {
            Tier::Network | Tier::Cluster | Tier::Locality => proxies,
            Tier::Node => &self.of_nodes,
            Tier::Labels => &self.of_labels,
        }
    }
}

/// The rare tiers that some service may need.
/// Key: `Tier`. From: `services`, `destination_rules/all`, `mesh_config`.
/// Changes when: the first service, rule or mesh config needs one, or the last no longer does.
/// Size: 2 at most. Rejects: none.
fn derive_rare_tiers<'s>(
    services: &Collection<'s, ServiceKey, Service>,
    rules: &Collection<'s, ObjectKey, DestinationRule>,
    mesh: &Collection<'s, (), MeshConfig>,
) -> Collection<'s, Tier, ()> {
    fn rare(tiers: impl IntoIterator<Item = Tier>) -> Vec<(Tier, ())> {
        let mut rare: Vec<_> = tiers.into_iter().filter(|tier| tier.is_rare()).map(|tier| (tier, ())).collect();
        rare.sort_unstable();
        rare.dedup();
        rare
    }
    let of_services = services.index("rare_tiers/services", |_, service| rare([tier_of_service(service)]));
    let of_rules = rules.index("rare_tiers/destination_rules", |_, rule| rare(tiers_of_rule(rule)));
    let of_mesh = mesh.index("rare_tiers/mesh", |(), mesh| rare(tiers_of_mesh(&ClusterSettings::new(mesh, false))));
    let others = [of_rules.distinct("rare_tiers/of-rules"), of_mesh.distinct("rare_tiers/of-mesh")];
    of_services.distinct("rare_tiers/of-services").union("rare_tiers", &others)
}

/// The proxies, if some service distinguishes clients by the tier.
/// Key: `ProxyKey`. From: `proxies`, `rare_tiers`.
/// Changes when: a proxy does; the first service needs the tier, or the last no longer does.
/// Size: connected proxies, or none. Rejects: none.
fn derive_rare_clients<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    needed: &Collection<'s, Tier, ()>,
    tier: Tier,
) -> Collection<'s, ProxyKey, Proxy> {
    proxies.derive(&format!("rare_tiers/clients/{tier:?}").to_lowercase(), |deps| {
        let needed = deps.on(needed);
        move |cx, _, proxy| cx.get(&needed, &tier).map(|_| proxy.clone())
    })
}
