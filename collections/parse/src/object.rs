//! Any object to what it is and what parsing makes of it.

use serde_json::Value;
use sluice_model::{Kind, ObjectKey, ParsedObject, Text};

use crate::{Findings, KindInfo, find_kind};

/// Why something is not an object of a known kind at all.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ObjectError {
    /// It is not a JSON object.
    #[error("not an object")]
    NotAnObject,
    /// A field every object has is missing or not text.
    #[error("{0} is missing or not text")]
    Missing(&'static str),
    /// Nothing of that kind is read.
    #[error("kind {kind} of {api_version} is not known")]
    UnknownKind {
        /// As it stands in the object.
        api_version: String,
        /// As it stands in the object.
        kind: String,
    },
}

/// What an object is.
#[derive(Clone, Debug)]
pub struct ObjectId {
    /// Its kind's entry in the table.
    pub info: &'static KindInfo,
    /// Where it lives. A namespaced object without a namespace is in `default`.
    pub key: ObjectKey,
}

/// Says what an object read from `cluster` is, without parsing it: enough to delete it.
///
/// # Errors
/// When it is no object, has no `apiVersion`, `kind` or `metadata.name`, or is of a kind nobody reads.
pub fn identify(cluster: &Text, object: &Value) -> Result<ObjectId, ObjectError> {
    let fields = object.as_object().ok_or(ObjectError::NotAnObject)?;
    let text = |name| fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let api_version = text("apiVersion").ok_or(ObjectError::Missing("apiVersion"))?;
    let kind = text("kind").ok_or(ObjectError::Missing("kind"))?;
    let info = find_kind(api_version, kind)
        .ok_or_else(|| ObjectError::UnknownKind { api_version: api_version.to_owned(), kind: kind.to_owned() })?;
    let metadata = |name| object.pointer(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let name = metadata("/metadata/name").ok_or(ObjectError::Missing("metadata.name"))?;
    let namespace = if info.namespaced { metadata("/metadata/namespace").unwrap_or("default") } else { "" };
    Ok(ObjectId { info, key: ObjectKey::new(cluster.clone(), namespace, name) })
}

/// Parses an object read from `cluster`.
///
/// # Errors
/// As [`identify`]. Everything wrong inside an object of a known kind is in the rejects.
pub fn parse_object(cluster: &Text, object: &Value) -> Result<ParsedObject, ObjectError> {
    let ObjectId { info, key } = identify(cluster, object)?;
    let findings = Findings::default();
    let value = match info.parse {
        Some(parse) => parse(&key, object, &findings),
        None => {
            if info.kind != Kind::ConfigMap && info.warn_unsupported {
                findings.warning("kind", "this kind is not supported yet");
            }
            None
        }
    };
    let rejects = findings.into_vec().into_iter().map(|finding| finding.into_reject(info.kind, &key)).collect();
    Ok(ParsedObject { kind: info.kind, key, object: value, rejects })
}
