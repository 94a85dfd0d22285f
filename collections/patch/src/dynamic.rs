//! Fields of messages whose type is known at run time only. A field that is absent or has another type counts as unset.

use std::borrow::Cow;

use prost_reflect::{DynamicMessage, Value};

use crate::{decode, encode};

/// The value of a field that is set.
pub(crate) fn get<'a>(message: &'a DynamicMessage, field: &str) -> Option<&'a Value> {
    match message.get_field_by_name(field)? {
        Cow::Borrowed(value) => Some(value),
        Cow::Owned(_) => None,
    }
}

pub(crate) fn text<'a>(message: &'a DynamicMessage, field: &str) -> &'a str {
    get(message, field).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn number(message: &DynamicMessage, field: &str) -> u32 {
    get(message, field).and_then(Value::as_u32).unwrap_or_default()
}

pub(crate) fn enumeration(message: &DynamicMessage, field: &str) -> i32 {
    get(message, field).and_then(Value::as_enum_number).unwrap_or_default()
}

pub(crate) fn message<'a>(message: &'a DynamicMessage, field: &str) -> Option<&'a DynamicMessage> {
    get(message, field)?.as_message()
}

/// The message in a field, if it is set.
pub(crate) fn message_mut<'a>(message: &'a mut DynamicMessage, field: &str) -> Option<&'a mut DynamicMessage> {
    if !message.has_field_by_name(field) {
        return None;
    }
    message.get_field_by_name_mut(field)?.as_message_mut()
}

pub(crate) fn list<'a>(message: &'a DynamicMessage, field: &str) -> &'a [Value] {
    get(message, field).and_then(Value::as_list).unwrap_or_default()
}

/// Whether a list of strings contains `text`.
pub(crate) fn contains_text(message: &DynamicMessage, field: &str, text: &str) -> bool {
    list(message, field).iter().any(|value| value.as_str() == Some(text))
}

/// The messages in a list.
pub(crate) fn messages<'a>(message: &'a DynamicMessage, field: &str) -> impl Iterator<Item = &'a DynamicMessage> {
    list(message, field).iter().filter_map(Value::as_message)
}

/// Removes the messages of a list. [`put_messages`] puts them back.
pub(crate) fn take_messages(message: &mut DynamicMessage, field: &str) -> Vec<DynamicMessage> {
    let Some(Value::List(values)) = message.take_field_by_name(field) else { return Vec::new() };
    let messages = values.into_iter().filter_map(|value| match value {
        Value::Message(message) => Some(message),
        _ => None,
    });
    messages.collect()
}

pub(crate) fn put_messages(message: &mut DynamicMessage, field: &str, messages: Vec<DynamicMessage>) {
    set(message, field, Value::List(messages.into_iter().map(Value::Message).collect()));
}

pub(crate) fn set(message: &mut DynamicMessage, field: &str, value: Value) {
    // This fails only for a field of another type, and callers use fields of Envoy's messages.
    let _ = message.try_set_field_by_name(field, value);
}

/// The message in an `Any`, if the descriptor pool has its type.
pub(crate) fn unpack(any: &DynamicMessage) -> Option<DynamicMessage> {
    let value = get(any, "value").and_then(Value::as_bytes);
    decode(type_name(any), value.map(AsRef::as_ref).unwrap_or_default())
}

/// Full type name of the message in an `Any`.
pub(crate) fn type_name(any: &DynamicMessage) -> &str {
    let url = text(any, "type_url");
    url.rsplit_once('/').map_or(url, |(_, name)| name)
}

/// Replaces the message in an `Any` by another message of the same type.
pub(crate) fn repack(any: &mut DynamicMessage, inner: &DynamicMessage) {
    let name = type_name(any).to_owned();
    let value = encode(&name, inner);
    set(any, "type_url", Value::String(format!("type.googleapis.com/{name}")));
    set(any, "value", Value::Bytes(value));
}
