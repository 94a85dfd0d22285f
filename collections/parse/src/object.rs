//! Entry points: identification and parsing of an object of any kind.

use serde_json::Value;
use sluice_model::{ObjectKey, ParsedObject, Text};

use crate::{Item, KindInfo, admission, condition_request, find_kind, panicked};

/// The reason why a value is not an object of a known kind.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ObjectError {
    /// The value is not a JSON object.
    #[error("expected an object")]
    NotAnObject,
    /// A field that every object has is missing or not a string.
    #[error("{0} is required and must be a string")]
    Missing(&'static str),
    /// The kind is not in the table of kinds.
    #[error("unknown kind {kind} of {api_version}")]
    UnknownKind {
        /// As the object states it.
        api_version: String,
        /// As the object states it.
        kind: String,
    },
}

/// Kind and key of an object.
#[derive(Clone, Debug)]
pub struct ObjectId {
    /// The entry of the kind in the table of kinds.
    pub info: &'static KindInfo,
    /// Cluster, namespace and name. A namespaced object without a namespace is in `default`.
    pub key: ObjectKey,
}

/// Identifies an object from `cluster` without parsing it, for example to delete it.
///
/// # Errors
/// The value is not an object, has no `apiVersion`, `kind` or `metadata.name`, or is of an unknown kind.
pub fn identify(cluster: &Text, object: &Value) -> Result<ObjectId, ObjectError> {
    let fields = object.as_object().ok_or(ObjectError::NotAnObject)?;
    let text = |name| fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let api_version = text("apiVersion").ok_or(ObjectError::Missing("apiVersion"))?;
    let kind = text("kind").ok_or(ObjectError::Missing("kind"))?;
    let info = find_kind(api_version, kind)
        .ok_or_else(|| ObjectError::UnknownKind { api_version: api_version.to_owned(), kind: kind.to_owned() })?;
    let metadata = |name| object["metadata"][name].as_str().filter(|text| !text.is_empty());
    let name = metadata("name").ok_or(ObjectError::Missing("metadata.name"))?;
    let namespace = if info.namespaced { metadata("namespace").unwrap_or("default") } else { "" };
    Ok(ObjectId { info, key: ObjectKey::new(cluster.clone(), namespace, name) })
}

/// Parses an object read from `cluster`, whose DNS domain is `domain`.
///
/// # Errors
/// As [`identify`]. Invalid parts of an object of a known kind are in the rejects, and so is a panic of its parser.
pub fn parse_object(cluster: &Text, domain: &str, object: &Value) -> Result<ParsedObject, ObjectError> {
    let ObjectId { info, key } = identify(cluster, object)?;
    let item = Item { key: &key, object, domain };
    let (value, findings) = panicked::catch(info.kind, &item, |item, findings| {
        if info.is_istio() {
            admission::check_object(item, info.kind, findings);
        }
        condition_request::check(info, item, findings);
        info.parse.and_then(|parse| parse(item, findings))
    });
    let rejects = findings.into_vec().into_iter().map(|finding| finding.into_reject(info.kind, &key)).collect();
    Ok(ParsedObject { kind: info.kind, key, object: value, rejects })
}

#[cfg(test)]
mod tests;
