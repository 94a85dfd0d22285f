//! The objects of a document of a file.

use serde_json::{Map, Value};
use sluice_model::Text;
use sluice_parse::{ObjectError, ObjectId, identify};

/// When an object was made that does not say so. All files of a directory are of one age then: names decide precedence.
const CREATED: &str = "2026-01-01T00:00:00Z";

/// An object that a file holds.
#[derive(Debug)]
pub(super) struct FileObject {
    pub(super) id: ObjectId,
    /// The object with what an API server would have filled in.
    pub(super) value: Value,
}

/// What one document holds: objects, and what of it is none.
pub(super) fn read_objects(cluster: &Text, document: Value) -> Vec<Result<FileObject, ObjectError>> {
    let mut objects = Vec::new();
    flatten(cluster, document, &mut objects);
    objects
}

/// Lists hold objects, as `kubectl get -o yaml` writes them.
fn flatten(cluster: &Text, document: Value, objects: &mut Vec<Result<FileObject, ObjectError>>) {
    let is_list = document.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List"));
    match document {
        Value::Object(mut fields) if is_list && fields.get("items").is_some_and(Value::is_array) => {
            let item_kind = fields.get("kind").and_then(Value::as_str).and_then(|kind| kind.strip_suffix("List"));
            let item_kind = item_kind.filter(|kind| !kind.is_empty()).map(str::to_owned);
            let api_version = fields.get("apiVersion").cloned();
            let Some(Value::Array(items)) = fields.remove("items") else { return };
            for mut item in items {
                // The items of a typed list, as the API server writes it, leave these out.
                if let (Value::Object(item), Some(kind)) = (&mut item, &item_kind) {
                    item.entry("kind").or_insert_with(|| kind.as_str().into());
                    if let Some(api_version) = &api_version {
                        item.entry("apiVersion").or_insert_with(|| api_version.clone());
                    }
                }
                flatten(cluster, item, objects);
            }
        }
        mut value => objects.push(identify(cluster, &value).map(|id| {
            fill_in(&mut value, id.info.group.ends_with(".istio.io"));
            FileObject { id, value }
        })),
    }
}

/// Metadata that the API server gives every object.
fn fill_in(object: &mut Value, is_istio: bool) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let fill = |metadata: &mut Map<String, Value>, name: &str, value: &str| {
        let field = metadata.entry(name).or_insert(Value::Null);
        if field.is_null() {
            *field = value.into();
        }
    };
    fill(metadata, "creationTimestamp", CREATED);
    if is_istio {
        fill(metadata, "resourceVersion", "1");
    }
}
