//! Routers and east-west gateways: the Gateways that select each, and their merged servers.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::Collection;
use sluice_model::{
    Gateway, GatewayOwner, Labels, ObjectKey, Protocol, Proxy, ProxyKey, ProxyType, Service, ServiceKey, Text, View,
    label, match_labels,
};

use super::{MergeOptions, MergedGateway, PortTarget, SelectingGateway, merge_gateways};
use crate::content_names::content_hash;
use crate::options::GraphOptions;
use crate::proxies::router_labels::{RouterLabelLookup, RouterLabels};
use crate::proxies::selected_labels::SelectedLabels;
use crate::proxies::targets::ServiceTarget;
use crate::proxies::workloads::{Workload, WorkloadName};

/// Label of a Service: a Gateway refers to its ports only by target port.
const NO_PORT_TRANSLATION: &str = "experimental.istio.io/disable-gateway-port-translation";

/// The facts of a router that its servers and routes depend on: replicas are equal.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct Router {
    /// Its workload.
    pub(crate) workload: WorkloadName,
    /// Its labels that something selects, see [`derive_replicas`].
    pub(crate) labels: Labels,
}

impl Router {
    /// Whether it is an east-west gateway, if it is a waypoint.
    #[must_use]
    pub(crate) fn is_east_west(&self) -> bool {
        label::is_east_west(&self.labels)
    }

    /// The view of the resources of this router. The key of each resource contains it, so it has a hash of the labels.
    #[must_use]
    pub(crate) fn view(&self) -> View {
        View::Workload(format!("{}/{}", self.workload.0, content_hash(&self.labels)).into())
    }
}

/// Connected routers and east-west gateways of ambient mode, and their merged Gateways.
#[derive(Clone)]
pub(crate) struct Routers<'s> {
    /// The router or waypoint that each proxy is a replica of.
    pub(crate) replicas: Collection<'s, ProxyKey, Router>,
    /// The router of each proxy.
    pub(crate) proxies: Collection<'s, ProxyKey, Router>,
    /// The merged Gateways of each distinct router.
    pub(crate) merged: Collection<'s, Router, MergedGateway>,
    /// Those with a server of TLS mode AUTO_PASSTHROUGH.
    pub(crate) auto_passthrough: Collection<'s, ProxyKey, ()>,
}

/// Inputs of the derivation of routers.
pub(crate) struct RouterInputs<'a, 's> {
    /// Connected proxies.
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    /// The router or waypoint that each proxy is a replica of, see [`derive_replicas`].
    pub(crate) replicas: Collection<'s, ProxyKey, Router>,
    /// Workloads.
    pub(crate) workloads: &'a Collection<'s, WorkloadName, Workload>,
    /// Services.
    pub(crate) services: &'a Collection<'s, ServiceKey, Service>,
    /// Gateways of every kind.
    pub(crate) gateways: &'a Collection<'s, ObjectKey, Gateway>,
}

/// Derives connected routers and their merged Gateways.
#[must_use]
pub(crate) fn derive_routers<'s>(inputs: &RouterInputs<'_, 's>, options: &GraphOptions) -> Routers<'s> {
    let proxies = derive_proxies(inputs, options);
    let merged = derive_merged_gateways(inputs, &proxies, options);
    let auto_passthrough = proxies.derive("routers/auto-passthrough", |d| {
        let merged = d.on(&merged);
        move |cx, _, router| cx.get(&merged, router).filter(|merged| merged.has_auto_passthrough()).map(|_| ())
    });
    Routers { replicas: inputs.replicas.clone(), proxies, merged, auto_passthrough }
}

/// The router or waypoint that each proxy is a replica of.
/// Key: `ProxyKey`. From: `proxies`, `workload_names`, `selected_labels`, `router_labels`.
/// Changes when: a router or waypoint connects or leaves, its services change, or a label of it that is selected.
/// Size: connected routers and waypoints. Rejects: none.
pub(crate) fn derive_replicas<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    workload_names: &Collection<'s, ProxyKey, WorkloadName>,
    selected: &Collection<'s, (), SelectedLabels>,
    labels: &RouterLabels<'s>,
) -> Collection<'s, ProxyKey, Router> {
    let replicas = proxies.filter("routers/replica-proxies", |_, proxy| proxy.proxy_type.is_router_or_waypoint());
    replicas.derive("routers/replicas", |deps| {
        let workloads = deps.on(workload_names);
        let labels = RouterLabelLookup::on(deps, selected, labels);
        move |cx, key, proxy| {
            let workload = (*cx.get(&workloads, key)?).clone();
            Some(Router { workload, labels: labels.get(cx, proxy) })
        }
    })
}

