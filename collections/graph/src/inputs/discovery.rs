//! The namespaces that are read (C21).

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Value};
use sluice_model::{LabelSelector, MeshConfig, Namespace, ObjectKey, Text};

/// A namespace of a cluster.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct NamespaceKey {
    cluster: Text,
    name: Text,
}

impl NamespaceKey {
    /// The namespace of an object.
    fn of(object: &ObjectKey) -> Self {
        Self { cluster: object.cluster.clone(), name: object.namespace.clone() }
    }
}

/// The namespaces whose objects are read; `None` if those of all namespaces are.
pub(crate) type Discovery<'s> = Collection<'s, Option<NamespaceKey>, ()>;

/// Whether an object is read, inside a `derive`.
pub(crate) fn is_read(cx: &Context, discovery: &Dep<Option<NamespaceKey>, ()>, object: &ObjectKey) -> bool {
    cx.get(discovery, &None).is_some() || cx.get(discovery, &Some(NamespaceKey::of(object))).is_some()
}

/// The namespaces that `discoverySelectors` select: those that match any selector; without selectors, all. That of the
/// control plane is selected as others are.
/// Key: namespace, or none for all. From: `mesh_config`, `namespaces`.
/// Changes when: a selector does, or, while there are selectors, a namespace starts or stops matching.
/// Size: selected namespaces, or 1. Rejects: none.
pub(crate) fn derive_discovery<'s>(
    mesh: &Collection<'s, (), MeshConfig>,
    namespaces: &Collection<'s, ObjectKey, Namespace>,
) -> Discovery<'s> {
    let selectors = mesh.map("discovery_selectors", |(), mesh| mesh.discovery_selectors.clone());
    let everything = selectors.flat_map("discovery/all", |(), selectors| selectors.is_empty().then_some((None, ())));
    let selected = namespaces.derive_many("discovery/selected", |deps| {
        let selectors = deps.on(&selectors);
        move |cx, key, namespace| {
            let selectors = cx.get(&selectors, &()).filter(|selectors| !selectors.is_empty());
            let matches = |selector: &LabelSelector| selector.matches(&namespace.labels);
            let is_selected = selectors.is_some_and(|selectors| selectors.iter().any(matches));
            let namespace = NamespaceKey { cluster: key.cluster.clone(), name: key.name.clone() };
            is_selected.then_some((Some(namespace), ())).into_iter().collect()
        }
    });
    everything.union("discovery", &[selected])
}

/// The objects of a kind in the namespaces that are read.
/// Key: `ObjectKey`. From: the raw objects, `discovery`.
/// Changes when: an object does; for a whole namespace, when it starts or stops being selected.
/// Size: that of the kind; the objects themselves are shared with the raw objects. Rejects: none.
pub(crate) fn discovered<'s, V: Value>(
    name: &str,
    objects: &Collection<'s, ObjectKey, V>,
    discovery: &Discovery<'s>,
) -> Collection<'s, ObjectKey, V> {
    objects.restrict(name, discovery, NamespaceKey::of)
}

/// The namespaces that are read.
/// Key: `ObjectKey`. From: `namespaces`, `discovery`.
/// Changes when: a namespace does, or starts or stops being selected. Size: namespaces. Rejects: none.
pub(crate) fn discovered_namespaces<'s>(
    namespaces: &Collection<'s, ObjectKey, Namespace>,
    discovery: &Discovery<'s>,
) -> Collection<'s, ObjectKey, Namespace> {
    let key = |key: &ObjectKey| NamespaceKey { cluster: key.cluster.clone(), name: key.name.clone() };
    namespaces.restrict("discovered_namespaces", discovery, key)
}
