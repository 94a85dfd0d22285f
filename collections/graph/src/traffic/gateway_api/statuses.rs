//! Statuses of the objects of the Gateway API (G05).

mod classes;

use sluice_engine::Collection;

use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::statuses::{StatusKey, StatusUpdate};

/// Statuses that differ from what they should be.
pub(super) fn derive_status_updates<'s>(
    objects: &ObjectCollections<'s>,
    options: &GraphOptions,
) -> Collection<'s, StatusKey, StatusUpdate> {
    classes::derive_class_statuses(objects, options)
}
