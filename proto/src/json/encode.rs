//! Messages to canonical JSON.

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage as _, Value as Field};
use serde_json::{Map, Number, Value, json};

use super::{decode, scalar};
use crate::pool;

/// Maximum nesting of `Any`s; deeper ones stay bytes.
const MAX_ANY_DEPTH: usize = 100;

/// Encodes a message as canonical JSON: lowerCamel names, no unset fields, enums by name, 64-bit numbers as strings,
/// every `Any` expanded.
pub fn encode_dynamic(message: &DynamicMessage) -> Value {
    encode_message(message, 0)
}

/// Encodes the message in an `Any`, with its type URL as `@type`. Bytes of an unknown type, or that do not decode,
/// become `{"@type": url, "value": base64}`.
pub fn encode_any(type_url: &str, bytes: &[u8]) -> Value {
    expand(type_url, bytes, 0)
}

fn expand(type_url: &str, bytes: &[u8], depth: usize) -> Value {
    let name = type_url.rsplit('/').next().unwrap_or(type_url);
    let known = pool().get_message_by_name(name).filter(|_| depth < MAX_ANY_DEPTH);
    let Some(message) = known.and_then(|descriptor| DynamicMessage::decode(descriptor, bytes).ok()) else {
        return json!({"@type": type_url, "value": scalar::format_bytes(bytes)});
    };
    match encode_message(&message, depth + 1) {
        Value::Object(mut fields) if !decode::has_own_json(name) => {
            fields.insert("@type".to_owned(), type_url.into());
            Value::Object(fields)
        }
        value => json!({"@type": type_url, "value": value}),
    }
}

fn encode_message(message: &DynamicMessage, depth: usize) -> Value {
    let descriptor = message.descriptor();
    let part = |number: u32| message.get_field_by_number(number);
    let integer = |number: u32| part(number).and_then(|v| v.as_i64().or_else(|| v.as_i32().map(i64::from)));
    match descriptor.full_name() {
        "google.protobuf.Any" => match (part(1), part(2)) {
            (Some(url), Some(bytes)) => match (url.as_str(), bytes.as_bytes()) {
                (Some(""), Some(bytes)) if bytes.is_empty() => json!({}),
                (Some(url), Some(bytes)) => expand(url, bytes, depth),
                _ => Value::Null,
            },
            _ => Value::Null,
        },
        "google.protobuf.Duration" => {
            scalar::format_duration(integer(1).unwrap_or(0), integer(2).unwrap_or(0) as i32).into()
        }
        "google.protobuf.Timestamp" => {
            scalar::format_timestamp(integer(1).unwrap_or(0), integer(2).unwrap_or(0) as i32).into()
        }
        "google.protobuf.FieldMask" => {
            let paths = part(1).and_then(|paths| {
                let paths = paths.as_list()?.iter().filter_map(Field::as_str).map(camel_case);
                Some(paths.collect::<Vec<_>>().join(","))
            });
            paths.unwrap_or_default().into()
        }
        "google.protobuf.Value" => match message.fields().next() {
            Some((field, value)) => encode_field(&field, value, depth),
            None => Value::Null,
        },
        "google.protobuf.Struct" | "google.protobuf.ListValue" => match (descriptor.get_field(1), part(1)) {
            (Some(field), Some(value)) => encode_field(&field, &value, depth),
            _ => Value::Null,
        },
        name if decode::is_wrapper(name) => match (descriptor.get_field(1), part(1)) {
            (Some(field), Some(value)) => encode_field(&field, &value, depth),
            _ => Value::Null,
        },
        _ => {
            let fields = message
                .fields()
                .map(|(field, value)| (field.json_name().to_owned(), encode_field(&field, value, depth)));
            Value::Object(fields.collect())
        }
    }
}

fn encode_field(field: &FieldDescriptor, value: &Field, depth: usize) -> Value {
    match value {
        Field::List(elements) => {
            Value::Array(elements.iter().map(|element| encode_value(&field.kind(), element, depth)).collect())
        }
        Field::Map(entries) => {
            let kind = match field.kind() {
                Kind::Message(entry) => entry.map_entry_value_field().kind(),
                kind => kind,
            };
            let mut out = Map::new();
            let mut entries: Vec<_> = entries.iter().map(|(key, value)| (map_key(key), value)).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            for (key, value) in entries {
                out.insert(key, encode_value(&kind, value, depth));
            }
            Value::Object(out)
        }
        value => encode_value(&field.kind(), value, depth),
    }
}

fn encode_value(kind: &Kind, value: &Field, depth: usize) -> Value {
    match value {
        Field::Bool(b) => (*b).into(),
        Field::I32(n) => (*n).into(),
        Field::U32(n) => (*n).into(),
        Field::I64(n) => n.to_string().into(),
        Field::U64(n) => n.to_string().into(),
        // The shortest text that parses to the same single-precision number.
        Field::F32(x) => {
            float(if x.is_finite() { x.to_string().parse().unwrap_or(f64::from(*x)) } else { f64::from(*x) })
        }
        Field::F64(x) => float(*x),
        Field::String(text) => text.as_str().into(),
        Field::Bytes(bytes) => scalar::format_bytes(bytes).into(),
        Field::EnumNumber(number) => match kind {
            Kind::Enum(e) if e.full_name() == "google.protobuf.NullValue" => Value::Null,
            Kind::Enum(e) => match e.get_value(*number) {
                Some(value) => value.name().into(),
                None => (*number).into(),
            },
            _ => (*number).into(),
        },
        Field::Message(message) => encode_message(message, depth),
        // Lists and maps do not nest.
        Field::List(_) | Field::Map(_) => Value::Null,
    }
}

fn float(x: f64) -> Value {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    if x.fract() == 0.0 && x.abs() < 9e15 {
        return (x as i64).into();
    }
    Number::from_f64(x).map_or(Value::Null, Value::Number)
}

fn map_key(key: &MapKey) -> String {
    match key {
        MapKey::Bool(b) => b.to_string(),
        MapKey::I32(n) => n.to_string(),
        MapKey::I64(n) => n.to_string(),
        MapKey::U32(n) => n.to_string(),
        MapKey::U64(n) => n.to_string(),
        MapKey::String(text) => text.clone(),
    }
}

fn camel_case(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut upper = false;
    for c in path.chars() {
        match c {
            '_' => upper = true,
            c if upper => {
                out.push(c.to_ascii_uppercase());
                upper = false;
            }
            c => out.push(c),
        }
    }
    out
}
