//! Constructors of protobuf well-known types.

use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::google::protobuf::{self, Any, BoolValue, ListValue, Struct, UInt32Value, Value, value::Kind};
use prost::{Message, Name};
use sluice_proto::typed_struct::TypedStruct;

/// Packs a message with its type URL. Equal messages give equal bytes.
#[must_use]
pub fn any<M: Message + Name>(message: &M) -> Any {
    sluice_proto::wire::to_any(message)
}

/// Encodes a message. Equal messages give equal bytes.
#[must_use]
pub fn encode<M: Message + Name>(message: &M) -> Bytes {
    sluice_proto::wire::encode(message).into()
}

/// A duration. A value out of range is clamped.
#[must_use]
pub fn duration(duration: Duration) -> protobuf::Duration {
    protobuf::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

/// A boxed `bool`.
#[must_use]
pub fn boolean(value: bool) -> BoolValue {
    BoolValue { value }
}

/// A boxed `uint32`.
#[must_use]
pub(crate) fn uint32(value: u32) -> UInt32Value {
    UInt32Value { value }
}

/// A boxed `uint32`, absent for 0: in some APIs, 0 means unset.
#[must_use]
pub fn positive(value: i32) -> Option<UInt32Value> {
    u32::try_from(value).ok().filter(|value| *value > 0).map(uint32)
}

/// A boolean `Value`.
#[must_use]
pub(crate) fn bool_value(value: bool) -> Value {
    Value { kind: Some(Kind::BoolValue(value)) }
}

/// A string `Value`.
#[must_use]
pub fn string_value(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

/// A `Struct` of these fields.
#[must_use]
pub fn structure<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}

/// A `Value` with a struct of these fields.
#[must_use]
pub fn struct_value<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value { kind: Some(Kind::StructValue(structure(fields))) }
}

/// A `Value` from JSON text; `None` if the text is not JSON.
#[must_use]
pub(crate) fn json_value(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().map(from_json)
}

fn from_json(value: serde_json::Value) -> Value {
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(value) => Kind::BoolValue(value),
        serde_json::Value::Number(value) => Kind::NumberValue(value.as_f64().unwrap_or_default()),
        serde_json::Value::String(value) => Kind::StringValue(value),
        serde_json::Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.into_iter().map(from_json).collect() })
        }
        serde_json::Value::Object(fields) => Kind::StructValue(Struct {
            fields: fields.into_iter().map(|(name, value)| (name, from_json(value))).collect(),
        }),
    };
    Value { kind: Some(kind) }
}

/// A `Value` with a list.
#[must_use]
pub fn list_value(values: Vec<Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values })) }
}

/// A `TypedStruct` of type `type_url`. A value that is not a JSON object gives an empty struct.
#[must_use]
pub fn typed_struct(type_url: &str, value: serde_json::Value) -> Any {
    let value = match from_json(value).kind {
        Some(Kind::StructValue(value)) => value,
        _ => Struct::default(),
    };
    any(&TypedStruct { type_url: type_url.to_owned(), value: Some(value) })
}
