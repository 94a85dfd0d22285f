//! Where the resource of a proxy comes from: the layer and the keys of the dataflow's outputs, and its message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use serde_json::Value;
use sluice_engine::{Engine, Explanation, Snapshot};
use sluice_graph::Handles;
use sluice_model::{Layer, ProxyKey, Resource, ResourceKey, ResourceType, Scope, SegmentKey, Text};
use sluice_xds_protocol::segment_field;
use sluice_xds_protocol::wire::put_field;

use super::path::{FieldPath, PathStep};
use crate::config_dump::message_json;

/// The keys of the outputs that a resource of a proxy consists of.
#[derive(Clone, Debug)]
pub(crate) struct LocatedResource {
    pub(crate) kind: ResourceType,
    pub(crate) name: Text,
    scope: Arc<Scope>,
    pub(crate) parts: Parts,
}

/// A whole resource, or segments of one by name; the segment with an empty name has the other fields.
#[derive(Clone, Debug)]
pub(crate) enum Parts {
    Whole(ResourceKey),
    Segments(BTreeMap<Text, SegmentKey>),
}

/// One output.
pub(crate) enum PartKey<'a> {
    Whole(&'a ResourceKey),
    Segment(&'a SegmentKey),
}

impl PartKey<'_> {
    pub(crate) fn layer(&self) -> &Layer {
        match self {
            Self::Whole(key) => &key.layer,
            Self::Segment(key) => &key.layer,
        }
    }
}

/// Finds a resource in the layers of a proxy's scope, as the store resolves it: the first layer that has or hides it decides.
pub(crate) fn locate(
    snapshot: &Snapshot,
    handles: &Handles,
    proxy: &ProxyKey,
    kind: ResourceType,
    name: &str,
) -> Option<LocatedResource> {
    let scope = snapshot.get(&handles.scopes, proxy)?;
    let layers = scope.layers.get(&kind)?.clone();
    let mut segments: BTreeMap<Text, SegmentKey> = BTreeMap::new();
    let mut whole = None;
    for layer in layers.iter() {
        for key in segments_of(snapshot, handles, kind, layer, name) {
            segments.entry(key.segment.clone()).or_insert(key);
        }
        let key = ResourceKey { resource_type: kind, layer: layer.clone(), name: name.into() };
        match resource(snapshot, handles, &key).as_deref() {
            None => {}
            Some(Resource::Hidden) => break,
            Some(_) => {
                whole = (!segments.contains_key("")).then_some(key);
                break;
            }
        }
    }
    let parts = match whole {
        Some(key) => Parts::Whole(key),
        None => {
            segments
                .retain(|_, key| !matches!(segment(snapshot, handles, key).as_deref(), None | Some(Resource::Hidden)));
            Parts::Segments(segments).filter_existing()?
        }
    };
    Some(LocatedResource { kind, name: name.into(), scope, parts })
}

impl Parts {
    /// A resource of segments exists if it has the unnamed one.
    fn filter_existing(self) -> Option<Self> {
        match &self {
            Self::Segments(segments) if !segments.contains_key("") => None,
            _ => Some(self),
        }
    }
}

fn resource(snapshot: &Snapshot, handles: &Handles, key: &ResourceKey) -> Option<Arc<Resource>> {
    handles.resources.iter().find_map(|of| snapshot.get(of, key))
}

fn segment(snapshot: &Snapshot, handles: &Handles, key: &SegmentKey) -> Option<Arc<Resource>> {
    handles.segments.iter().find_map(|of| snapshot.get(of, key))
}

/// Whether a resource of a proxy has a segment that is not hidden.
pub(crate) fn has_segment(
    snapshot: &Snapshot,
    handles: &Handles,
    proxy: &ProxyKey,
    (kind, name, wanted): (ResourceType, &Text, &str),
) -> bool {
    let Some(layers) = snapshot.get(&handles.scopes, proxy).and_then(|scope| scope.layers.get(&kind).cloned()) else {
        return false;
    };
    let of = |layer: &Layer| {
        let (layer, segment_name) = (layer.clone(), wanted.into());
        segment(
            snapshot,
            handles,
            &SegmentKey { resource_type: kind, layer, name: name.clone(), segment: segment_name },
        )
    };
    layers.iter().find_map(of).is_some_and(|found| !matches!(*found, Resource::Hidden))
}

