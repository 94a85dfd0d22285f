//! Objects as JSON, in the form that `kube::runtime` watches.

use std::borrow::Cow;

use kube::core::{ApiResource, DynamicResourceScope, ObjectMeta, Resource};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An object as JSON: no field is lost, and no typed copy is made of its metadata, whose `managedFields` are large.
///
/// With `METADATA_ONLY`, requests ask for the metadata of objects and not for whole objects.
#[derive(Clone, Debug)]
pub(crate) struct RawObject<const METADATA_ONLY: bool> {
    /// Contains only the resourceVersion: the watcher reads no other field.
    metadata: ObjectMeta,
    /// The whole object.
    pub(crate) json: Value,
}

impl<'de, const METADATA_ONLY: bool> Deserialize<'de> for RawObject<METADATA_ONLY> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Value::deserialize(deserializer)?;
        let resource_version = json.pointer("/metadata/resourceVersion").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { metadata: ObjectMeta { resource_version, ..ObjectMeta::default() }, json })
    }
}

impl<const METADATA_ONLY: bool> Resource for RawObject<METADATA_ONLY> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.kind)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.group)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.version)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.plural)
    }

    fn metadata_api() -> bool {
        METADATA_ONLY
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use serde_json::json;

    use super::*;

    #[test]
    fn json_keeps_every_field_of_an_object() {
        let json = json!({"metadata": {"name": "a", "resourceVersion": "7", "managedFields": [{"manager": "m"}]},
                          "unknown": {"deep": [1, null]}});
        let object: RawObject<false> = serde_json::from_value(json.clone()).expect("an object");
        assert_eq!(object.json, json);
        assert_eq!(object.resource_version().as_deref(), Some("7"));
        assert_eq!(object.meta().name, None, "the watcher does not read it");
    }
}
