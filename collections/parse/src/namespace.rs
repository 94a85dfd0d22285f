//! Namespace.

use serde::Deserialize;
use serde_json::Value;
use sluice_model::{Namespace, Object, ObjectKey};

use crate::{Findings, metadata::Metadata};

#[derive(Deserialize)]
struct Input {
    metadata: Metadata,
}

pub(crate) fn parse(_key: &ObjectKey, object: &Value, findings: &Findings) -> Option<Object> {
    let mut input: Input = findings.deserialize(object)?;
    Some(Object::Namespace(Namespace {
        labels: input.metadata.take_labels(),
        annotations: input.metadata.take_annotations(),
    }))
}