/// Connected routers, with several networks also east-west gateways: they are waypoints whose Gateways may have servers
/// besides that for HBONE.
/// Key: `ProxyKey`. From: `proxies`, `routers/replicas`.
/// Changes when: a router connects or leaves, its labels or its services change.
/// Size: connected routers. Rejects: none.
fn derive_proxies<'s>(inputs: &RouterInputs<'_, 's>, options: &GraphOptions) -> Collection<'s, ProxyKey, Router> {
    let multi_network = options.clusters.tunnels.multi_network;
    let routers = inputs.proxies.filter("routers/proxies", move |_, proxy| match proxy.proxy_type {
        ProxyType::Router => true,
        ProxyType::Waypoint => multi_network && label::is_east_west(&proxy.labels),
        ProxyType::Sidecar | ProxyType::Ztunnel | ProxyType::Agentgateway => false,
    });
    routers.derive("routers", |deps| {
        let replicas = deps.on(&inputs.replicas);
        move |cx, key, _| cx.get(&replicas, key).map(|router| (*router).clone())
    })
}

/// Whether a workload's service makes it a router of a Gateway of the Gateway API.
fn is_of(owner: &GatewayOwner, target: &ServiceTarget) -> bool {
    target.service.namespace == owner.namespace && owner.services.contains(&target.service.host)
}

/// If some Gateways are managed ones of the Gateway API: leaves out Istio Gateways of other namespaces than theirs, so that a
/// namespace cannot use the certificates of another one.
fn retain_of_managed(selecting: &mut Vec<Arc<Gateway>>) {
    let is_managed = |gateway: &&Arc<Gateway>| {
        gateway.owner.as_ref().is_some_and(|owner: &GatewayOwner| !owner.service_account.is_empty())
    };
    let namespaces: BTreeSet<Text> =
        selecting.iter().filter(is_managed).map(|gateway| gateway.namespace.clone()).collect();
    if !namespaces.is_empty() {
        selecting.retain(|gateway| gateway.owner.is_some() || namespaces.contains(&gateway.namespace));
    }
}

/// The merged Gateways of each distinct router.
/// Key: `Router`. From: `routers`, `gateways`, `workloads`, `services`.
/// Changes when: any Gateway does, or the ports of a service of the router.
/// Size: distinct routers. Rejects: none; servers that cannot be merged are omitted.
fn derive_merged_gateways<'s>(
    inputs: &RouterInputs<'_, 's>,
    routers: &Collection<'s, ProxyKey, Router>,
    options: &GraphOptions,
) -> Collection<'s, Router, MergedGateway> {
    let distinct = routers.index("routers/by-content", |_, router| [(router.clone(), ())]).distinct("routers/distinct");
    let (scoped, strict) = (options.scope_gateways, options.strict_gateway_merging);
    let merge = MergeOptions { http3: options.http3 };
    distinct.derive("merged_gateways", |d| {
        let gateways = d.on(inputs.gateways);
        let workloads = d.on(inputs.workloads);
        let services = d.on(inputs.services);
        move |cx, router, ()| {
            let workload = cx.get(&workloads, &router.workload)?;
            let mut selecting: Vec<_> = cx.all(&gateways).into_iter().map(|(_, gateway)| gateway).collect();
            selecting.retain(|gateway| !scoped || gateway.namespace == workload.namespace);
            selecting.retain(|gateway| match &gateway.owner {
                Some(owner) => workload.targets.iter().any(|target| is_of(owner, target)),
                None => match_labels(&gateway.selector, &router.labels),
            });
            if strict {
                retain_of_managed(&mut selecting);
            }
            selecting.sort_by(|a, b| (a.created, &a.name, &a.namespace).cmp(&(b.created, &b.name, &b.namespace)));
            let translates = |key: &ServiceKey| {
                let service: Option<Arc<Service>> = cx.get(&services, key);
                service.is_none_or(|service| !service.labels.contains_key(NO_PORT_TRANSLATION))
            };
            let port = |target: &ServiceTarget| {
                let target_port = u16::try_from(target.target_port).ok()?;
                let udp = target.port.protocol == Protocol::Udp;
                Some(PortTarget { port: target.port.port, target: target_port, udp })
            };
            let translated = workload.targets.iter().filter(|target| translates(&target.service));
            let targets: Vec<PortTarget> = translated.filter_map(port).collect();
            let selecting = selecting.iter().map(|gateway| SelectingGateway {
                gateway,
                targets: match &gateway.owner {
                    None => targets.clone(),
                    Some(owner) => {
                        workload.targets.iter().filter(|target| is_of(owner, target)).filter_map(port).collect()
                    }
                },
            });
            Some(merge_gateways(&workload.namespace, selecting, merge))
        }
    })
}
