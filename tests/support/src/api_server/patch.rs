//! Merge patches, and JSON patches limited to the operations that clients use in tests.

use serde_json::{Map, Value, json};

/// Applies the operations in order, or none of them.
///
/// # Errors
/// An operation cannot be applied to the object.
pub(super) fn apply(object: &Value, operations: &Value) -> Result<Value, String> {
    let mut patched = object.clone();
    for operation in operations.as_array().ok_or("a patch is a list")? {
        let text = |name: &str| operation.get(name).and_then(Value::as_str).unwrap_or_default();
        let (kind, path) = (text("op"), text("path"));
        let value = operation.get("value").cloned().unwrap_or_default();
        let (parent, name) = path.rsplit_once('/').ok_or("a path begins with a slash")?;
        let parent = patched.pointer_mut(parent).and_then(Value::as_object_mut);
        apply_one(kind, parent, name, value).ok_or_else(|| format!("{kind} at {path} cannot be applied"))?;
    }
    Ok(patched)
}

/// The object with a merge patch (RFC 7396).
pub(super) fn merged(object: &Value, patch: &Value) -> Value {
    let mut merged = object.clone();
    merge(&mut merged, patch);
    merged
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(object) = target.as_object_mut() else { return };
    for (name, value) in fields {
        if value.is_null() {
            object.remove(name);
        } else {
            merge(object.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

fn apply_one(kind: &str, parent: Option<&mut Map<String, Value>>, name: &str, value: Value) -> Option<()> {
    let parent = parent?;
    let current = parent.get(name);
    match kind {
        // An absent field counts as null.
        "test" if *current.unwrap_or(&Value::Null) == value => {}
        "replace" if current.is_none() => return None,
        "add" | "replace" => {
            parent.insert(name.to_owned(), value);
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::apply;

    #[test]
    fn patch_is_applied_completely_or_not_at_all() {
        let object = json!({"status": {"a": 1}});
        let add =
            json!([{"op": "test", "path": "/status/b", "value": null}, {"op": "add", "path": "/status/b", "value": 2}]);
        assert_eq!(apply(&object, &add), Ok(json!({"status": {"a": 1, "b": 2}})));
        let stale = json!([{"op": "test", "path": "/status/a", "value": 2}, {"op": "replace", "path": "/status/a", "value": 3}]);
        assert!(apply(&object, &stale).is_err());
        assert!(apply(&object, &json!([{"op": "replace", "path": "/status/c", "value": 3}])).is_err());
        assert!(apply(&json!({}), &add).is_err());
    }
}
