//! Virtual hosts as single resources (VHDS), for proxies that support it.
//!
//! The layers of these proxies have a profile of their own and the same segments as other layers. Each virtual host of
//! such a layer becomes a resource `TABLE/NAME`; the rest of the table becomes a route table that refers to VHDS. Thus
//! a change costs the virtual hosts it changes, not the table.

use sluice_engine::Collection;
use sluice_envoy::route::{by_virtual_host, renamed};
use sluice_model::{Resource, ResourceKey, ResourceType, Segment, SegmentKey, Text};

use super::Outputs;

/// Moves the route tables of such layers from the segments to the resources.
pub(crate) fn split_route_tables(outputs: &mut Outputs<'_>) {
    let parts: Vec<_> = outputs.segments.iter().map(derive_parts).collect();
    for segments in &mut outputs.segments {
        let name = format!("{}/whole", segments.name());
        *segments = segments.filter(&name, |key, _| !is_apart(key));
    }
    outputs.resources.extend(parts);
}

/// Virtual hosts by table and name, and the rest of each table.
/// Key: `ResourceKey`. From: the segments. Changes when: they do.
/// Size: segments of layers for proxies that use VHDS. Rejects: none.
fn derive_parts<'s>(segments: &Collection<'s, SegmentKey, Segment>) -> Collection<'s, ResourceKey, Resource> {
    segments.flat_map(&format!("{}/parts", segments.name()), |key, segment| {
        is_apart(key).then(|| {
            let layer = key.layer.clone();
            if key.segment.is_empty() {
                let key = ResourceKey { resource_type: ResourceType::Route, layer, name: key.name.clone() };
                let table = match segment {
                    Resource::Encoded(header) => Resource::Encoded(by_virtual_host(header)),
                    other => other.clone(),
                };
                return (key, table);
            }
            let name: Text = format!("{}/{}", key.name, key.segment).into();
            let host = match segment {
                Resource::Encoded(host) => Resource::Encoded(renamed(host, &name)),
                other => other.clone(),
            };
            (ResourceKey { resource_type: ResourceType::VirtualHost, layer, name }, host)
        })
    })
}

/// Whether a segment is of a layer for VHDS. The text of the profile contains the flag; the profiles of layers of patch
/// sets contain the profile below.
fn is_apart(key: &SegmentKey) -> bool {
    key.resource_type == ResourceType::Route && key.layer.profile.contains(r#""virtual_hosts":true"#)
}
