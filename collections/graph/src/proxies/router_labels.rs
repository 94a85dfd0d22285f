//! The labels of routers and waypoints that something selects: routers that differ only in other labels are one.

use std::collections::BTreeSet;

use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_model::gateway_api::Gateway as KubernetesGateway;
use sluice_model::{Gateway, Labels, ObjectKey, Proxy, ProxyType, Text, label};

use super::attached::{Attachments, Label};
use super::selected_labels::SelectedLabels;
use crate::options::GraphOptions;

/// The value of [`label::GATEWAY_NAME`] in place of one that nothing selects: some policies read only whether there is one. No
/// object has this name.
const OTHER_GATEWAY: &str = "*";

/// Labels of routers and waypoints that are selected besides those of policies and rules ([`SelectedLabels`]).
#[derive(Clone)]
pub(crate) struct RouterLabels<'s> {
    /// Labels in selectors of Gateways, by the namespace of the routers; empty is any.
    selectors: Index<'s, Text, (Text, Label), ()>,
    /// Gateways of the Gateway API, by namespace and name.
    gateways: Collection<'s, (Text, Text), ()>,
    /// Labels that Telemetries and extensions select.
    attached: Collection<'s, (Text, Label), ()>,
}

impl<'s> RouterLabels<'s> {
    /// Indexes them by what each router reads: a selector of another namespace, and another Gateway, do not matter to it.
    pub(crate) fn new(
        gateways: &Collection<'s, ObjectKey, Gateway>,
        declared: &Collection<'s, ObjectKey, KubernetesGateway>,
        attached: &Attachments<'s>,
        options: &GraphOptions,
    ) -> Self {
        let scoped = options.scope_gateways;
        let selectors = gateways.index("router_labels/selectors", move |_, gateway| {
            let namespace = if scoped { gateway.namespace.clone() } else { Text::default() };
            // A Gateway of the Gateway API has an owner instead of a selector.
            let selector = gateway.selector.iter().filter(|_| gateway.owner.is_none());
            let row = |(key, value): (&Text, &Text)| ((namespace.clone(), (key.clone(), value.clone())), ());
            selector.map(row).collect::<Vec<_>>()
        });
        let selectors = selectors.distinct("router_labels");
        let names = declared
            .index("router_labels/gateways-by-name", |key, _| [((key.namespace.clone(), key.name.clone()), ())]);
        Self {
            selectors: selectors.index("router_labels/by-namespace", |(namespace, _), ()| [(namespace.clone(), ())]),
            gateways: names.distinct("router_labels/gateways"),
            attached: attached.labels.clone(),
        }
    }
}

/// Looks up the labels of a router or waypoint that something selects, inside a `derive`.
pub(crate) struct RouterLabelLookup {
    selected: Dep<(), SelectedLabels>,
    selectors: IndexDep<Text, (Text, Label), ()>,
    gateways: Dep<(Text, Text), ()>,
    attached: Dep<(Text, Label), ()>,
}

impl RouterLabelLookup {
    /// Declares the look-ups.
    pub(crate) fn on<'s>(
        deps: &mut Deps<'s>,
        selected: &Collection<'s, (), SelectedLabels>,
        labels: &RouterLabels<'s>,
    ) -> Self {
        Self {
            selected: deps.on(selected),
            selectors: deps.by(&labels.selectors),
            gateways: deps.on(&labels.gateways),
            attached: deps.on(&labels.attached),
        }
    }

    /// The labels of a router or waypoint that something selects.
    pub(crate) fn get(&self, cx: &Context, proxy: &Proxy) -> Labels {
        let is_waypoint = proxy.proxy_type == ProxyType::Waypoint;
        let gateway = proxy.labels.get(label::GATEWAY_NAME);
        // Policies for the Gateway of a proxy do not rename its resources. A waypoint serves nothing under a made-up name.
        let keeps_gateway = gateway.is_some_and(|name| {
            is_waypoint || cx.get(&self.gateways, &(proxy.namespace.clone(), name.clone())).is_some()
        });
        let mut rows: Vec<((Text, Label), _)> = Vec::new();
        for namespace in BTreeSet::from([Text::default(), proxy.namespace.clone()]) {
            rows.extend(cx.by(&self.selectors, &namespace));
        }
        // Objects of any namespace with a service of it select a waypoint without a Gateway.
        let anywhere = is_waypoint && gateway.is_none();
        if anywhere {
            rows.extend(cx.all(&self.attached));
        }
        let mentioned: BTreeSet<Label> = rows.into_iter().map(|((_, label), _)| label).collect();
        let selected = cx.get(&self.selected, &());
        let selected = selected.map(|selected| selected.of_router(proxy, anywhere)).unwrap_or_default();
        let is_east_west = label::is_east_west(&proxy.labels);
        let keeps = |key: &Text, value: &Text| {
            (keeps_gateway && *key == label::GATEWAY_NAME)
                || (is_east_west && *key == label::GATEWAY_MANAGED)
                || selected.contains_key(key)
                || mentioned.contains(&(key.clone(), value.clone()))
        };
        let kept = proxy.labels.iter().filter_map(|(key, value)| match keeps(key, value) {
            true => Some((key.clone(), value.clone())),
            false => (*key == label::GATEWAY_NAME).then(|| (key.clone(), OTHER_GATEWAY.into())),
        });
        kept.collect()
    }
}
