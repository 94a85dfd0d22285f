//! Scopes: which layers of each type a proxy gets.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::listener::Facts;
use sluice_model::{Labels, Layer, Proxy, ProxyKey, ProxyType, ResourceType, Scope, Text, View};

use crate::proxies::SelectedLabels;
use crate::{Spine, WorkloadName, outputs};

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
    /// It is a router that routes to clusters by server name.
    pub auto_passthrough: bool,
}

impl Client<'_> {
    /// The layers of outbound resources, most special first: its selection if any rule selects on its labels, its
    /// namespace, everyone.
    #[must_use]
    pub fn outbound(&self, profile: &Text) -> Vec<Layer> {
        let layer = |view| Layer { view, profile: profile.clone() };
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

/// What each proxy gets: for each type its layers in order, and what it fills into templates.
/// Key: `ProxyKey`. From: `proxies`, `workload_names`, `listener_facts`, `selected_labels`, `routers/auto-passthrough`.
/// Changes when: the proxy's own facts do, the services it is part of, what is attached to it, or the labels that rules
/// select on; for a router also its first or last server of TLS mode AUTO_PASSTHROUGH.
/// Size: connected proxies. Rejects: none.
pub(crate) fn derive_scopes<'s>(
    spine: &Spine<'s>,
    labels: &Collection<'s, (), SelectedLabels>,
) -> Collection<'s, ProxyKey, Scope> {
    spine.proxies.derive("scopes", |deps| {
        let (workloads, labels) = (deps.on(&spine.workload_names), deps.on(labels));
        let passing = deps.on(&spine.routers.auto_passthrough);
        let facts = deps.on(&spine.attached.facts);
        move |cx, key, proxy| {
            let workload = cx.get(&workloads, key)?;
            let facts = cx.get(&facts, key)?;
            let labels = cx.get(&labels, &()).map(|labels| labels.outbound(proxy)).unwrap_or_default();
            let auto_passthrough = proxy.proxy_type == ProxyType::Router && cx.get(&passing, key).is_some();
            let client = Client { proxy, workload: &workload, facts: &facts, labels: &labels, auto_passthrough };
            let layers: BTreeMap<ResourceType, Vec<Layer>> =
                outputs::LAYERS.iter().map(|(resource_type, layers)| (*resource_type, layers(&client))).collect();
            Some(Scope { layers, slots: sluice_envoy::identity_slots(proxy) })
        }
    })
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
            let labels = cx.get(&labels, &())?.outbound(proxy);
            (!labels.is_empty()).then(|| (proxy.namespace.clone(), labels))
        }
    });
    selected.index("selections/by-content", |_, selection| [(selection.clone(), ())]).distinct("selections")
}
