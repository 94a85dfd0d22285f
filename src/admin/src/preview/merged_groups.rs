//! Groups of proxies that see the same differences, although they have different layers: for a name, only the layers that have it
//! matter. A layer of each proxy beside a layer that all share does not multiply the work.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_engine::Snapshot;
use sluice_model::{Layer, ResourceType};

use super::concerned::ProxyGroup;
use super::parts::{ChangedParts, OutputsByType};

/// Splits groups whose layers do not change by layers that have no written name in common, and merges those with the same layers.
pub(super) fn merge(
    groups: Vec<ProxyGroup>,
    outputs: &OutputsByType,
    after: &Snapshot,
    changed: &ChangedParts,
) -> Vec<ProxyGroup> {
    let mut relevance = Relevance { outputs, after, changed, known: BTreeMap::new() };
    let mut merged: BTreeMap<(ResourceType, Arc<[Layer]>), ProxyGroup> = BTreeMap::new();
    let mut separate = Vec::new();
    for group in groups {
        if group.has_other_layers() {
            separate.push(group);
            continue;
        }
        for layers in relevance.split(&group) {
            let (kind, before, after) = (group.kind, layers.clone(), layers.clone());
            let known = merged.entry((kind, layers));
            let known = known.or_insert_with(|| ProxyGroup { kind, before, after, proxies: Vec::new() });
            known.proxies.extend(group.proxies.iter().cloned());
        }
    }
    separate.extend(merged.into_values());
    separate
}

struct Relevance<'a> {
    outputs: &'a OutputsByType,
    after: &'a Snapshot,
    changed: &'a ChangedParts,
    /// Whether a layer, the last one, has one of the names that the change writes in another.
    known: BTreeMap<(ResourceType, Layer, Layer), bool>,
}

impl Relevance<'_> {
    /// The layers of a group that the change writes, each with the others that have one of its written names. Written layers with a
    /// name in common are together. All are in the order of the group.
    fn split(&mut self, group: &ProxyGroup) -> Vec<Arc<[Layer]>> {
        let mut parts: Vec<Vec<bool>> = Vec::new();
        let written: Vec<bool> = group.after.iter().map(|layer| self.is_written(group.kind, layer)).collect();
        for (layer, _) in group.after.iter().zip(&written).filter(|(_, is_written)| **is_written) {
            let has_name = |other| other == layer || self.has_written(group.kind, layer, other);
            let mut part: Vec<bool> = group.after.iter().map(has_name).collect();
            let shares_written = |other: &Vec<bool>| {
                part.iter().zip(other).zip(&written).any(|((one, other), is_written)| *one && *other && *is_written)
            };
            let (same, others): (Vec<_>, Vec<_>) = std::mem::take(&mut parts).into_iter().partition(shares_written);
            for other in same {
                part.iter_mut().zip(other).for_each(|(one, other)| *one |= other);
            }
            parts = others;
            parts.push(part);
        }
        let layers_of = |part: Vec<bool>| {
            group.after.iter().zip(part).filter(|(_, is_in)| *is_in).map(|(layer, _)| layer.clone()).collect()
        };
        parts.into_iter().map(layers_of).collect()
    }

    fn is_written(&self, kind: ResourceType, layer: &Layer) -> bool {
        self.changed.contains_key(&(kind, layer.clone()))
    }

    fn has_written(&mut self, kind: ResourceType, written: &Layer, layer: &Layer) -> bool {
        let key = (kind, written.clone(), layer.clone());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let names = self.changed.get(&(kind, written.clone()));
        let has_any = names.is_some_and(|names| self.outputs.has_any(self.after, kind, layer, names));
        self.known.insert(key, has_any);
        has_any
    }
}
