//! Clusters on demand (ODCDS), for proxies that support it.
//!
//! Such a proxy receives a cluster that only routes send to when the first request needs it. Envoy finds out that it lacks a cluster
//! only where a route sends to it. So the clusters that listeners refer to, or routes in another way, are sent to all of these proxies:
//! those of TCP, of mirrored requests, and of the services of providers and patches.

use std::collections::BTreeSet;

use bytes::Bytes;
use sluice_engine::{Collection, Key};
use sluice_envoy::references::{
    OUTBOUND_PREFIX, clusters_besides_destinations, clusters_of_host_besides_destinations, clusters_of_listener,
};
use sluice_model::{Layer, Resource, ResourceKey, ResourceType, SegmentKey, SlotValues, Text};

use super::Outputs;

/// Moves the clusters that only routes send to into layers of their own. It is called before virtual hosts are split from route tables.
pub(crate) fn split_clusters(outputs: &mut Outputs<'_>) {
    let Some(required) = derive_required(outputs) else { return };
    let parts: Vec<_> = outputs.resources.iter().map(|resources| derive_parts(resources, &required)).collect();
    for resources in &mut outputs.resources {
        let name = format!("{}/sent", resources.name());
        *resources = resources.filter(&name, |key, _| !is_apart(key));
    }
    outputs.resources.extend(parts);
}

/// Adds the layers of clusters on demand to those of a proxy.
pub(crate) fn add_layers(layers: &mut Vec<Layer>) {
    let with_own = |layer: Layer| {
        let own = is_of_clusters(&layer).then(|| layer.on_demand());
        std::iter::once(layer).chain(own)
    };
    *layers = std::mem::take(layers).into_iter().flat_map(with_own).collect();
}

/// The clusters of proxies that request them on demand.
/// Key: `ResourceKey`. From: the resources, `required_clusters`. Changes when: they do.
/// Size: clusters for such proxies. Rejects: none.
fn derive_parts<'s>(
    resources: &Collection<'s, ResourceKey, Resource>,
    required: &Collection<'s, Text, ()>,
) -> Collection<'s, ResourceKey, Resource> {
    resources.derive_many(&format!("{}/on-demand", resources.name()), |deps| {
        let required = deps.on(required);
        move |cx, key: &ResourceKey, resource: &Resource| {
            if !is_apart(key) {
                return Vec::new();
            }
            let is_sent = !key.name.starts_with(OUTBOUND_PREFIX) || cx.get(&required, &key.name).is_some();
            let layer = if is_sent { key.layer.clone() } else { key.layer.on_demand() };
            vec![(ResourceKey { layer, ..key.clone() }, resource.clone())]
        }
    })
}

/// The names of the clusters that listeners of such proxies refer to, and routes other than as the destination of a request.
/// Key: name. From: the listeners, routes and their segments. Changes when: they do.
/// Size: such names. Rejects: none.
fn derive_required<'s>(outputs: &Outputs<'s>) -> Option<Collection<'s, Text, ()>> {
    let of_resources = outputs.resources.iter().map(|resources| {
        derive_names(resources, |key: &ResourceKey, resource| match key.resource_type {
            ResourceType::Listener if is_of_listeners(&key.layer) => clusters_of_listener(&bytes(resource)),
            ResourceType::Route => clusters_besides_destinations(&bytes(resource)),
            _ => BTreeSet::new(),
        })
    });
    let of_segments = outputs.segments.iter().map(|segments| {
        derive_names(segments, |key: &SegmentKey, segment| match key.resource_type {
            ResourceType::Route if key.segment.is_empty() => clusters_besides_destinations(&bytes(segment)),
            ResourceType::Route => clusters_of_host_besides_destinations(&bytes(segment)),
            _ => BTreeSet::new(),
        })
    });
    let names: Vec<_> = of_resources.chain(of_segments).collect();
    let (first, others) = names.split_first()?;
    Some(first.union("required_clusters", others))
}

/// The distinct names in the records of a collection.
fn derive_names<'s, K: Key>(
    records: &Collection<'s, K, Resource>,
    names: impl Fn(&K, &Resource) -> BTreeSet<String> + 'static,
) -> Collection<'s, Text, ()> {
    let name = format!("{}/named-clusters", records.name());
    let index =
        records.index(&name, move |key, resource| names(key, resource).into_iter().map(|name| (Text::from(name), ())));
    index.distinct(&format!("{name}/distinct"))
}

fn bytes(resource: &Resource) -> Bytes {
    resource.bytes(&SlotValues::default()).unwrap_or_default()
}

/// Whether a resource is a cluster for proxies that request clusters on demand.
fn is_apart(key: &ResourceKey) -> bool {
    key.resource_type == ResourceType::Cluster && is_of_clusters(&key.layer)
}

/// Whether a layer of clusters is of such proxies. The text of the profile contains the flag; the profiles of layers of patch sets
/// contain the profile below.
fn is_of_clusters(layer: &Layer) -> bool {
    layer.profile.contains(r#""on_demand":true"#)
}

/// The same for a layer of listeners.
fn is_of_listeners(layer: &Layer) -> bool {
    layer.profile.contains(r#""on_demand_clusters":true"#)
}
