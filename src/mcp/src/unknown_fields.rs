//! Unknown fields of messages. They have no name and no JSON, so that parsers of objects would not notice them.

use prost_reflect::{DynamicMessage, MapKey, Value as Field};
use serde_json::Value;

/// Adds a field `field_NUMBER` to the JSON of each message that has unknown fields, for one of them.
pub(crate) fn add_unknown_fields(message: &DynamicMessage, json: &mut Value) {
    // A message of a policy has the JSON of an object.
    let _ = of_message(message, json);
}

/// The number of an unknown field for which the JSON of the message has no place: it is not an object.
fn of_message(message: &DynamicMessage, json: &mut Value) -> Option<u32> {
    let mut unplaced = message.unknown_fields().next().map(prost_reflect::UnknownField::number);
    for (field, value) in message.fields() {
        let inner = json.get_mut(field.json_name()).and_then(|json| of_field(value, json));
        unplaced = lowest(unplaced, inner);
    }
    let number = unplaced?;
    let Some(fields) = json.as_object_mut() else { return Some(number) };
    fields.insert(format!("field_{number}"), Value::Null);
    None
}

fn of_field(value: &Field, json: &mut Value) -> Option<u32> {
    match value {
        Field::Message(message) => of_message(message, json),
        Field::List(elements) => {
            let json = json.as_array_mut()?;
            elements.iter().zip(json).fold(None, |unplaced, (element, json)| lowest(unplaced, of_field(element, json)))
        }
        Field::Map(entries) => entries.iter().fold(None, |unplaced, (key, value)| {
            lowest(unplaced, json.get_mut(key_text(key)).and_then(|json| of_field(value, json)))
        }),
        _ => None,
    }
}

/// The lowest number, so that the order of a map does not matter.
fn lowest(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    one.into_iter().chain(other).min()
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(value) => value.to_string(),
        MapKey::I32(value) => value.to_string(),
        MapKey::I64(value) => value.to_string(),
        MapKey::U32(value) => value.to_string(),
        MapKey::U64(value) => value.to_string(),
        MapKey::String(value) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use serde_json::json;
    use sluice_proto::json::encode_dynamic;

    use super::*;

    /// A field of a message whose value are these bytes.
    fn bytes(number: u8, value: &[u8]) -> Vec<u8> {
        let length = u8::try_from(value.len()).expect("a short value");
        let mut encoded = vec![(number << 3) | 2, length];
        encoded.extend(value);
        encoded
    }

    fn read(message: &str, encoded: &[u8]) -> Value {
        let descriptor = sluice_proto::pool().get_message_by_name(message).expect("a message");
        let message = DynamicMessage::decode(descriptor, encoded).expect("a valid message");
        assert_eq!(message.encode_to_vec().len(), encoded.len());
        let mut json = encode_dynamic(&message);
        add_unknown_fields(&message, &mut json);
        json
    }

    #[test]
    fn unknown_fields_are_in_the_object_of_their_message() {
        let unknown = bytes(15, b"new");
        // rules.from.source
        let source = [bytes(1, b"a"), unknown.clone()].concat();
        let rule = bytes(1, &bytes(1, &source));
        let found = read("istio.security.v1beta1.AuthorizationPolicy", &[bytes(2, &rule), unknown.clone()].concat());
        let expected =
            json!({"field_15": null, "rules": [{"from": [{"source": {"principals": ["a"], "field_15": null}}]}]});
        assert_eq!(found, expected);
        // portLevelMtls
        let entry = [vec![8, 80], bytes(2, &unknown)].concat();
        let found = read("istio.security.v1beta1.PeerAuthentication", &bytes(3, &entry));
        assert_eq!(found, json!({"portLevelMtls": {"80": {"field_15": null}}}));
        // jwtRules.timeout is a Duration, which is a string.
        let rule = bytes(13, &unknown);
        let found = read("istio.security.v1beta1.RequestAuthentication", &bytes(2, &rule));
        assert_eq!(found, json!({"jwtRules": [{"timeout": "0s", "field_15": null}]}));
    }
}
