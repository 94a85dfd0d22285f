//! Whether published bytes are the message they are said to be, down to the last `Any`, and what Envoy would say of it.

use prost_reflect::{DynamicMessage, MapKey, ReflectMessage, Value};
use sluice_proto::pool;

use crate::envoy_rules::broken;

/// Decodes `bytes` as a message of that name and everything packed in it; gives the rules of Envoy that it breaks.
///
/// # Errors
/// Where it does not decode, and why.
pub fn check(name: &str, bytes: &[u8]) -> Result<Vec<String>, String> {
    let mut rules = Vec::new();
    look(name, bytes, &mut rules)?;
    Ok(rules)
}

fn look(name: &str, bytes: &[u8], rules: &mut Vec<String>) -> Result<(), String> {
    let descriptor = pool().get_message_by_name(name).ok_or_else(|| format!("there is no message {name}"))?;
    let message = DynamicMessage::decode(descriptor, bytes).map_err(|error| format!("{name}: {error}"))?;
    walk(&message, rules)
}

fn walk(message: &DynamicMessage, rules: &mut Vec<String>) -> Result<(), String> {
    if message.descriptor().full_name() == "google.protobuf.Any" {
        return packed(message, rules);
    }
    broken(message, rules);
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
    // A field that is set to nothing, as that of a Wasm module without configuration.
    if url.is_empty() && bytes.is_empty() {
        return Ok(());
    }
    look(url.rsplit('/').next().unwrap_or(url), bytes, rules)
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
