//! The served resources that an epoch changed.

use sluice_engine::ChangedKeys;
use sluice_graph::Handles;
use sluice_xds::ChangedResources;

/// The resources that an epoch changed, by type and layer.
pub(crate) fn changed_resources(handles: &Handles, keys: &ChangedKeys) -> ChangedResources {
    let mut changed = ChangedResources::new();
    for key in handles.resources.iter().flat_map(|of| keys.of(of)) {
        changed.entry((key.resource_type, key.layer.clone())).or_default().insert(key.name.clone());
    }
    for key in handles.segments.iter().flat_map(|of| keys.of(of)) {
        changed.entry((key.resource_type, key.layer.clone())).or_default().insert(key.name.clone());
    }
    changed
}
