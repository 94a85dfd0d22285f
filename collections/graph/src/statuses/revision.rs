//! Which control plane writes the status of an object: that of the object's revision (C20).

use sluice_engine::{Collection, Context, Dep, Deps};
use sluice_model::{Labels, Namespace, ObjectKey, Text, label};

use crate::options::GraphOptions;

/// Looks up the revision of objects: that of their label, else that of their namespace, else the default one. Tags are not read.
pub(crate) struct RevisionLookup {
    namespaces: Dep<ObjectKey, Namespace>,
    own: Text,
    /// The cluster whose statuses are written.
    cluster: Text,
}

impl RevisionLookup {
    /// Declares the look-up.
    pub(crate) fn on<'s>(
        deps: &mut Deps<'s>,
        namespaces: &Collection<'s, ObjectKey, Namespace>,
        options: &GraphOptions,
    ) -> Self {
        Self { namespaces: deps.on(namespaces), own: options.revision.clone(), cluster: options.cluster.clone() }
    }

    /// Whether an object is of the local cluster and of the revision of this control plane.
    pub(crate) fn owns(&self, cx: &Context, key: &ObjectKey, labels: &Labels) -> bool {
        let of_label = labels.get(label::REVISION).cloned();
        let of_namespace = || {
            let namespace = ObjectKey::new(key.cluster.clone(), "", key.namespace.clone());
            // Until its namespace is known, an object is of every revision.
            cx.get(&self.namespaces, &namespace)
                .map_or_else(|| Some(self.own.clone()), |namespace| namespace.labels.get(label::REVISION).cloned())
        };
        let selected = of_label.or_else(of_namespace);
        key.cluster == self.cluster && is_of_revision(selected.as_ref().map_or("", Text::as_str), &self.own)
    }
}

/// Whether a revision that an object selects is that of this control plane. The default revision has two names.
pub(crate) fn is_of_revision(selected: &str, own: &str) -> bool {
    let is_default = |revision: &str| matches!(revision, "" | "default");
    selected == own || (is_default(selected) && is_default(own))
}