/// The segments that a layer has of a resource, in order.
fn segments_of(
    snapshot: &Snapshot,
    handles: &Handles,
    kind: ResourceType,
    layer: &Layer,
    name: &str,
) -> Vec<SegmentKey> {
    let first = SegmentKey { resource_type: kind, layer: layer.clone(), name: name.into(), segment: Text::default() };
    let is_of = |key: &SegmentKey| key.resource_type == kind && key.name.as_str() == name && key.layer == *layer;
    let of = |collection| {
        let from = snapshot.iter_from(collection, first.clone());
        from.map(|(key, _)| key).take_while(|key| is_of(key)).cloned().collect::<Vec<_>>()
    };
    handles.segments.iter().flat_map(of).collect()
}

impl LocatedResource {
    /// The segment of which a path names an element, such as the virtual host in `virtualHosts[NAME]`.
    pub(crate) fn segment_of_path(&self, path: &FieldPath) -> Option<&Text> {
        let Parts::Segments(segments) = &self.parts else { return None };
        let [PathStep::Field(field), PathStep::Element(element), ..] = &path.0[..] else { return None };
        let list = match self.kind {
            ResourceType::Route => "virtualHosts",
            ResourceType::NameTable => "table",
            _ => return None,
        };
        let is_named =
            |name: &Text| name.as_str() == element || name.rsplit_once(':').is_some_and(|(host, _)| host == element);
        let exact = segments.get_key_value(element.as_str()).map(|(name, _)| name);
        exact.or_else(|| segments.keys().find(|name| is_named(name))).filter(|_| field == list)
    }

    /// The names of the segments, without the unnamed one.
    pub(crate) fn segments(&self) -> Vec<&Text> {
        match &self.parts {
            Parts::Whole(_) => Vec::new(),
            Parts::Segments(segments) => segments.keys().filter(|name| !name.is_empty()).collect(),
        }
    }

    /// The same resource with only these segments, and the unnamed one.
    pub(crate) fn only(&self, names: &BTreeSet<Text>) -> Self {
        let mut only = self.clone();
        if let Parts::Segments(segments) = &mut only.parts {
            segments.retain(|name, _| name.is_empty() || names.contains(name));
        }
        only
    }

    /// The outputs.
    pub(crate) fn keys(&self) -> Vec<PartKey<'_>> {
        match &self.parts {
            Parts::Whole(key) => vec![PartKey::Whole(key)],
            Parts::Segments(segments) => segments.values().map(PartKey::Segment).collect(),
        }
    }

    /// The message as JSON, with redacted secrets.
    pub(crate) fn json(&self, snapshot: &Snapshot, handles: &Handles) -> Option<Value> {
        let bytes = match &self.parts {
            Parts::Whole(key) => resource(snapshot, handles, key)?.bytes(&self.scope.slots)?,
            Parts::Segments(segments) => {
                let field = segment_field(self.kind);
                let mut message = BytesMut::new();
                for (name, key) in segments {
                    let bytes = segment(snapshot, handles, key)?.bytes(&self.scope.slots)?;
                    match field {
                        Some(field) if !name.is_empty() => put_field(field, &bytes, &mut message),
                        _ => message.put_slice(&bytes),
                    }
                }
                message.freeze()
            }
        };
        Some(message_json(self.kind, &bytes))
    }

    /// Why each output has its value. Waits for the dataflow thread.
    pub(crate) fn explain(&self, engine: &Engine, handles: &Handles) -> Vec<Explanation> {
        let snapshot = engine.snapshot();
        let explain = |key: &PartKey<'_>| match key {
            PartKey::Whole(key) => {
                let of = handles.resources.iter().find(|of| snapshot.get(of, *key).is_some())?;
                engine.explain(of, *key)
            }
            PartKey::Segment(key) => {
                let of = handles.segments.iter().find(|of| snapshot.get(of, *key).is_some())?;
                engine.explain(of, *key)
            }
        };
        self.keys().iter().filter_map(explain).collect()
    }
}
