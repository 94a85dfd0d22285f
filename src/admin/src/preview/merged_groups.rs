//! Groups of proxies that see the same differences, although they have different layers: layers without any of the changed names do
//! not matter.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_engine::Snapshot;
use sluice_model::{Layer, ResourceType};

use super::concerned::ProxyGroup;
use super::parts::{ChangedParts, OutputsByType};

/// A type, with the layers of a group that the change writes.
type WrittenLayers = (ResourceType, Vec<Layer>);

/// Merges groups whose layers do not change and which have the same relevant layers.
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
        let layers = relevance.layers(&group);
        let (kind, before, after) = (group.kind, layers.clone(), layers.clone());
        let known = merged.entry((kind, layers));
        known.or_insert_with(|| ProxyGroup { kind, before, after, proxies: Vec::new() }).proxies.extend(group.proxies);
    }
    separate.extend(merged.into_values());
    separate
}

struct Relevance<'a> {
    outputs: &'a OutputsByType,
    after: &'a Snapshot,
    changed: &'a ChangedParts,
    /// Whether a layer has one of the names that the change writes in others.
    known: BTreeMap<(WrittenLayers, Layer), bool>,
}

impl Relevance<'_> {
    /// The layers that the change writes, and those that have one of the written names, in their order.
    fn layers(&mut self, group: &ProxyGroup) -> Arc<[Layer]> {
        let is_written = |layer: &&Layer| self.changed.contains_key(&(group.kind, (*layer).clone()));
        let written: WrittenLayers = (group.kind, group.after.iter().filter(is_written).cloned().collect());
        group
            .after
            .iter()
            .filter(|layer| written.1.contains(layer) || self.has_written(&written, layer))
            .cloned()
            .collect()
    }

    fn has_written(&mut self, written: &WrittenLayers, layer: &Layer) -> bool {
        let key = (written.clone(), layer.clone());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let (kind, layers) = written;
        let names: Vec<_> = layers.iter().filter_map(|layer| self.changed.get(&(*kind, layer.clone()))).collect();
        let has_any =
            self.outputs.has_any(self.after, *kind, layer, |name| names.iter().any(|names| names.contains_key(name)));
        self.known.insert(key, has_any);
        has_any
    }
}
