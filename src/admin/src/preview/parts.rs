//! What proxies with the same layers see under a name: a whole resource, or segments of one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use serde_json::Value;
use sluice_engine::{Published, Snapshot};
use sluice_graph::Handles;
use sluice_model::{Layer, Resource, ResourceKey, ResourceType, SegmentKey, SlotValues, Text};
use sluice_xds_protocol::segment_field;
use sluice_xds_protocol::wire::put_field;

use crate::config_dump::message_json;

/// Names that are looked up one by one. Of more, those of the layer are compared.
const MAX_LOOKED_UP: usize = 16;

/// Names with their segments.
pub(super) type Names = BTreeMap<Text, BTreeSet<Text>>;

/// Names and segments that a change writes, by type and layer.
pub(super) type ChangedParts = BTreeMap<(ResourceType, Layer), Names>;

/// The outputs that can have keys of each type, so that a look-up does not try all of them.
pub(super) struct OutputsByType {
    resources: BTreeMap<ResourceType, Vec<Published<ResourceKey, Resource>>>,
    segments: BTreeMap<ResourceType, Vec<Published<SegmentKey, Resource>>>,
}

impl OutputsByType {
    /// By the keys that are in one of the snapshots.
    pub(super) fn new(handles: &Handles, snapshots: &[&Snapshot]) -> Self {
        let mut by_type = Self { resources: BTreeMap::new(), segments: BTreeMap::new() };
        for kind in ResourceType::ALL {
            let first = ResourceKey { resource_type: kind, layer: Layer::default(), name: Text::default() };
            let has_type = |of: &&Published<ResourceKey, Resource>| {
                snapshots.iter().any(|snapshot| {
                    snapshot.iter_from(of, first.clone()).next().is_some_and(|(key, _)| key.resource_type == kind)
                })
            };
            by_type.resources.insert(kind, handles.resources.iter().filter(has_type).cloned().collect());
            let first = SegmentKey {
                resource_type: kind,
                layer: Layer::default(),
                name: Text::default(),
                segment: Text::default(),
            };
            let has_type = |of: &&Published<SegmentKey, Resource>| {
                snapshots.iter().any(|snapshot| {
                    snapshot.iter_from(of, first.clone()).next().is_some_and(|(key, _)| key.resource_type == kind)
                })
            };
            by_type.segments.insert(kind, handles.segments.iter().filter(has_type).cloned().collect());
        }
        by_type
    }

    pub(super) fn segments_of(&self, kind: ResourceType) -> &[Published<SegmentKey, Resource>] {
        self.segments.get(&kind).map_or(&[], Vec::as_slice)
    }

