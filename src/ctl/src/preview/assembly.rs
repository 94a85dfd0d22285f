//! The resources of one scope: whole ones, and those assembled from segments.

use std::collections::BTreeMap;

use sluice_engine::{Key, Published, Snapshot};
use sluice_graph::Handles;
use sluice_model::{Resource, ResourceKey, ResourceType, Scope, SegmentKey, Text};

/// Encoded resources by name.
pub(super) type ResourceSet = BTreeMap<Text, Vec<u8>>;

/// All resources of a type that a scope contains. For each name, the first layer decides.
pub(super) fn assemble(snapshot: &Snapshot, handles: &Handles, scope: &Scope, kind: ResourceType) -> ResourceSet {
    let layers = scope.layers.get(&kind).map_or(&[][..], |layers| &**layers);
    let mut whole: BTreeMap<Text, Resource> = BTreeMap::new();
    let mut segments: BTreeMap<Text, BTreeMap<Text, Resource>> = BTreeMap::new();
    for layer in layers {
        let is_here = |key: &ResourceKey| key.resource_type == kind && key.layer == *layer;
        for (key, resource) in rows(snapshot, &handles.resources, is_here) {
            whole.entry(key.name.clone()).or_insert(resource);
        }
        let is_here = |key: &SegmentKey| key.resource_type == kind && key.layer == *layer;
        for (key, segment) in rows(snapshot, &handles.segments, is_here) {
            segments.entry(key.name.clone()).or_default().entry(key.segment.clone()).or_insert(segment);
        }
    }
    let mut resources: ResourceSet = BTreeMap::new();
    for (name, segments) in segments {
        resources.extend(join(kind, &segments, scope).map(|bytes| (name, bytes)));
    }
    for (name, resource) in whole {
        match resource.bytes(&scope.slots) {
            Some(bytes) => resources.insert(name, bytes.to_vec()),
            None => resources.remove(&name),
        };
    }
    resources
}

fn rows<K: Key>(
    snapshot: &Snapshot,
    collections: &[Published<K, Resource>],
    is_wanted: impl Fn(&K) -> bool,
) -> Vec<(K, Resource)> {
    let rows = collections.iter().flat_map(|collection| snapshot.iter(collection));
    rows.filter(|(key, _)| is_wanted(key)).map(|(key, resource)| (key.clone(), resource.clone())).collect()
}

/// A message from its own part, which is the segment without a name, and the elements of its repeated field.
fn join(kind: ResourceType, segments: &BTreeMap<Text, Resource>, scope: &Scope) -> Option<Vec<u8>> {
    // `NameTable.table` and `RouteConfiguration.virtual_hosts`.
    let field: u8 = if kind == ResourceType::NameTable { 1 } else { 2 };
    let mut message = segments.get("")?.bytes(&scope.slots)?.to_vec();
    for (_, segment) in segments.iter().filter(|(name, _)| !name.is_empty()) {
        if let Some(bytes) = segment.bytes(&scope.slots) {
            message.push(field << 3 | 2);
            put_varint(bytes.len(), &mut message);
            message.extend_from_slice(&bytes);
        }
    }
    Some(message)
}

fn put_varint(mut value: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_seven_bits_a_byte() {
        let encoded = |value| {
            let mut out = Vec::new();
            put_varint(value, &mut out);
            out
        };
        assert_eq!(encoded(5), [5]);
        assert_eq!(encoded(300), [0xac, 0x02]);
    }
}
