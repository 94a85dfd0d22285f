//! Protobuf well-known types as Rust values.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::google::protobuf::{self, Any, BoolValue, ListValue, Struct, UInt32Value, Value, value::Kind};
use prost::{Message, Name, Oneof};

/// A message packed with its type URL; equal messages give equal bytes.
#[must_use]
pub fn any<M: Message + Name>(message: &M) -> Any {
    sluice_proto::wire::to_any(message)
}

/// A message's bytes; equal messages give equal bytes.
#[must_use]
pub fn encode<M: Message + Name>(message: &M) -> Bytes {
    sluice_proto::wire::encode(message).into()
}

/// A duration message; what does not fit is clamped.
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
pub fn uint32(value: u32) -> UInt32Value {
    UInt32Value { value }
}

/// A boxed `uint32`, absent unless it is positive: where an API cannot tell zero from unset.
#[must_use]
pub fn positive(value: i32) -> Option<UInt32Value> {
    u32::try_from(value).ok().filter(|value| *value > 0).map(uint32)
}

/// A truth value as a JSON-like value.
#[must_use]
pub fn bool_value(value: bool) -> Value {
    Value { kind: Some(Kind::BoolValue(value)) }
}

/// A string as a JSON-like value.
#[must_use]
pub fn string_value(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

/// A struct of these fields.
#[must_use]
pub fn structure<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}

/// A struct of these fields, as a value.
#[must_use]
pub fn struct_value<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value { kind: Some(Kind::StructValue(structure(fields))) }
}

/// JSON text as a value; `None` if it is not JSON.
#[must_use]
pub fn json_value(text: &str) -> Option<Value> {
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

/// A list of values, as a value.
#[must_use]
pub fn list_value(values: Vec<Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values })) }
}

/// `google.protobuf.Struct` with its fields in order: the generated type has a hash map and is written in any order.
#[derive(Clone, PartialEq, Message)]
struct OrderedStruct {
    #[prost(btree_map = "string, message", tag = "1")]
    fields: BTreeMap<String, OrderedValue>,
}

#[derive(Clone, PartialEq, Message)]
struct OrderedList {
    #[prost(message, repeated, tag = "1")]
    values: Vec<OrderedValue>,
}

#[derive(Clone, PartialEq, Message)]
struct OrderedValue {
    #[prost(oneof = "OrderedKind", tags = "1, 2, 3, 4, 5, 6")]
    kind: Option<OrderedKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum OrderedKind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(OrderedStruct),
    #[prost(message, tag = "6")]
    List(OrderedList),
}

fn ordered(value: serde_json::Value) -> OrderedValue {
    let kind = match value {
        serde_json::Value::Null => OrderedKind::Null(0),
        serde_json::Value::Bool(value) => OrderedKind::Bool(value),
        serde_json::Value::Number(value) => OrderedKind::Number(value.as_f64().unwrap_or_default()),
        serde_json::Value::String(value) => OrderedKind::Text(value),
        serde_json::Value::Array(values) => {
            OrderedKind::List(OrderedList { values: values.into_iter().map(ordered).collect() })
        }
        serde_json::Value::Object(fields) => OrderedKind::Struct(ordered_struct(fields)),
    };
    OrderedValue { kind: Some(kind) }
}

fn ordered_struct(fields: serde_json::Map<String, serde_json::Value>) -> OrderedStruct {
    OrderedStruct { fields: fields.into_iter().map(|(name, value)| (name, ordered(value))).collect() }
}

/// `udpa.type.v1.TypedStruct`: how filters are configured whose messages Envoy's own API does not declare.
#[derive(Clone, PartialEq, Message)]
struct TypedStruct {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(message, optional, tag = "2")]
    value: Option<OrderedStruct>,
}

/// A message of type `type_url` written as a struct; what is not a JSON object is the empty struct.
#[must_use]
pub fn typed_struct(type_url: &str, value: serde_json::Value) -> Any {
    let fields = match value {
        serde_json::Value::Object(fields) => fields,
        _ => serde_json::Map::new(),
    };
    let message = TypedStruct { type_url: type_url.to_owned(), value: Some(ordered_struct(fields)) };
    Any { type_url: "type.googleapis.com/udpa.type.v1.TypedStruct".to_owned(), value: message.encode_to_vec() }
}
