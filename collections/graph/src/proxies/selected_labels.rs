//! The labels of proxies that selectors of rules and policies mention.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluice_engine::Collection;
use sluice_model::{Labels, Proxy, ProxyKey, Text};

use crate::inputs::ObjectCollections;

/// Labels that selectors mention, with their values. Proxies that differ only in other labels are treated alike.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct SelectedLabels {
    /// On the inbound side, by namespace; those of the root namespace apply to every namespace.
    inbound: BTreeMap<Text, BTreeSet<Label>>,
    /// On the outbound side, by the client's namespace; those under the empty name apply to every namespace.
    outbound: BTreeMap<Text, BTreeSet<Label>>,
    root: Text,
}

/// A label: key and value.
type Label = (Text, Text);

impl SelectedLabels {
    pub(crate) fn inbound(&self, proxy: &Proxy) -> Labels {
        project(proxy, [self.inbound.get(&proxy.namespace), self.inbound.get(&self.root)])
    }

    /// The labels of a router or waypoint that rules and policies select. `anywhere`: those of all namespaces.
    pub(crate) fn of_router(&self, proxy: &Proxy, anywhere: bool) -> Labels {
        let inbound = self.inbound.iter();
        let inbound = inbound.filter(|(of, _)| anywhere || **of == proxy.namespace || **of == self.root);
        let inbound = inbound.map(|(_, mentioned)| Some(mentioned));
        project(proxy, inbound.chain([self.outbound.get(&proxy.namespace), self.outbound.get("")]))
    }

    /// The labels of a client that rules visible to it select.
    pub(crate) fn outbound(&self, proxy: &Proxy) -> Labels {
        project(proxy, [self.outbound.get(&proxy.namespace), self.outbound.get("")])
    }
}

fn project<'a>(proxy: &Proxy, mentioned: impl IntoIterator<Item = Option<&'a BTreeSet<Label>>>) -> Labels {
    let mentioned: Vec<&BTreeSet<Label>> = mentioned.into_iter().flatten().collect();
    let labels = proxy.labels.iter().map(|(key, value)| (key.clone(), value.clone()));
    labels.filter(|label| mentioned.iter().any(|mentioned| mentioned.contains(label))).collect()
}

/// Labels that selectors mention.
/// Key: none, one record. From: `mesh_config` (its root namespace), `destination_rules`, `virtual_services`,
/// `peer_authentications`, `authorization_policies`, `request_authentications`.
/// Changes when: a selector mentions a label for the first time, or no longer.
/// Size: 1. Rejects: none.
pub(crate) fn derive_selected_labels<'s>(
    objects: &ObjectCollections<'s>,
    root_namespace: &Collection<'s, (), Text>,
) -> Collection<'s, (), SelectedLabels> {
    // (inbound, namespace, label): distinct, so that only the first and the last selector of a label cause a change.
    fn rows<'a>(
        inbound: bool,
        namespace: &Text,
        labels: impl IntoIterator<Item = (&'a Text, &'a Text)>,
    ) -> Vec<((bool, Text, Label), ())> {
        let labels = labels.into_iter().map(|(key, value)| (key.clone(), value.clone()));
        labels.collect::<BTreeSet<Label>>().into_iter().map(|label| ((inbound, namespace.clone(), label), ())).collect()
    }
    let rules = objects.destination_rules.index("selected_labels/destination_rules", |key, rule| {
        rows(false, &key.namespace, rule.workload_selector.iter().flatten())
    });
    let routes = objects.virtual_services.index("selected_labels/virtual_services", |_, service| {
        let http = service.http.iter().flat_map(|route| &route.matches).map(|found| &found.source_labels);
        let tls = service.tls.iter().flat_map(|route| &route.matches).map(|found| &found.source_labels);
        let tcp = service.tcp.iter().flat_map(|route| &route.matches).map(|found| &found.source_labels);
        rows(false, &Text::default(), http.chain(tls).chain(tcp).flatten())
    });
    let peers = objects
        .peer_authentications
        .index("selected_labels/peer_authentications", |key, policy| rows(true, &key.namespace, &policy.selector));
    let authorization =
        objects.authorization_policies.index("selected_labels/authorization_policies", |key, policy| {
            rows(true, &key.namespace, policy.attachment.labels())
        });
    let requests = objects.request_authentications.index("selected_labels/request_authentications", |key, policy| {
        rows(true, &key.namespace, policy.attachment.labels())
    });
    let rules = rules.distinct("selected_labels/of-destination-rules");
    let others = [
        routes.distinct("selected_labels/of-virtual-services"),
        peers.distinct("selected_labels/of-peer-authentications"),
        authorization.distinct("selected_labels/of-authorization-policies"),
        requests.distinct("selected_labels/of-request-authentications"),
    ];
    let all = rules.union("selected_labels/labels", &others);
    root_namespace.derive("selected_labels", |deps| {
        let all = deps.on(&all);
        move |cx, (), root| {
            let mut selected = SelectedLabels { root: root.clone(), ..SelectedLabels::default() };
            for ((inbound, namespace, label), _) in cx.all(&all) {
                let side = if inbound { &mut selected.inbound } else { &mut selected.outbound };
                side.entry(namespace).or_default().insert(label);
            }
            Some(selected)
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
            if proxy.sidecar.as_ref().is_some_and(|sidecar| sidecar.limits) {
                return None;
            }
            let labels = cx.get(&labels, &())?.outbound(proxy);
            (!labels.is_empty()).then(|| (proxy.namespace.clone(), labels))
        }
    });
    selected.index("selections/by-content", |_, selection| [(selection.clone(), ())]).distinct("selections")
}
