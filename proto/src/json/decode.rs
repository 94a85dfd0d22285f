//! JSON to the wire format, by descriptors.
//!
//! It writes bytes without a dynamic message in between; the typed message is then decoded from the bytes.

use std::fmt::{self, Write as _};

use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use super::{Decoded, FieldError, MAX_FIELD_PATH_BYTES, MAX_REASON_BYTES, MAX_UNKNOWN_FIELDS, Shortened, scalar};
use crate::pool;

/// Maximum nesting of messages, as in protobuf's decoders.
const MAX_MESSAGE_DEPTH: usize = 100;
/// Longer strings are not quoted.
const MAX_QUOTED_CHARS: usize = 60;

/// Encodes `value` as a message.
pub(super) fn to_wire(descriptor: &MessageDescriptor, value: &Value) -> Result<Decoded<Vec<u8>>, FieldError> {
    let mut writer = JsonToWire::default();
    let mut out = Vec::new();
    writer.message(descriptor, value, &mut out)?;
    Ok(writer.decoded(out))
}

/// Encodes the message inside an expanded `Any`.
pub(super) fn any_to_wire(value: &Value) -> Result<Decoded<(String, Vec<u8>)>, FieldError> {
    let mut writer = JsonToWire::default();
    let message = writer.expanded_any(value)?;
    Ok(writer.decoded(message))
}

#[derive(Default)]
struct JsonToWire {
    /// The path of the current field. Its keys of maps may be long, so it is shortened where it is recorded.
    path: String,
    depth: usize,
    unknown: Vec<String>,
    more_unknown: usize,
}

impl JsonToWire {
    fn decoded<M>(self, message: M) -> Decoded<M> {
        Decoded { message, unknown: self.unknown, more_unknown: self.more_unknown }
    }

    fn fail<T>(&self, reason: impl fmt::Display) -> Result<T, FieldError> {
        let path = Shortened::of(&self.path, MAX_FIELD_PATH_BYTES);
        Err(FieldError { path, reason: Shortened::of(&reason, MAX_REASON_BYTES) })
    }

