//! The connected proxies in groups that see the same: by type, and by layers before and after the change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_engine::Snapshot;
use sluice_graph::Handles;
use sluice_model::{Layer, ProxyKey, ResourceType, Scope};

/// Proxies with the same layers of a type.
pub(super) struct ProxyGroup {
    pub(super) kind: ResourceType,
    pub(super) before: Arc<[Layer]>,
    pub(super) after: Arc<[Layer]>,
    pub(super) proxies: Vec<ConcernedProxy>,
}

/// A connected proxy.
#[derive(Clone)]
pub(super) struct ConcernedProxy {
    pub(super) key: ProxyKey,
    /// Its scope after the change, or before it if it has none then.
    pub(super) scope: Arc<Scope>,
}

impl ProxyGroup {
    /// Whether the change gives these proxies other layers.
    pub(super) fn has_other_layers(&self) -> bool {
        self.before != self.after
    }
}

/// A type with its layers before and after the change.
type LayersOfType = (ResourceType, Arc<[Layer]>, Arc<[Layer]>);

/// The groups that may see a difference: their layers change, or `is_changed` holds for one of the layers.
pub(super) fn groups(
    proxies: &BTreeSet<ProxyKey>,
    handles: &Handles,
    (before, after): (&Snapshot, &Snapshot),
    is_changed: impl Fn(ResourceType, &Layer) -> bool,
) -> Vec<ProxyGroup> {
    let mut by_layers: BTreeMap<LayersOfType, Vec<ConcernedProxy>> = BTreeMap::new();
    for key in proxies {
        let (old, new) = (before.get(&handles.scopes, key), after.get(&handles.scopes, key));
        let Some(scope) = new.clone().or_else(|| old.clone()) else { continue };
        let layers_of = |scope: &Option<Arc<Scope>>, kind| {
            scope.as_ref().and_then(|scope| scope.layers.get(&kind).cloned()).unwrap_or_default()
        };
        for kind in ResourceType::ALL {
            let (old, new) = (layers_of(&old, kind), layers_of(&new, kind));
            if old != new || new.iter().any(|layer| is_changed(kind, layer)) {
                let proxy = ConcernedProxy { key: key.clone(), scope: scope.clone() };
                by_layers.entry((kind, old, new)).or_default().push(proxy);
            }
        }
    }
    let groups = by_layers.into_iter();
    groups.map(|((kind, before, after), proxies)| ProxyGroup { kind, before, after, proxies }).collect()
}
