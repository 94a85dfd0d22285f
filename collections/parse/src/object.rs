//! Any object to what it is and what parsing makes of it.

use std::sync::LazyLock;

use serde_json::Value;
use sluice_model::{ObjectKey, ObjectMeta, ParsedObject, Text};

use crate::{Findings, KindInfo, admission, find_kind, metadata};

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

/// An object of a known kind to be parsed.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// Where it lives.
    pub key: &'a ObjectKey,
    /// All of it.
    pub object: &'a Value,
    /// DNS domain of the cluster, such as `cluster.local`: short hosts are completed with it.
    pub domain: &'a str,
}

impl<'a> Item<'a> {
    /// Its `spec`, an empty object if it has none.
    #[must_use]
    pub fn spec(&self) -> &'a Value {
        self.object.get("spec").unwrap_or(&EMPTY)
    }

    /// Its metadata; a part of that which cannot be read is a warning and counts as absent.
    #[must_use]
    pub fn meta(&self, findings: &Findings) -> ObjectMeta {
        metadata::parse(self.key, self.object, findings)
    }
}

static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(serde_json::Map::new()));

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

/// Parses an object read from `cluster`, whose DNS domain is `domain`.
///
/// # Errors
/// As [`identify`]. Everything wrong inside an object of a known kind is in the rejects.
pub fn parse_object(cluster: &Text, domain: &str, object: &Value) -> Result<ParsedObject, ObjectError> {
    let ObjectId { info, key } = identify(cluster, object)?;
    let findings = Findings::default();
    let item = Item { key: &key, object, domain };
    if info.group.ends_with(".istio.io") {
        admission::check_object(&item, info.kind, &findings);
    }
    let value = match info.parse {
        Some(parse) => parse(&item, &findings),
        None => {
            if info.warn_unsupported {
                findings.warning("kind", "this kind is not supported yet");
            }
            None
        }
    };
    let rejects = findings.into_vec().into_iter().map(|finding| finding.into_reject(info.kind, &key)).collect();
    Ok(ParsedObject { kind: info.kind, key, object: value, rejects })
}

#[cfg(test)]
mod tests;
