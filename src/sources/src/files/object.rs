//! The objects of a document of a file.

use serde_json::{Map, Value};
use sluice_model::Text;
use sluice_parse::{ObjectError, ObjectId, identify, list_items};

/// Creation time of an object without `creationTimestamp`. It is the same for all files of a directory, so names decide
/// the precedence.
pub const FILE_CREATION_TIME: &str = "2026-01-01T00:00:00Z";

/// An object in a file.
#[derive(Debug)]
pub(super) struct FileObject {
    pub(super) id: ObjectId,
    /// The object, with the metadata that an API server would add.
    pub(super) value: Value,
}

/// The objects of one document, and an error for each part that is not an object.
pub(super) fn read_objects(cluster: &Text, document: Value) -> Vec<Result<FileObject, ObjectError>> {
    let read = |mut value: Value| {
        let id = identify(cluster, &value)?;
        fill_in(&mut value, id.info.is_istio());
        Ok(FileObject { id, value })
    };
    list_items(document).into_iter().map(read).collect()
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
    fill(metadata, "creationTimestamp", FILE_CREATION_TIME);
    if is_istio {
        fill(metadata, "resourceVersion", "1");
    }
}
