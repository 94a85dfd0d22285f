//! The namespaces that are read (C21).

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_engine::{Collection, Value};
use sluice_model::{MeshConfig, Namespace, ObjectKey, Text};

use crate::options::GraphOptions;

/// The namespaces whose objects are read: all, or these.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct Discovery(Option<BTreeSet<(Text, Text)>>);

impl Discovery {
    /// Whether the object is in one of them.
    pub(crate) fn allows(&self, object: &ObjectKey) -> bool {
        let Some(namespaces) = &self.0 else { return true };
        namespaces.contains(&(object.cluster.clone(), object.namespace.clone()))
    }
}

/// The namespaces that `discoverySelectors` select: those that match any selector; without selectors, all.
/// Key: none, one record. From: `mesh_config`, `namespaces`.
/// Changes when: a selector does, or, while there are selectors, a namespace starts or stops matching.
/// Size: 1. Rejects: none.
pub(crate) fn derive_discovery<'s>(
    mesh: &Collection<'s, (), MeshConfig>,
    namespaces: &Collection<'s, ObjectKey, Namespace>,
    options: &GraphOptions,
) -> Collection<'s, (), Discovery> {
    let selectors = mesh.map("discovery_selectors", |(), mesh| mesh.discovery_selectors.clone());
    let system_namespace = options.system_namespace.clone();
    selectors.derive("discovery", |deps| {
        let namespaces = deps.on(namespaces);
        move |cx, (), selectors| {
            if selectors.is_empty() {
                return Some(Discovery(None));
            }
            let selected = cx.all(&namespaces).into_iter().filter(|(key, namespace)| {
                key.name == system_namespace || selectors.iter().any(|selector| selector.matches(&namespace.labels))
            });
            Some(Discovery(Some(selected.map(|(key, _)| (key.cluster, key.name)).collect())))
        }
    })
}

/// The objects of a kind in the namespaces that are read.
/// Key: `ObjectKey`. From: the raw objects, `discovery`.
/// Changes when: an object does; for a whole namespace, when it starts or stops being selected.
/// Size: that of the kind. Rejects: none.
pub(crate) fn discovered<'s, V: Value>(
    name: &str,
    objects: &Collection<'s, ObjectKey, V>,
    discovery: &Collection<'s, (), Discovery>,
) -> Collection<'s, ObjectKey, V> {
    objects.derive(name, |deps| {
        let discovery = deps.on(discovery);
        move |cx, key, object| {
            let exists = cx.get(&discovery, &()).is_none_or(|discovery| discovery.allows(key));
            exists.then(|| object.clone())
        }
    })
}
