//! Checks the types of a merged pod, and writes it as the Kubernetes API stores it: canonical quantities, without nulls.

use serde_json::{Map, Value as Json, json};

use super::quantity::canonical;
use super::schema::POD;
use super::structure::{FieldKind, Structure};

/// Checks and normalizes a pod. The error names the path of the first value of another type.
pub(crate) fn normalize(pod: &mut Json) -> Result<(), String> {
    value(pod, FieldKind::Struct(&POD), "")
}

fn wrong(path: &str, found: &Json, expected: &str) -> String {
    let found = match found {
        Json::Null => "null",
        Json::Bool(_) => "bool",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    };
    format!("{}: expected {expected}, found {found}", path.trim_start_matches('.'))
}

fn value(value: &mut Json, kind: FieldKind, path: &str) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    match kind {
        FieldKind::Text | FieldKind::OptionalText => {
            value.is_string().then_some(()).ok_or_else(|| wrong(path, value, "a string"))
        }
        FieldKind::Integer | FieldKind::OptionalInteger => {
            value.is_i64().then_some(()).ok_or_else(|| wrong(path, value, "an integer"))
        }
        FieldKind::Bool | FieldKind::OptionalBool => {
            value.is_boolean().then_some(()).ok_or_else(|| wrong(path, value, "a boolean"))
        }
        FieldKind::IntOrString => {
            (value.is_i64() || value.is_string()).then_some(()).ok_or_else(|| wrong(path, value, "a port"))
        }
        FieldKind::Quantity => quantity(value, path),
        FieldKind::Texts | FieldKind::TextSet => {
            let is_list = value.as_array().is_some_and(|items| items.iter().all(Json::is_string));
            is_list.then_some(()).ok_or_else(|| wrong(path, value, "a list of strings"))
        }
        FieldKind::TextMap => {
            let Json::Object(fields) = value else { return Err(wrong(path, value, "an object")) };
            fields.retain(|_, value| !value.is_null());
            match fields.iter().find(|(_, value)| !value.is_string()) {
                Some((key, value)) => Err(wrong(&format!("{path}[{key}]"), value, "a string")),
                None => Ok(()),
            }
        }
        FieldKind::Quantities => {
            let Json::Object(fields) = value else { return Err(wrong(path, value, "an object")) };
            for (key, value) in fields {
                quantity(value, &format!("{path}[{key}]"))?;
            }
            Ok(())
        }
        FieldKind::Struct(structure) | FieldKind::Pointer(structure) => {
            let Json::Object(object) = value else { return Err(wrong(path, value, "an object")) };
            fields(object, structure, path)
        }
        FieldKind::List(structure) | FieldKind::Keyed(structure, _) => {
            let Json::Array(items) = value else { return Err(wrong(path, value, "a list")) };
            for (index, item) in items.iter_mut().enumerate() {
                let path = format!("{path}[{index}]");
                let Json::Object(object) = item else { return Err(wrong(&path, item, "an object")) };
                fields(object, structure, &path)?;
            }
            Ok(())
        }
        FieldKind::Any => Ok(()),
    }
}

fn fields(object: &mut Map<String, Json>, structure: &Structure, path: &str) -> Result<(), String> {
    for (name, inner) in &mut *object {
        value(inner, structure.kind(name), &format!("{path}.{name}"))?;
    }
    object.retain(|name, value| {
        name == "creationTimestamp" || !value.is_null() && (is_required(name) || !is_zero(value, structure.kind(name)))
    });
    match structure.name {
        "v1.Container" => {
            object.entry("resources").or_insert_with(|| json!({}));
        }
        "v1.ResourceFieldSelector" => {
            object.entry("divisor").or_insert_with(|| json!("0"));
        }
        _ => {}
    }
    Ok(())
}

/// Fields that are written with their zero value.
fn is_required(name: &str) -> bool {
    matches!(name, "containers" | "name" | "mountPath" | "devicePath" | "containerPort" | "key" | "path" | "port")
}

/// Whether a field has the value that an unset field has.
fn is_zero(value: &Json, kind: FieldKind) -> bool {
    match kind {
        FieldKind::Text => value.as_str() == Some(""),
        FieldKind::Integer => value.as_i64() == Some(0),
        FieldKind::Bool => value.as_bool() == Some(false),
        FieldKind::Texts | FieldKind::TextSet | FieldKind::List(_) | FieldKind::Keyed(..) => {
            value.as_array().is_some_and(Vec::is_empty)
        }
        FieldKind::TextMap | FieldKind::Quantities => value.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

fn quantity(value: &mut Json, path: &str) -> Result<(), String> {
    let text = match value {
        Json::String(text) => text.clone(),
        Json::Number(number) => number.to_string(),
        other => return Err(wrong(path, other, "a quantity")),
    };
    let canonical = canonical(&text).map_err(|reason| format!("{}: {reason}", path.trim_start_matches('.')))?;
    *value = Json::String(canonical);
    Ok(())
}
