//! ReferenceGrants: whether an object may refer to one in another namespace (G03).

use sluice_engine::{Context, Deps, Index, IndexDep};
use sluice_model::gateway_api::{GroupKind, ReferenceGrant};
use sluice_model::{ObjectKey, Text};

use crate::inputs::ObjectCollections;

/// Grants by their namespace.
pub(crate) struct GrantIndex<'s>(Index<'s, Text, ObjectKey, ReferenceGrant>);

impl<'s> GrantIndex<'s> {
    /// Indexes all grants.
    pub(crate) fn new(objects: &ObjectCollections<'s>) -> Self {
        Self(
            objects
                .reference_grants
                .index("reference_grants/by-namespace", |key, grant| [(key.namespace.clone(), grant.clone())]),
        )
    }
}

/// Looks up grants.
#[derive(Clone, Copy)]
pub(crate) struct GrantLookup(IndexDep<Text, ObjectKey, ReferenceGrant>);

impl GrantLookup {
    /// Declares the look-up.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, index: &GrantIndex<'s>) -> Self {
        Self(deps.by(&index.0))
    }

    /// Whether an object of kind `from` in namespace `local` may refer to `name` of kind `to` in `namespace`.
    pub(crate) fn allow(
        self,
        cx: &Context,
        (from, local): (&GroupKind, &Text),
        (to, namespace, name): (&GroupKind, &Text, &Text),
    ) -> bool {
        local == namespace || cx.by(&self.0, namespace).iter().any(|(_, grant)| grant.allows(from, local, to, name))
    }
}
