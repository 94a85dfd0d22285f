//! The facts of a proxy that decide its layers of each resource type.

use std::collections::BTreeMap;

use sluice_engine::{Collection, Context, Dep, Deps};
use sluice_envoy::endpoint::Tier;
use sluice_envoy::listener_settings::ListenerProfile;
use sluice_model::{Labels, Layer, Proxy, ProxyKey, ProxyType, ResourceType, Text, View};

use crate::proxies::selected_labels::SelectedLabels;
use crate::proxies::workloads::WorkloadName;
use crate::traffic::credentials::CredentialClient;
use crate::traffic::gateways::routers::Router;
use crate::views::outbound_views;

/// Facts of a proxy that its layers depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerFacts<'a> {
    /// The proxy.
    pub(crate) proxy: &'a Proxy,
    /// The workload it is a replica of.
    pub(crate) workload: &'a WorkloadName,
    /// The router or waypoint it is a replica of.
    pub(crate) router: Option<&'a Router>,
    /// Its profile for listeners.
    pub(crate) listener_profile: &'a ListenerProfile,
    /// Its labels that rules for clients select.
    pub(crate) labels: &'a Labels,
    /// The tiers of clients that services need.
    pub(crate) tiers: &'a [Tier],
    /// The tiers of clients that services need which gateways reach through waypoints.
    pub(crate) ingress_tiers: &'a [Tier],
    /// It is a router or east-west gateway with a server of TLS mode AUTO_PASSTHROUGH.
    pub(crate) auto_passthrough: bool,
    /// The view of its outbound clusters, if it is a waypoint, or a router that gets only the clusters it sends to.
    pub(crate) reach: Option<&'a View>,
    /// Its access to Secrets, if its clusters may need some.
    pub(crate) credentials: Option<&'a CredentialClient>,
}

impl LayerFacts<'_> {
    /// The layers of outbound resources, the most specific first.
    #[must_use]
    pub(crate) fn outbound(&self, profile: &Text) -> Vec<Layer> {
        let layer = |view| Layer { view, profile: profile.clone() };
        outbound_views(self.proxy, self.labels).into_iter().map(layer).collect()
    }

    /// The layer of its inbound resources.
    #[must_use]
    pub(crate) fn inbound(&self, profile: &Text) -> Layer {
        Layer { view: self.workload.view(), profile: profile.clone() }
    }

    /// The view of the resources of its router or waypoint.
    #[must_use]
    pub(crate) fn router_view(&self) -> Option<View> {
        self.router.map(Router::view)
    }
}

/// The collections that [`LayerReader`] reads.
#[derive(Clone, Copy)]
pub(crate) struct LayerInputs<'a, 's> {
    /// The workload of each proxy.
    pub(crate) workload_names: &'a Collection<'s, ProxyKey, WorkloadName>,
    /// The router or waypoint that each proxy is a replica of.
    pub(crate) replicas: &'a Collection<'s, ProxyKey, Router>,
    /// Labels of proxies that selectors mention: one record.
    pub(crate) selected_labels: &'a Collection<'s, (), SelectedLabels>,
    /// Routers and east-west gateways with a server of TLS mode AUTO_PASSTHROUGH.
    pub(crate) auto_passthrough: &'a Collection<'s, ProxyKey, ()>,
    /// The facts of each proxy that its listeners are built from.
    pub(crate) listener_facts: &'a Collection<'s, ProxyKey, ListenerProfile>,
    /// Rare tiers that some service needs.
    pub(crate) rare_tiers: &'a Collection<'s, Tier, ()>,
    /// Tiers of clients that services need which gateways reach through waypoints.
    pub(crate) ingress_tiers: Option<&'a Collection<'s, Tier, ()>>,
    /// Views of routers and of waypoints that get only the clusters they send to.
    pub(crate) reach_views: [Option<&'a Collection<'s, ProxyKey, View>>; 2],
    /// Proxies whose clusters may need Secrets.
    pub(crate) credential_clients: &'a Collection<'s, ProxyKey, CredentialClient>,
}

/// Reads the [`LayerFacts`] of a proxy, inside a `derive`.
pub(crate) struct LayerReader {
    workloads: Dep<ProxyKey, WorkloadName>,
    replicas: Dep<ProxyKey, Router>,
    labels: Dep<(), SelectedLabels>,
    passing: Dep<ProxyKey, ()>,
    facts: Dep<ProxyKey, ListenerProfile>,
    tiers: Dep<Tier, ()>,
    ingress_tiers: Option<Dep<Tier, ()>>,
    reach: Vec<Dep<ProxyKey, View>>,
    credentials: Dep<ProxyKey, CredentialClient>,
}

impl LayerReader {
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, inputs: &LayerInputs<'_, 's>) -> Self {
        Self {
            workloads: deps.on(inputs.workload_names),
            replicas: deps.on(inputs.replicas),
            labels: deps.on(inputs.selected_labels),
            passing: deps.on(inputs.auto_passthrough),
            facts: deps.on(inputs.listener_facts),
            tiers: deps.on(inputs.rare_tiers),
            ingress_tiers: inputs.ingress_tiers.map(|tiers| deps.on(tiers)),
            reach: inputs.reach_views.into_iter().flatten().map(|views| deps.on(views)).collect(),
            credentials: deps.on(inputs.credential_clients),
        }
    }

    /// The layers of a proxy, without those of patch sets.
    pub(crate) fn layers(
        &self,
        cx: &Context,
        key: &ProxyKey,
        proxy: &Proxy,
    ) -> Option<BTreeMap<ResourceType, Vec<Layer>>> {
        let workload = cx.get(&self.workloads, key)?;
        let router = match proxy.proxy_type.is_router_or_waypoint() {
            true => Some(cx.get(&self.replicas, key)?),
            false => None,
        };
        let profile = cx.get(&self.facts, key)?;
        let labels = cx.get(&self.labels, &()).map(|labels| labels.outbound(proxy)).unwrap_or_default();
        let auto_passthrough = cx.get(&self.passing, key).is_some();
        let reach = self.reach.iter().find_map(|reach| cx.get(reach, key));
        let reach = reach.as_deref();
        let credentials = cx.get(&self.credentials, key);
        let is_needed = |tier: &Tier| !tier.is_rare() || cx.get(&self.tiers, tier).is_some();
        let tiers: Vec<Tier> = Tier::ALL.into_iter().filter(is_needed).collect();
        let tiers = &tiers;
        let ingress = self.ingress_tiers.as_ref().filter(|_| proxy.proxy_type == ProxyType::Router);
        let ingress = ingress.map(|tiers| cx.all(tiers)).unwrap_or_default();
        let ingress_tiers: Vec<Tier> = ingress.into_iter().map(|(tier, _)| tier).collect();
        let ingress_tiers = &ingress_tiers;
        let client = LayerFacts {
            proxy,
            workload: &workload,
            router: router.as_deref(),
            listener_profile: &profile,
            labels: &labels,
            tiers,
            ingress_tiers,
            auto_passthrough,
            reach,
            credentials: credentials.as_deref(),
        };
        Some(super::LAYERS.iter().map(|(resource_type, layers)| (*resource_type, layers(&client))).collect())
    }
}
