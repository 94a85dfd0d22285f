//! Protobuf messages as values of templates, with the names that Go's generated code has.

use std::any::Any;
use std::sync::Arc;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value as Proto};
use serde_json::Value as Json;
use sluice_proto::json::encode_dynamic;

use sluice_template::{Extent, TemplateObject, Value};

/// How many times longer than its encoding the JSON of a message is assumed to be.
const NAME_FACTOR: usize = 8;

/// The value of a message.
pub(crate) fn message_value(message: &DynamicMessage) -> Value {
    Value::Object(Arc::new(MessageObject { descriptor: message.descriptor(), message: Some(message.clone()) }))
}

/// A message, or a null pointer of its type.
#[derive(Debug)]
struct MessageObject {
    descriptor: MessageDescriptor,
    message: Option<DynamicMessage>,
}

impl TemplateObject for MessageObject {
    fn type_name(&self) -> String {
        format!("*{}", self.descriptor.full_name())
    }

    /// Fields such as `.ProxyMetadata`, and methods such as `.GetTracing`, which null pointers have too.
    fn field(&self, name: &str) -> Result<Option<Value>, String> {
        if name == "String" {
            return Ok(Some(Value::text(self.text())));
        }
        let find = |name: &str| self.descriptor.fields().find(|field| go_name(field.name()) == name);
        let (field, is_method) = match name.strip_prefix("Get").and_then(find) {
            Some(field) => (Some(field), true),
            None => (find(name), false),
        };
        let Some(field) = field else { return Ok(None) };
        if !is_method && self.message.is_none() {
            return Err(format!("nil pointer evaluating {}.{name}", self.type_name()));
        }
        Ok(Some(field_value(self.message.as_ref(), &field)))
    }

    fn is_nil(&self) -> bool {
        self.message.is_none()
    }

    fn extent(&self) -> Extent {
        // Names of fields are several times longer than their tags.
        let encoded = self.message.as_ref().map_or(0, prost_reflect::prost::Message::encoded_len);
        Extent { depth: 1, bytes: encoded.saturating_mul(NAME_FACTOR) }
    }

    fn json(&self) -> Json {
        self.message.as_ref().map_or(Json::Null, encode_dynamic)
    }

    fn is_pointer(&self) -> bool {
        self.message.is_some()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.message.as_ref().map(|message| message as &dyn Any)
    }
}

fn field_value(message: Option<&DynamicMessage>, field: &FieldDescriptor) -> Value {
    let message = message.filter(|message| message.has_field(field));
    let is_single = !field.is_list() && !field.is_map();
    match (message, field.kind()) {
        (None, Kind::Message(descriptor)) if is_single => {
            Value::Object(Arc::new(MessageObject { descriptor, message: None }))
        }
        (None, kind) => of_proto(&Proto::default_value_for_field(field), &kind),
        (Some(message), kind) => of_proto(&message.get_field(field), &kind),
    }
}

fn of_proto(value: &Proto, kind: &Kind) -> Value {
    match value {
        Proto::Bool(flag) => Value::Bool(*flag),
        Proto::I32(number) => Value::Integer(i64::from(*number)),
        Proto::I64(number) => Value::Integer(*number),
        Proto::U32(number) => Value::Integer(i64::from(*number)),
        Proto::U64(number) => Value::Integer(i64::try_from(*number).unwrap_or(i64::MAX)),
        Proto::F32(number) => Value::Float(f64::from(*number)),
        Proto::F64(number) => Value::Float(*number),
        Proto::String(text) => Value::text(text.as_str()),
        Proto::Bytes(bytes) => Value::text(String::from_utf8_lossy(bytes).as_ref()),
        Proto::EnumNumber(number) => {
            let name = match kind {
                Kind::Enum(descriptor) => descriptor.get_value(*number).map(|value| value.name().to_owned()),
                _ => None,
            };
            Value::Object(Arc::new(EnumObject { name: name.unwrap_or_else(|| number.to_string()), number: *number }))
        }
        Proto::Message(message) => message_value(message),
        Proto::List(items) => Value::list(items.iter().map(|item| of_proto(item, kind)).collect()),
        Proto::Map(entries) => {
            let kind = match kind {
                Kind::Message(entry) => entry.map_entry_value_field().kind(),
                other => other.clone(),
            };
            if kind == Kind::String {
                return Value::text_dict(
                    entries.iter().map(|(key, value)| (key_text(key), value.as_str().unwrap_or_default().to_owned())),
                );
            }
            Value::dict(entries.iter().map(|(key, value)| (key_text(key), of_proto(value, &kind))).collect())
        }
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::String(text) => text.clone(),
        MapKey::Bool(flag) => flag.to_string(),
        MapKey::I32(number) => number.to_string(),
        MapKey::I64(number) => number.to_string(),
        MapKey::U32(number) => number.to_string(),
        MapKey::U64(number) => number.to_string(),
    }
}

/// `proxy_metadata` is `ProxyMetadata`.
fn go_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut upper = true;
    for character in name.chars() {
        match character {
            '_' => upper = true,
            character if upper => {
                out.push(character.to_ascii_uppercase());
                upper = false;
            }
            character => out.push(character),
        }
    }
    out
}

/// The value of an enum. It is printed as its name.
#[derive(Debug)]
struct EnumObject {
    name: String,
    number: i32,
}

impl TemplateObject for EnumObject {
    fn type_name(&self) -> String {
        "int32".to_owned()
    }

    fn field(&self, name: &str) -> Result<Option<Value>, String> {
        Ok(match name {
            "String" => Some(Value::text(self.name.as_str())),
            "Number" => Some(Value::Integer(i64::from(self.number))),
            _ => None,
        })
    }

    fn integer(&self) -> Option<i64> {
        Some(i64::from(self.number))
    }

    fn extent(&self) -> Extent {
        Extent { depth: 0, bytes: self.name.len() }
    }

    fn json(&self) -> Json {
        Json::String(self.name.clone())
    }

    fn text(&self) -> String {
        self.name.clone()
    }
}
