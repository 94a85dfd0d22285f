//! How a value is laid over a message.

use prost_reflect::{DynamicMessage, ReflectMessage, Value};
use sluice_model::PatchOperation;

use crate::dynamic;

/// Lays `over` over `message`, as protobuf merges: what is set there wins, messages merge field by field, lists grow,
/// entries of maps are replaced. A duration is one value; with [`PatchOperation::MergeAndReplaceList`] so is a list.
pub(crate) fn merge(operation: PatchOperation, message: &mut DynamicMessage, over: &DynamicMessage) {
    for (field, value) in over.fields() {
        match value {
            Value::Message(inner) if inner.descriptor().full_name() != "google.protobuf.Duration" => {
                if let Value::Message(message) = message.get_field_mut(&field) {
                    merge(operation, message, inner);
                }
            }
            Value::List(values) => {
                if let Value::List(list) = message.get_field_mut(&field) {
                    if operation == PatchOperation::MergeAndReplaceList {
                        list.clear();
                    }
                    list.extend(values.iter().cloned());
                }
            }
            Value::Map(entries) => {
                if let Value::Map(map) = message.get_field_mut(&field) {
                    map.extend(entries.iter().map(|(key, value)| (key.clone(), value.clone())));
                }
            }
            value => message.set_field(&field, value.clone()),
        }
    }
}

/// Merges the message packed in `over` into the one packed in `any`. Nothing happens, and it says so, if they are of
/// different types or of one nobody knows.
pub(crate) fn merge_any(any: &mut DynamicMessage, over: &DynamicMessage) -> bool {
    if dynamic::type_name(any) != dynamic::type_name(over) {
        return false;
    }
    let (Some(mut inner), Some(over)) = (dynamic::unpack(any), dynamic::unpack(over)) else { return false };
    merge(PatchOperation::Merge, &mut inner, &over);
    dynamic::repack(any, &inner);
    true
}

/// Merges the configuration of a named filter: its name, if the value has one, and what its `typed_config` says. A filter
/// without one is left alone.
pub(crate) fn merge_filter(filter: &mut DynamicMessage, over: &DynamicMessage, rename: bool) -> bool {
    let Some(config) = dynamic::message_mut(filter, "typed_config") else { return false };
    if let Some(over) = dynamic::message(over, "typed_config") {
        merge_any(config, over);
    }
    let name = dynamic::text(over, "name");
    if rename && !name.is_empty() {
        dynamic::set(filter, "name", Value::String(name.to_owned()));
    }
    true
}
