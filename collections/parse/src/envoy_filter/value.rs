//! The value of a patch: a message of Envoy's as JSON.

use prost_reflect::prost::Message;
use prost_reflect::{DynamicMessage, ReflectMessage, Value as Reflected};
use serde_json::Value;
use sluice_model::PatchValue;
use sluice_proto::{json, pool, wire};

use crate::Fields;

/// The message of that type which `value` of the patch is; what is wrong with it is noted.
pub(super) fn read(message: &str, value: &Value, patch: &Fields<'_>) -> Option<PatchValue> {
    let path = patch.path_of("value");
    let at = |inner: &str| match inner {
        "" => path.clone(),
        inner if inner.starts_with('[') => format!("{path}{inner}"),
        inner => format!("{path}.{inner}"),
    };
    if !value.is_object() {
        patch.reject("value", "an object is expected");
        return None;
    }
    let descriptor = pool().get_message_by_name(message)?;
    let decoded = match json::decode_dynamic(&descriptor, value) {
        Ok(decoded) => decoded,
        Err(error) => {
            let hint = if error.reason.contains(".v2.") { " (version 3 of the API is spoken)" } else { "" };
            patch.findings().error(&at(&error.path), format!("{}{hint}", error.reason));
            return None;
        }
    };
    for unknown in &decoded.unknown {
        patch.findings().warning(&at(unknown), "unknown field");
    }
    let mut untyped = Vec::new();
    find_untyped(&decoded.message, &mut untyped);
    for name in untyped {
        patch.warn("value", format!("`{name}` has no typed_config"));
    }
    let bytes = wire::sort_maps(message, decoded.message.encode_to_vec());
    Some(PatchValue(bytes.into()))
}

/// Names of the extensions that are known by their name only.
fn find_untyped(message: &DynamicMessage, found: &mut Vec<String>) {
    let descriptor = message.descriptor();
    for (_, value) in message.fields() {
        if let Reflected::Message(inner) = value {
            find_untyped(inner, found);
        }
    }
    let has = |name: &str| descriptor.get_field_by_name(name).is_some_and(|field| message.has_field(&field));
    if descriptor.get_field_by_name("typed_config").is_some() && !has("typed_config") && !has("config_discovery") {
        let name = message.get_field_by_name("name");
        found.push(name.as_deref().and_then(Reflected::as_str).unwrap_or_default().to_owned());
    }
}
