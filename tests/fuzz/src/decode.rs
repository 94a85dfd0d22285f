//! Checks that published bytes decode as their message type, including every nested `Any`, and that they keep Envoy's
//! validation rules.

use prost_reflect::{DynamicMessage, MapKey, ReflectMessage, Value};
use sluice_proto::pool;

use crate::envoy_rules::add_violations;

/// Decodes `bytes` as a message of that name, with all packed messages. Returns the rules of Envoy that they violate.
///
/// # Errors
/// The message that does not decode, and the reason.
pub fn check(name: &str, bytes: &[u8]) -> Result<Vec<String>, String> {
    let mut rules = Vec::new();
    check_message(name, bytes, &mut rules)?;
    Ok(rules)
}

fn check_message(name: &str, bytes: &[u8], rules: &mut Vec<String>) -> Result<(), String> {
    let descriptor = pool().get_message_by_name(name).ok_or_else(|| format!("there is no message {name}"))?;
    let message = DynamicMessage::decode(descriptor, bytes).map_err(|error| format!("{name}: {error}"))?;
    walk(&message, rules)
}

fn walk(message: &DynamicMessage, rules: &mut Vec<String>) -> Result<(), String> {
    if message.descriptor().full_name() == "google.protobuf.Any" {
        return packed(message, rules);
    }
    add_violations(message, rules);
    message.fields().try_for_each(|(_, value)| visit(value, rules))
}

fn visit(value: &Value, rules: &mut Vec<String>) -> Result<(), String> {
    match value {
        Value::Message(message) => walk(message, rules),
        Value::List(values) => values.iter().try_for_each(|value| visit(value, rules)),
        Value::Map(entries) => entries.iter().try_for_each(|(_, value): (&MapKey, &Value)| visit(value, rules)),
        _ => Ok(()),
    }
}

fn packed(any: &DynamicMessage, rules: &mut Vec<String>) -> Result<(), String> {
    let text = any.get_field_by_name("type_url");
    let url = text.as_ref().and_then(|value| value.as_str()).unwrap_or_default();
    let bytes = any.get_field_by_name("value");
    let bytes = bytes.as_ref().and_then(|value| value.as_bytes()).map(|bytes| &bytes[..]).unwrap_or_default();
    // An empty `Any`, as the configuration of a Wasm module that has none.
    if url.is_empty() && bytes.is_empty() {
        return Ok(());
    }
    check_message(url.rsplit('/').next().unwrap_or(url), bytes, rules)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn packed_messages_are_decoded() {
        let good = sluice_proto::google::protobuf::Any {
            type_url: "type.googleapis.com/google.protobuf.Duration".to_owned(),
            value: vec![8, 1],
        };
        assert_eq!(check("google.protobuf.Any", &good.encode_to_vec()), Ok(Vec::new()));
        let bad = sluice_proto::google::protobuf::Any { value: vec![10, 9, 1], ..good.clone() };
        assert!(check("google.protobuf.Any", &bad.encode_to_vec()).is_err());
        let unknown = sluice_proto::google::protobuf::Any { type_url: "a/b.C".to_owned(), ..good };
        assert!(check("google.protobuf.Any", &unknown.encode_to_vec()).is_err());
    }
}