    /// The names that a layer has, those of segments with each of their segments.
    fn keys<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        kind: ResourceType,
        layer: &'a Layer,
    ) -> impl Iterator<Item = (&'a Text, Option<&'a Text>)> {
        let first = ResourceKey { resource_type: kind, layer: layer.clone(), name: Text::default() };
        let resources = self.resources.get(&kind).into_iter().flatten().flat_map(move |of| {
            let keys = snapshot.iter_from(of, first.clone()).map(|(key, _)| key);
            keys.take_while(move |key| key.resource_type == kind && key.layer == *layer).map(|key| (&key.name, None))
        });
        let (name, segment) = (Text::default(), Text::default());
        let first = SegmentKey { resource_type: kind, layer: layer.clone(), name, segment };
        let segments = self.segments_of(kind).iter().flat_map(move |of| {
            let keys = snapshot.iter_from(of, first.clone()).map(|(key, _)| key);
            let keys = keys.take_while(move |key| key.resource_type == kind && key.layer == *layer);
            keys.map(|key| (&key.name, Some(&key.segment)))
        });
        resources.chain(segments)
    }

    /// The names that a layer has, with their segments.
    pub(super) fn names(&self, snapshot: &Snapshot, kind: ResourceType, layer: &Layer) -> Names {
        let mut names = Names::new();
        for (name, segment) in self.keys(snapshot, kind, layer) {
            names.entry(name.clone()).or_default().extend(segment.cloned());
        }
        names
    }

    /// Whether a layer has a resource or segments of one of some names.
    pub(super) fn has_any(&self, snapshot: &Snapshot, kind: ResourceType, layer: &Layer, names: &Names) -> bool {
        match names.len() < MAX_LOOKED_UP {
            true => names.keys().any(|name| self.has(snapshot, kind, layer, name)),
            false => self.keys(snapshot, kind, layer).any(|(name, _)| names.contains_key(name)),
        }
    }

    /// Whether a layer has a resource or segments of this name.
    fn has(&self, snapshot: &Snapshot, kind: ResourceType, layer: &Layer, name: &Text) -> bool {
        let key = ResourceKey { resource_type: kind, layer: layer.clone(), name: name.clone() };
        if self.resources.get(&kind).into_iter().flatten().any(|of| snapshot.get(of, &key).is_some()) {
            return true;
        }
        let (segment, of_name) =
            (Text::default(), |key: &SegmentKey| key.resource_type == kind && key.layer == *layer && key.name == *name);
        let first = SegmentKey { resource_type: kind, layer: layer.clone(), name: name.clone(), segment };
        self.segments_of(kind)
            .iter()
            .any(|of| snapshot.iter_from(of, first.clone()).next().is_some_and(|(key, _)| of_name(key)))
    }

    /// What these layers have under a name, as the store resolves it: the first layer that has or hides it decides, for segments one
    /// by one. Of a resource of segments, only these and the unnamed one are read.
    pub(super) fn resolve(
        &self,
        snapshot: &Snapshot,
        kind: ResourceType,
        layers: &[Layer],
        name: &Text,
        segments: &BTreeSet<Text>,
    ) -> Option<Parts> {
        let mut found: BTreeMap<Text, Arc<Resource>> = BTreeMap::new();
        let wanted: BTreeSet<&Text> = segments.iter().collect();
        let unnamed = Text::default();
        for layer in layers {
            for segment in wanted.iter().copied().chain([&unnamed]) {
                if !found.contains_key(segment)
                    && let Some(resource) = self.segment(snapshot, kind, layer, (name, segment))
                {
                    found.insert(segment.clone(), resource);
                }
            }
            let key = ResourceKey { resource_type: kind, layer: layer.clone(), name: name.clone() };
            let whole = self.resources.get(&kind).into_iter().flatten().find_map(|of| snapshot.get(of, &key));
            match whole.as_deref() {
                None => {}
                Some(Resource::Hidden) => break,
                Some(_) if !found.contains_key("") => return whole.map(Parts::Whole),
                Some(_) => break,
            }
        }
        found.retain(|_, resource| !matches!(**resource, Resource::Hidden));
        found.contains_key("").then_some(Parts::Segments(found))
    }

    fn segment(
        &self,
        snapshot: &Snapshot,
        kind: ResourceType,
        layer: &Layer,
        (name, segment): (&Text, &Text),
    ) -> Option<Arc<Resource>> {
        let key =
            SegmentKey { resource_type: kind, layer: layer.clone(), name: name.clone(), segment: segment.clone() };
        self.segments_of(kind).iter().find_map(|of| snapshot.get(of, &key))
    }
}

/// A whole resource, or segments of one; the segment with an empty name has the other fields.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(super) enum Parts {
    Whole(Arc<Resource>),
    Segments(BTreeMap<Text, Arc<Resource>>),
}

impl Parts {
    /// Whether it is assembled from segments.
    pub(super) fn is_assembled(&self) -> bool {
        matches!(self, Self::Segments(_))
    }

    /// The message for a proxy with these slot values.
    pub(super) fn bytes(&self, kind: ResourceType, slots: &SlotValues) -> Vec<u8> {
        let mut message = BytesMut::new();
        match self {
            Self::Whole(resource) => message.extend(resource.bytes(slots)),
            Self::Segments(segments) => {
                let field = segment_field(kind);
                for (name, resource) in segments {
                    let Some(bytes) = resource.bytes(slots) else { continue };
                    match field {
                        Some(field) if !name.is_empty() => put_field(field, &bytes, &mut message),
                        _ => message.put_slice(&bytes),
                    }
                }
            }
        }
        message.to_vec()
    }

    /// The message as JSON, with redacted secrets.
    pub(super) fn json(&self, kind: ResourceType, slots: &SlotValues) -> Value {
        message_json(kind, &self.bytes(kind, slots))
    }
}
