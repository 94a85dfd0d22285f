//! The objects of a document of a file.

use serde_json::{Map, Value};
use sluice_model::Text;
use sluice_parse::{ObjectError, ObjectId, identify};

/// Creation time of an object without `creationTimestamp`. It is the same for all files of a directory, so names decide
/// the precedence.
pub const CREATED: &str = "2026-01-01T00:00:00Z";

/// An object in a file.
#[derive(Debug)]
pub(super) struct FileObject {
    pub(super) id: ObjectId,
    /// The object, with the metadata that an API server would add.
    pub(super) value: Value,
}

/// The objects of one document, and an error for each part that is not an object.
pub(super) fn read_objects(cluster: &Text, document: Value) -> Vec<Result<FileObject, ObjectError>> {
    let mut objects = Vec::new();
    flatten(cluster, document, &mut objects);
    objects
}

/// Replaces a list by its items, as `kubectl get -o yaml` writes lists.
fn flatten(cluster: &Text, document: Value, objects: &mut Vec<Result<FileObject, ObjectError>>) {
    let is_list = document.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List"));
    match document {
        Value::Object(mut fields) if is_list && fields.get("items").is_some_and(Value::is_array) => {
            let item_kind = fields.get("kind").and_then(Value::as_str).and_then(|kind| kind.strip_suffix("List"));
            let item_kind = item_kind.filter(|kind| !kind.is_empty()).map(str::to_owned);
            let api_version = fields.get("apiVersion").cloned();
            let Some(Value::Array(items)) = fields.remove("items") else { return };
            for mut item in items {
                // The items of a typed list have no kind and apiVersion when the API server writes it.
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

/// Adds the metadata that the API server adds to every object.
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
