//! The value of an EnvoyFilter patch: an Envoy message in JSON.

use prost_reflect::prost::Message;
use prost_reflect::{DynamicMessage, ReflectMessage, Value as Reflected};
use serde_json::Value;
use sluice_model::{PatchValue, Severity};
use sluice_proto::{json, pool, wire};

use crate::Fields;
use crate::fields::unknown_field;

/// Decodes the `value` of a patch as the Envoy message type `message`, and records what is invalid.
pub(super) fn read(message: &str, value: &Value, patch: &Fields<'_>) -> Option<PatchValue> {
    let path = patch.path_of("value");
    let at = |inner: &str| match inner {
        "" => path.to_string(),
        inner if inner.starts_with('[') => format!("{path}{inner}"),
        inner => format!("{path}.{inner}"),
    };
    if !value.is_object() {
        patch.reject("value", format!("expected an object, a `{message}`"));
        return None;
    }
    let descriptor = pool().get_message_by_name(message)?;
    let decoded = match json::decode_dynamic(&descriptor, value) {
        Ok(decoded) => decoded,
        Err(error) => {
            let hint =
                if error.reason.contains(".v2.") { " (only version 3 of the Envoy API is supported)" } else { "" };
            patch.findings().error(&at(&error.path), format!("{}{hint}", error.reason));
            return None;
        }
    };
    for unknown in &decoded.unknown {
        patch.findings().warning(&at(unknown), unknown_field(unknown, std::iter::empty()));
    }
    patch.findings().omit(Severity::Warning, decoded.more_unknown);
    let mut untyped = Vec::new();
    find_untyped(&decoded.message, &mut untyped);
    for name in untyped {
        patch.warn("value", format!("`{name}` has no typed_config; Envoy finds the extension by its name"));
    }
    let bytes = wire::sort_maps(message, decoded.message.encode_to_vec());
    Some(PatchValue(bytes.into()))
}

/// Collects the names of extensions without a typed configuration: Envoy finds these by name.
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
