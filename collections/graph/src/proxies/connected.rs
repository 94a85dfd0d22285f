//! Connected proxies, with the data of their pods (S08).

use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep};
use sluice_envoy::endpoint::other_networks;
use sluice_model::{Labels, Locality, Node, ObjectKey, Pod, Proxy, ProxyKey, ProxyType, Text};

use super::sidecar_choice::{SidecarChoice, SidecarHeads};
use crate::inputs::ObjectCollections;
use crate::inputs::discovery::{Discovery, is_read};
use crate::options::GraphOptions;
use crate::registry::locations::{KnownLocation, LocationLookup};
use crate::registry::workloads::{pod_locality, with_topology};

/// The cluster of a proxy: the cluster that has authenticated it, else the cluster that it names, else the cluster of the
/// control plane.
pub(crate) fn cluster_of<'a>(proxy: &'a Proxy, own: &'a Text) -> &'a Text {
    let home = proxy.home_cluster();
    if home.is_empty() { own } else { home }
}

/// The pod of a proxy.
#[derive(Clone, Copy)]
pub(crate) struct ProxyPods {
    pub(super) pods: Dep<ObjectKey, Pod>,
}

impl ProxyPods {
    pub(super) fn get(self, cx: &Context, proxy: &Proxy, options: &GraphOptions) -> Option<(ObjectKey, Arc<Pod>)> {
        let cluster = cluster_of(proxy, &options.cluster);
        let key = ObjectKey::new(cluster.clone(), proxy.namespace.clone(), proxy.name.clone());
        let pod = cx.get(&self.pods, &key)?;
        Some((key, pod))
    }
}

/// Connected proxies, with the labels of their pod and the locality of its node, else those of their own node metadata;
/// with their Sidecar, the location that their shared resources are built for, and how they send to other networks.
/// Key: `ProxyKey`. From: `connected_proxies`, `pods`, `discovery`, `nodes`, `sidecars`, `mesh_config`, `locations`.
/// Changes when: a proxy connects, leaves or sends other node metadata; the labels of its pod or the locality of its
/// node change; its namespace starts or stops being selected; its Sidecar changes in a field that proxies depend on; its cluster or network becomes known.
/// Size: connected proxies. Rejects: none.
pub(crate) fn derive_proxies<'s>(
    connected: &Collection<'s, ProxyKey, Proxy>,
    objects: &ObjectCollections<'s>,
    discovery: &Discovery<'s>,
    sidecars: &SidecarHeads<'s>,
    locations: &Collection<'s, KnownLocation, ()>,
    options: &GraphOptions,
) -> Collection<'s, ProxyKey, Proxy> {
    let options = options.clone();
    connected.derive("proxies", |deps| {
        let sidecars = SidecarChoice::on(deps, sidecars);
        let locations = LocationLookup::on(deps, locations, &options);
        let (pods, discovery) = (ProxyPods { pods: deps.on(&objects.pods) }, deps.on(discovery));
        let nodes: Dep<ObjectKey, Node> = deps.on(&objects.nodes);
        move |cx, _, connected| {
            let mut proxy = connected.clone();
            let static_labels = std::mem::take(&mut proxy.static_labels);
            // Every proxy that captures DNS uses the addresses in statuses.
            proxy.dns_auto_allocate |= options.allocates_addresses;
            let found = pods.get(cx, connected, &options).filter(|(key, _)| is_read(cx, &discovery, key));
            if let Some((key, pod)) = &found {
                let node = cx.get(&nodes, &ObjectKey::new(key.cluster.clone(), "", pod.node.clone()));
                let locality = pod_locality(&pod.labels, node.as_deref());
                proxy.labels = merged(static_labels, &pod.labels);
                if !locality.is_empty() {
                    proxy.locality = locality;
                }
            } else if let locality = pod_locality(&proxy.labels, None)
                && locality != Locality::default()
            {
                proxy.locality = locality;
            }
            let node = if proxy.node_name.is_empty() { found.map(|(_, pod)| pod.node.clone()) } else { None };
            let node = node.unwrap_or_else(|| proxy.node_name.clone());
            proxy.labels = with_topology(&proxy.labels, &proxy.cluster, &proxy.locality, &node, &proxy.network);
            proxy.virtual_hosts &= options.virtual_hosts;
            let can_request = matches!(proxy.proxy_type, ProxyType::Sidecar | ProxyType::Router) && !proxy.grpc;
            proxy.on_demand_clusters &= options.on_demand_clusters && can_request;
            proxy.endpoints_by_locality &= options.endpoints_by_locality && can_request;
            proxy.sidecar = sidecars.get(cx, &proxy);
            proxy.location = Some(locations.of(cx, &proxy));
            proxy.other_networks = other_networks(&proxy, options.clusters.tunnels, options.sends_hbone);
            Some(proxy)
        }
    })
}

/// The labels of a proxy's pod, and those set for the proxy apart from it.
fn merged(mut set: Labels, of_pod: &Labels) -> Labels {
    if set.is_empty() {
        return of_pod.clone();
    }
    for (name, value) in of_pod.iter() {
        set.insert(name.clone(), value.clone());
    }
    set
}
