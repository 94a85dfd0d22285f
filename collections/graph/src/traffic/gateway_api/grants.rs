//! ReferenceGrants: whether an object may refer to one of another namespace (G03).

use sluice_engine::{Context, Deps, Index, IndexDep};
use sluice_model::gateway_api::{GroupKind, ReferenceGrant};
use sluice_model::{ObjectKey, Text};

use crate::inputs::Objects;

/// Grants by the namespace of what they grant.
pub(crate) struct GrantIndex<'s>(Index<'s, Text, ObjectKey, ReferenceGrant>);

impl<'s> GrantIndex<'s> {
    /// Of all grants.
    pub(crate) fn new(objects: &Objects<'s>) -> Self {
        Self(
            objects
                .reference_grants
                .index("reference_grants/by-namespace", |key, grant| [(key.namespace.clone(), grant.clone())]),
        )
    }
}

/// Looks grants up.
#[derive(Clone, Copy)]
pub(crate) struct Grants(IndexDep<Text, ObjectKey, ReferenceGrant>);

impl Grants {
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
