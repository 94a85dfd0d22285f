//! Scopes: which layers of each type a proxy gets.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps};
use sluice_envoy::endpoint::Tier;
use sluice_envoy::listener::Facts;
use sluice_model::{Labels, Layer, Proxy, ProxyKey, ProxyType, ResourceType, Scope, Text, View};

use crate::outputs::patched::PatchedLayers;
use crate::proxies::SelectedLabels;
use crate::secrets::SecretLayer;
use crate::{Spine, WorkloadName, outputs, sidecars};

/// What the layers of a proxy depend on.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// The proxy.
    pub proxy: &'a Proxy,
    /// The workload it is a replica of.
    pub workload: &'a WorkloadName,
    /// What its listeners are written from.
    pub facts: &'a Facts,
    /// Its labels, as far as a rule for clients selects on them.
    pub labels: &'a Labels,
    /// The tiers of clients that services may tell it apart by.
    pub tiers: &'a [Tier],
    /// It is a router that routes to clusters by server name.
    pub auto_passthrough: bool,
    /// The view of its clusters, if it is a router that gets those of what it sends to only.
    pub reach: Option<&'a View>,
}

impl Client<'_> {
    /// The layers of outbound resources, most special first: its selection if any rule selects on its labels, its
    /// namespace, everyone; if it has a Sidecar that limits them, that one's alone.
    #[must_use]
    pub fn outbound(&self, profile: &Text) -> Vec<Layer> {
        let layer = |view| Layer { view, profile: profile.clone() };
        if let Some(sidecar) = self.proxy.sidecar.as_ref().filter(|sidecar| sidecar.limits) {
            let all = sidecars::view(&sidecar.scope);
            let selected = (!self.labels.is_empty())
                .then(|| View::Sidecar { scope: Arc::new(sidecar.scope.clone()), labels: self.labels.clone() });
            return selected.into_iter().chain([all]).map(layer).collect();
        }
        let namespace = &self.proxy.namespace;
        let selected = (!self.labels.is_empty())
            .then(|| View::Selected { namespace: namespace.clone(), labels: self.labels.clone() });
        selected.into_iter().chain([View::Namespace(namespace.clone()), View::Base]).map(layer).collect()
    }

    /// The layer of its own inbound side.
    #[must_use]
    pub fn inbound(&self, profile: &Text) -> Layer {
        Layer { view: self.workload.view(), profile: profile.clone() }
    }
}

/// The canonical text of a profile: the name that layers know it by.
pub fn profile_text<P: Serialize>(profile: &P) -> Text {
    serde_json::to_string(profile).unwrap_or_default().into()
}

/// Reads what [`Client`]s are made of, inside a `derive`.
struct Clients {
    workloads: Dep<ProxyKey, WorkloadName>,
    labels: Dep<(), SelectedLabels>,
    passing: Dep<ProxyKey, ()>,
    facts: Dep<ProxyKey, Facts>,
    tiers: Dep<Tier, ()>,
    reach: Option<Dep<ProxyKey, View>>,
}

impl Clients {
    fn on<'s>(deps: &mut Deps<'s>, spine: &Spine<'s>, labels: &Collection<'s, (), SelectedLabels>) -> Self {
        Self {
            workloads: deps.on(&spine.workload_names),
            labels: deps.on(labels),
            passing: deps.on(&spine.routers.auto_passthrough),
            facts: deps.on(&spine.attached.facts),
            tiers: deps.on(&spine.rare_tiers.needed),
            reach: spine.reach.as_ref().map(|reach| deps.on(&reach.views)),
        }
    }

    /// The layers of a proxy, without those of patches.
    fn layers(&self, cx: &Context, key: &ProxyKey, proxy: &Proxy) -> Option<BTreeMap<ResourceType, Vec<Layer>>> {
        let workload = cx.get(&self.workloads, key)?;
        let facts = cx.get(&self.facts, key)?;
        let labels = cx.get(&self.labels, &()).map(|labels| labels.outbound(proxy)).unwrap_or_default();
        let auto_passthrough = proxy.proxy_type == ProxyType::Router && cx.get(&self.passing, key).is_some();
        let reach = self.reach.as_ref().and_then(|reach| cx.get(reach, key));
        let reach = reach.as_deref();
        let is_needed = |tier: &Tier| !tier.is_rare() || cx.get(&self.tiers, tier).is_some();
        let tiers: Vec<Tier> = Tier::ALL.into_iter().filter(is_needed).collect();
        let tiers = &tiers;
        let client =
            Client { proxy, workload: &workload, facts: &facts, labels: &labels, tiers, auto_passthrough, reach };
        Some(outputs::LAYERS.iter().map(|(resource_type, layers)| (*resource_type, layers(&client))).collect())
    }
}