    fn expected<T>(&self, expected: &str, value: &Value) -> Result<T, FieldError> {
        let actual = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(b) => b.to_string(),
            Value::Number(n) => n.to_string(),
            Value::String(s) if s.chars().nth(MAX_QUOTED_CHARS).is_none() => format!("{s:?}"),
            Value::String(_) => "a long string".to_owned(),
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
        };
        self.fail(format_args!("expected {expected}, got {actual}"))
    }

    /// Runs `step` with `part` (`.name` or `[index]`) appended to the path.
    fn at<T>(
        &mut self,
        part: fmt::Arguments<'_>,
        step: impl FnOnce(&mut Self) -> Result<T, FieldError>,
    ) -> Result<T, FieldError> {
        let length = self.path.len();
        // Writing to a string does not fail.
        let _ = self.path.write_fmt(part);
        if length == 0 && self.path.starts_with('.') {
            self.path.remove(0);
        }
        let result = step(self);
        self.path.truncate(length);
        result
    }

    fn note_unknown(&mut self, name: &str) {
        if self.unknown.len() < MAX_UNKNOWN_FIELDS {
            let dot = if self.path.is_empty() { "" } else { "." };
            self.unknown.push(Shortened::of(&format_args!("{}{dot}{name}", self.path), MAX_FIELD_PATH_BYTES));
        } else {
            self.more_unknown += 1;
        }
    }

    fn message(&mut self, descriptor: &MessageDescriptor, value: &Value, out: &mut Vec<u8>) -> Result<(), FieldError> {
        if self.depth >= MAX_MESSAGE_DEPTH {
            return self.fail("nested too deeply");
        }
        self.depth += 1;
        let result = self.message_body(descriptor, value, out);
        self.depth -= 1;
        result
    }

    fn message_body(
        &mut self,
        descriptor: &MessageDescriptor,
        value: &Value,
        out: &mut Vec<u8>,
    ) -> Result<(), FieldError> {
        match descriptor.full_name() {
            "google.protobuf.Any" => {
                if value.as_object().is_some_and(Map::is_empty) {
                    return Ok(());
                }
                let (url, bytes) = self.expanded_any(value)?;
                put_bytes(out, 1, url.as_bytes());
                put_nonempty(out, 2, &bytes);
                Ok(())
            }
            "google.protobuf.Duration" => match value {
                Value::String(text) => self.seconds(scalar::parse_signed_duration(text), out),
                _ => self.expected("a duration like \"1.5s\"", value),
            },
            "google.protobuf.Timestamp" => match value {
                Value::String(text) => self.seconds(scalar::parse_timestamp(text), out),
                _ => self.expected("a time like \"2026-01-02T03:04:05Z\"", value),
            },
            "google.protobuf.FieldMask" => match value {
                Value::String(text) => {
                    for path in text.split(',').filter(|path| !path.is_empty()) {
                        put_bytes(out, 1, snake_case(path).as_bytes());
                    }
                    Ok(())
                }
                _ => self.expected("a list of fields in one string", value),
            },
            "google.protobuf.Struct" => self.struct_fields(value, out),
            "google.protobuf.ListValue" => self.list_values(value, out),
            "google.protobuf.Value" => self.struct_value(value, out),
            name if is_wrapper(name) => match descriptor.get_field(1) {
                Some(field) => self.singular(&field, value, out, false),
                None => self.fail("a wrapper type without a value field"),
            },
            _ => match value {
                Value::Object(fields) => self.fields(descriptor, fields, out),
                _ => self.expected("an object", value),
            },
        }
    }

    fn fields(
        &mut self,
        descriptor: &MessageDescriptor,
        fields: &Map<String, Value>,
        out: &mut Vec<u8>,
    ) -> Result<(), FieldError> {
        let mut seen: Vec<(u32, &str)> = Vec::new();
        let mut oneofs: Vec<(String, &str)> = Vec::new();
        for (name, value) in fields {
            let field = descriptor.get_field_by_json_name(name).or_else(|| descriptor.get_field_by_name(name));
            let Some(field) = field else {
                if name != "@type" {
                    self.note_unknown(name);
                }
                continue;
            };
            if value.is_null() && !accepts_null(&field) {
                continue;
            }
            if let Some((_, other)) = seen.iter().find(|(number, _)| *number == field.number()) {
                return self.at(format_args!(".{name}"), |w| w.fail(format_args!("is the same field as {other}")));
            }
            seen.push((field.number(), name));
            if let Some(oneof) = field.containing_oneof() {
                if let Some((_, other)) = oneofs.iter().find(|(known, _)| known == oneof.name()) {
                    return self.at(format_args!(".{name}"), |w| {
                        w.fail(format_args!("only one of this field and {other} may be set"))
                    });
                }
                oneofs.push((oneof.name().to_owned(), name));
            }
            self.at(format_args!(".{name}"), |w| w.field(&field, value, out))?;
        }
        Ok(())
    }

    fn field(&mut self, field: &FieldDescriptor, value: &Value, out: &mut Vec<u8>) -> Result<(), FieldError> {
        if field.is_map() {
            return self.map(field, value, out);
        }
        if !field.is_list() {
            return self.singular(field, value, out, field.supports_presence());
        }
        let Value::Array(elements) = value else { return self.expected("a list", value) };
        for (index, element) in elements.iter().enumerate() {
            self.at(format_args!("[{index}]"), |w| w.singular(field, element, out, true))?;
        }
        Ok(())
    }

    fn map(&mut self, field: &FieldDescriptor, value: &Value, out: &mut Vec<u8>) -> Result<(), FieldError> {
        let (Value::Object(entries), Kind::Message(entry)) = (value, field.kind()) else {
            return self.expected("an object", value);
        };
        let (key_field, value_field) = (entry.map_entry_key_field(), entry.map_entry_value_field());
        for (key, value) in entries {
            self.at(format_args!("[{key}]"), |w| {
                let key = match key_field.kind() {
                    Kind::Bool => match key.as_str() {
                        "true" => Value::Bool(true),
                        "false" => Value::Bool(false),
                        _ => return w.fail("expected true or false as key"),
                    },
                    _ => Value::String(key.clone()),
                };
                let mut pair = Vec::new();
                w.singular(&key_field, &key, &mut pair, true)?;
                w.singular(&value_field, value, &mut pair, true)?;
                put_bytes(out, field.number(), &pair);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Writes one value with its tag; a default value only with `always`.
    fn singular(
        &mut self,
        field: &FieldDescriptor,
        value: &Value,
        out: &mut Vec<u8>,
        always: bool,
    ) -> Result<(), FieldError> {
        let number = field.number();
        let kind = field.kind();
        match &kind {
            Kind::Bool => match value {
                Value::Bool(b) => put_varint(out, number, u64::from(*b), always),
                _ => return self.expected("true or false", value),
            },
            Kind::String => match value {
                Value::String(text) if always || !text.is_empty() => put_bytes(out, number, text.as_bytes()),
                Value::String(_) => {}
                _ => return self.expected("a string", value),
            },
            Kind::Bytes => match value {
                Value::String(text) => match scalar::parse_bytes(text) {
                    Ok(bytes) if always || !bytes.is_empty() => put_bytes(out, number, &bytes),
                    Ok(_) => {}
                    Err(reason) => return self.fail(reason),
                },
                _ => return self.expected("bytes in base64", value),
            },
            Kind::Int32 => {
                let n = self.integer(value, i128::from(i32::MIN), i128::from(i32::MAX))?;
                put_varint(out, number, n as i64 as u64, always);
            }
            Kind::Int64 => {
                let n = self.integer(value, i128::from(i64::MIN), i128::from(i64::MAX))?;
                put_varint(out, number, n as i64 as u64, always);
            }
            Kind::Uint32 => put_varint(out, number, self.integer(value, 0, i128::from(u32::MAX))? as u64, always),
            Kind::Uint64 => put_varint(out, number, self.integer(value, 0, i128::from(u64::MAX))? as u64, always),
            Kind::Sint32 => {
                let n = self.integer(value, i128::from(i32::MIN), i128::from(i32::MAX))? as i64;
                put_varint(out, number, ((n << 1) ^ (n >> 63)) as u64, always);
            }
            Kind::Sint64 => {
                let n = self.integer(value, i128::from(i64::MIN), i128::from(i64::MAX))? as i64;
                put_varint(out, number, ((n << 1) ^ (n >> 63)) as u64, always);
            }
            Kind::Fixed32 => {
                put_fixed32(out, number, self.integer(value, 0, i128::from(u32::MAX))? as u32, always);
            }
            Kind::Sfixed32 => {
                let n = self.integer(value, i128::from(i32::MIN), i128::from(i32::MAX))? as i32;
                put_fixed32(out, number, n as u32, always);
            }
            Kind::Fixed64 => {
                put_fixed64(out, number, self.integer(value, 0, i128::from(u64::MAX))? as u64, always);
            }
            Kind::Sfixed64 => {
                let n = self.integer(value, i128::from(i64::MIN), i128::from(i64::MAX))? as i64;
                put_fixed64(out, number, n as u64, always);
            }
            Kind::Float => put_fixed32(out, number, (self.float(value)? as f32).to_bits(), always),
            Kind::Double => put_fixed64(out, number, self.float(value)?.to_bits(), always),
            Kind::Enum(enumeration) => {
                let n = self.enum_number(enumeration, value)?;
                put_varint(out, number, i64::from(n) as u64, always);
            }
            Kind::Message(message) => {
                let mut inner = Vec::new();
                self.message(message, value, &mut inner)?;
                put_bytes(out, number, &inner);
            }
        }
        Ok(())
    }

    fn integer(&self, value: &Value, min: i128, max: i128) -> Result<i128, FieldError> {
        let parsed = match value {
            Value::Number(n) => n
                .as_i64()
                .map(i128::from)
                .or_else(|| n.as_u64().map(i128::from))
                .or_else(|| n.as_f64().and_then(to_integer)),
            Value::String(text) => text.parse::<i128>().ok().or_else(|| text.parse::<f64>().ok().and_then(to_integer)),
            _ => None,
        };
        match parsed {
            Some(n) if (min..=max).contains(&n) => Ok(n),
            Some(n) => self.fail(format_args!("{n} is out of range; {min} to {max} is accepted")),
            None => self.expected("a whole number", value),
        }
    }

    fn float(&self, value: &Value) -> Result<f64, FieldError> {
        let parsed = match value {
            Value::Number(n) => n.as_f64(),
            Value::String(text) => match text.as_str() {
                "NaN" => Some(f64::NAN),
                "Infinity" => Some(f64::INFINITY),
                "-Infinity" => Some(f64::NEG_INFINITY),
                text => text.parse().ok().filter(|x: &f64| x.is_finite()),
            },
            _ => None,
        };
        parsed.map_or_else(|| self.expected("a number", value), Ok)
    }

    fn enum_number(&self, enumeration: &EnumDescriptor, value: &Value) -> Result<i32, FieldError> {
        match value {
            Value::Null if enumeration.full_name() == "google.protobuf.NullValue" => Ok(0),
            Value::String(name) => match enumeration.get_value_by_name(name) {
                Some(found) => Ok(found.number()),
                None => {
                    let accepted: Vec<_> = enumeration.values().map(|value| value.name().to_owned()).collect();
                    self.fail(format_args!("unknown value {name:?}, accepted: {}", accepted.join(", ")))
                }
            },
            Value::Number(_) => Ok(self.integer(value, i128::from(i32::MIN), i128::from(i32::MAX))? as i32),
            _ => self.expected("the name of an enum value", value),
        }
    }

    fn seconds(&self, parsed: Result<(i64, i32), String>, out: &mut Vec<u8>) -> Result<(), FieldError> {
        let (seconds, nanos) = parsed.or_else(|reason| self.fail(reason))?;
        put_varint(out, 1, seconds as u64, false);
        put_varint(out, 2, i64::from(nanos) as u64, false);
        Ok(())
    }

    fn struct_fields(&mut self, value: &Value, out: &mut Vec<u8>) -> Result<(), FieldError> {
        let Value::Object(fields) = value else { return self.expected("an object", value) };
        for (name, value) in fields {
            let mut pair = Vec::new();
            put_bytes(&mut pair, 1, name.as_bytes());
            let inner = self.nested(value)?;
            put_bytes(&mut pair, 2, &inner);
            put_bytes(out, 1, &pair);
        }
        Ok(())
    }

    fn list_values(&mut self, value: &Value, out: &mut Vec<u8>) -> Result<(), FieldError> {
        let Value::Array(elements) = value else { return self.expected("a list", value) };
        for element in elements {
            let inner = self.nested(element)?;
            put_bytes(out, 1, &inner);
        }
        Ok(())
    }

    fn nested(&mut self, value: &Value) -> Result<Vec<u8>, FieldError> {
        if self.depth >= MAX_MESSAGE_DEPTH {
            return self.fail("nested too deeply");
        }
        // A value in a struct is a nested message.
        self.depth += 1;
        let mut inner = Vec::new();
        let result = self.struct_value(value, &mut inner);
        self.depth -= 1;
        result.map(|()| inner)
    }

    fn struct_value(&mut self, value: &Value, out: &mut Vec<u8>) -> Result<(), FieldError> {
        match value {
            Value::Null => put_varint(out, 1, 0, true),
            Value::Number(n) => match n.as_f64() {
                Some(n) => put_fixed64(out, 2, n.to_bits(), true),
                None => return self.expected("a number", value),
            },
            Value::String(text) => put_bytes(out, 3, text.as_bytes()),
            Value::Bool(b) => put_varint(out, 4, u64::from(*b), true),
            Value::Object(_) => {
                let mut inner = Vec::new();
                self.struct_fields(value, &mut inner)?;
                put_bytes(out, 5, &inner);
            }
            Value::Array(_) => {
                let mut inner = Vec::new();
                self.list_values(value, &mut inner)?;
                put_bytes(out, 6, &inner);
            }
        }
        Ok(())
    }

    fn expanded_any(&mut self, value: &Value) -> Result<(String, Vec<u8>), FieldError> {
        let Value::Object(fields) = value else { return self.expected("an object with @type", value) };
        let Some(Value::String(url)) = fields.get("@type") else { return self.fail("field @type is missing") };
        let name = url.rsplit('/').next().unwrap_or(url);
        let mut bytes = Vec::new();
        match (pool().get_message_by_name(name), fields.get("value")) {
            (Some(message), Some(inner)) if has_own_json(name) => self.message(&message, inner, &mut bytes)?,
            (Some(message), _) => self.message(&message, value, &mut bytes)?,
            (None, Some(Value::String(text))) if fields.len() == 2 => {
                bytes = scalar::parse_bytes(text).or_else(|reason| self.fail(reason))?;
            }
            (None, _) => return self.fail(format_args!("unknown message type {name}")),
        }
        Ok((url.clone(), bytes))
    }
}

/// Whether the JSON of a type is not an object of its fields. In an `Any`, such JSON is the field `value`.
pub(super) fn has_own_json(name: &str) -> bool {
    is_wrapper(name)
        || matches!(
            name.strip_prefix("google.protobuf."),
            Some("Any" | "Duration" | "Timestamp" | "FieldMask" | "Struct" | "Value" | "ListValue" | "Empty")
        )
}

/// Whether a type is a wrapper of a scalar, whose JSON is that of the scalar.
pub(super) fn is_wrapper(name: &str) -> bool {
    matches!(
        name.strip_prefix("google.protobuf."),
        Some(
            "DoubleValue"
                | "FloatValue"
                | "Int64Value"
                | "UInt64Value"
                | "Int32Value"
                | "UInt32Value"
                | "BoolValue"
                | "StringValue"
                | "BytesValue"
        )
    )
}

fn accepts_null(field: &FieldDescriptor) -> bool {
    match field.kind() {
        Kind::Message(message) => message.full_name() == "google.protobuf.Value",
        Kind::Enum(enumeration) => enumeration.full_name() == "google.protobuf.NullValue",
        _ => false,
    }
}

fn to_integer(x: f64) -> Option<i128> {
    (x.fract() == 0.0 && x.abs() < 1e19).then_some(x as i128)
}

fn snake_case(path: &str) -> String {
    let mut out = String::with_capacity(path.len() + 4);
    for c in path.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn put_varint(out: &mut Vec<u8>, number: u32, value: u64, always: bool) {
    if always || value != 0 {
        encode_key(number, WireType::Varint, out);
        encode_varint(value, out);
    }
}

fn put_fixed32(out: &mut Vec<u8>, number: u32, bits: u32, always: bool) {
    if always || bits != 0 {
        encode_key(number, WireType::ThirtyTwoBit, out);
        out.extend_from_slice(&bits.to_le_bytes());
    }
}

fn put_fixed64(out: &mut Vec<u8>, number: u32, bits: u64, always: bool) {
    if always || bits != 0 {
        encode_key(number, WireType::SixtyFourBit, out);
        out.extend_from_slice(&bits.to_le_bytes());
    }
}

fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn put_nonempty(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_bytes(out, number, bytes);
    }
}
