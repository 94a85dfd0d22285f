//! Reading of JSON objects by path. A field that is absent or of another type reads as empty: wrong types are findings of the
//! schema analyzer, and the other analyzers go on with what is valid.

use std::collections::BTreeMap;

use serde_json::Value;

static NULL: Value = Value::Null;

/// The field at a path of keys with dots between them, or null.
pub(crate) fn at<'v>(value: &'v Value, path: &str) -> &'v Value {
    path.split('.').try_fold(value, |value, key| value.get(key)).unwrap_or(&NULL)
}

/// The string at a path, or the empty string.
pub(crate) fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    at(value, path).as_str().unwrap_or_default()
}

/// The items of the list at a path.
pub(crate) fn items<'v>(value: &'v Value, path: &str) -> &'v [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// The strings of the list at a path.
pub(crate) fn texts<'v>(value: &'v Value, path: &str) -> Vec<&'v str> {
    items(value, path).iter().filter_map(Value::as_str).collect()
}

/// The whole number at a path. It may be a string, as in the JSON form of messages.
pub(crate) fn number(value: &Value, path: &str) -> Option<i64> {
    let value = at(value, path);
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

/// The strings of the mapping at a path.
pub(crate) fn map<'v>(value: &'v Value, path: &str) -> BTreeMap<&'v str, &'v str> {
    let entries = at(value, path).as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect()
}

/// Whether there is a value at a path other than null.
pub(crate) fn has(value: &Value, path: &str) -> bool {
    !at(value, path).is_null()
}