/// What each proxy gets: for each type its layers in order, and what it fills into templates.
/// Key: `ProxyKey`. From: `proxies`, `workload_names`, `listener_facts`, `selected_labels`, `rare_tiers`,
/// `routers/auto-passthrough`, `proxy_patches`, `secret_access`, `pull_access`.
/// Changes when: the proxy's own facts do, the services it is part of, what is attached to it, the labels that rules
/// select on, the rare tiers that are needed, or its patches; for a router also its first or last server of TLS mode
/// AUTO_PASSTHROUGH.
/// Size: connected proxies. Rejects: none.
pub(crate) fn derive_scopes<'s>(
    spine: &Spine<'s>,
    labels: &Collection<'s, (), SelectedLabels>,
) -> Collection<'s, ProxyKey, Scope> {
    spine.proxies.derive("scopes", |deps| {
        let clients = Clients::on(deps, spine, labels);
        let patches = deps.on(&spine.patches.of_proxies);
        let (access, pulls) = (deps.on(&spine.secrets.access), deps.on(&spine.pulls));
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

/// Which patch sets change what of which layers.
/// Key: type and layer. From: what `scopes` are from.
/// Changes when: the first proxy with a set and layer connects or the last leaves.
/// Size: layers of proxies with patches. Rejects: none.
pub(crate) fn derive_patched_layers<'s>(
    spine: &Spine<'s>,
    labels: &Collection<'s, (), SelectedLabels>,
) -> PatchedLayers<'s> {
    let of_proxies = spine.patches.of_proxies.derive("proxy_patched_layers", |deps| {
        let clients = Clients::on(deps, spine, labels);
        let proxies = deps.on(&spine.proxies);
        move |cx, key, set| {
            let proxy = cx.get(&proxies, key)?;
            let layers = clients.layers(cx, key, &proxy)?.into_iter();
            let concerned: BTreeMap<ResourceType, Vec<Layer>> = layers.filter(|(of, _)| set.concerns(*of)).collect();
            Some((set.name(), concerned))
        }
    });
    let distinct = of_proxies.index("patched_layers/by-content", |_, (set, layers)| {
        let each = |(of, layers): (&ResourceType, &Vec<Layer>)| {
            let of = *of;
            layers.iter().map(move |layer| ((of, layer.clone(), set.clone()), ())).collect::<Vec<_>>()
        };
        layers.iter().flat_map(each).collect::<Vec<_>>()
    });
    let by_layer = distinct
        .distinct("patched_layers/sets")
        .index("patched_layers/by-layer", |(of, layer, set), ()| [((*of, layer.clone()), set.clone())]);
    by_layer.group("patched_layers", |_, sets| Some(sets.iter().map(|(_, set)| (*set).clone()).collect()))
}

/// The selections in use: distinct [`View::Selected`] of connected proxies, by namespace.
/// Key: namespace and labels. From: `proxies`, `selected_labels`.
/// Changes when: the first proxy with such labels connects or the last leaves.
/// Size: distinct combinations of selected labels; none while nothing selects. Rejects: none.
pub(crate) fn derive_selections<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    labels: &Collection<'s, (), SelectedLabels>,
) -> Collection<'s, (Text, Labels), ()> {
    let selected = proxies.derive("proxy_selections", |deps| {
        let labels = deps.on(labels);
        move |cx, _, proxy| {
            if proxy.sidecar.as_ref().is_some_and(|sidecar| sidecar.limits) {
                return None;
            }
            let labels = cx.get(&labels, &())?.outbound(proxy);
            (!labels.is_empty()).then(|| (proxy.namespace.clone(), labels))
        }
    });
    selected.index("selections/by-content", |_, selection| [(selection.clone(), ())]).distinct("selections")
}
