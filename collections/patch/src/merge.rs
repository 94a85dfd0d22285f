//! Merging a value into a message.

use prost_reflect::{DynamicMessage, ReflectMessage, Value};
use sluice_model::PatchOperation;

use crate::dynamic;

/// Merges `over` into `message` as protobuf does: set fields replace, messages are merged field by field, lists are
/// extended, map entries are replaced. A duration is replaced as a whole, and with
/// [`PatchOperation::MergeAndReplaceList`] a list is too.
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

/// Merges the message in the `Any` `over` into the message in `any`. Returns false, without a change, if their types
/// differ or the descriptor pool does not have the type.
pub(crate) fn merge_any(any: &mut DynamicMessage, over: &DynamicMessage) -> bool {
    if dynamic::type_name(any) != dynamic::type_name(over) {
        return false;
    }
    let (Some(mut inner), Some(over)) = (dynamic::unpack(any), dynamic::unpack(over)) else { return false };
    merge(PatchOperation::Merge, &mut inner, &over);
    dynamic::repack(any, &inner);
    true
}

/// Merges a value into a filter: its `typed_config` and, with `rename`, its name if the value has one. A filter without
/// `typed_config` is not changed. Returns whether the filter has one.
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
