//! Namespace.

use serde::Deserialize;
use sluice_model::{Namespace, Object};

use crate::{Findings, Item, metadata::Metadata};

#[derive(Deserialize)]
struct Input {
    metadata: Metadata,
}

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let mut input: Input = findings.deserialize(item.object)?;
    Some(Object::Namespace(Namespace {
        labels: input.metadata.take_labels(),
        annotations: input.metadata.take_annotations(),
    }))
}
