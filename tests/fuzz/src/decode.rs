//! Whether published bytes are the message they are said to be, down to the last `Any`.

use prost_reflect::{DynamicMessage, MapKey, ReflectMessage, Value};
use sluice_proto::pool;

/// Decodes `bytes` as a message of that name and everything packed in it.
///
/// # Errors
/// Where it does not decode, and why.
pub fn check(name: &str, bytes: &[u8]) -> Result<(), String> {
    let descriptor = pool().get_message_by_name(name).ok_or_else(|| format!("there is no message {name}"))?;
    let message = DynamicMessage::decode(descriptor, bytes).map_err(|error| format!("{name}: {error}"))?;
    walk(&message)
}

fn walk(message: &DynamicMessage) -> Result<(), String> {
    if message.descriptor().full_name() == "google.protobuf.Any" {
        return packed(message);
    }
    message.fields().try_for_each(|(_, value)| visit(value))
}

fn visit(value: &Value) -> Result<(), String> {
    match value {
        Value::Message(message) => walk(message),
        Value::List(values) => values.iter().try_for_each(visit),
        Value::Map(entries) => entries.iter().try_for_each(|(_, value): (&MapKey, &Value)| visit(value)),
        _ => Ok(()),
    }
}

fn packed(any: &DynamicMessage) -> Result<(), String> {
    let text = any.get_field_by_name("type_url");
    let url = text.as_ref().and_then(|value| value.as_str()).unwrap_or_default();
    let bytes = any.get_field_by_name("value");
    let bytes = bytes.as_ref().and_then(|value| value.as_bytes()).map(|bytes| &bytes[..]).unwrap_or_default();
    check(url.rsplit('/').next().unwrap_or(url), bytes)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn what_is_packed_is_looked_into() {
        let good = sluice_proto::google::protobuf::Any {
            type_url: "type.googleapis.com/google.protobuf.Duration".to_owned(),
            value: vec![8, 1],
        };
        assert_eq!(check("google.protobuf.Any", &good.encode_to_vec()), Ok(()));
        let bad = sluice_proto::google::protobuf::Any { value: vec![10, 9, 1], ..good.clone() };
        assert!(check("google.protobuf.Any", &bad.encode_to_vec()).is_err());
        let unknown = sluice_proto::google::protobuf::Any { type_url: "a/b.C".to_owned(), ..good };
        assert!(check("google.protobuf.Any", &unknown.encode_to_vec()).is_err());
    }
}
