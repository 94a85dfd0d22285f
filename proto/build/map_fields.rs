//! The map fields of every message type, which deterministic encoding sorts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};

/// Rust source of the table `MAP_FIELDS`, sorted by name: each message type that contains maps, with the fields that
/// are maps or contain maps. Fields refer to other message types by their index in the table.
pub(super) fn write(all: &FileDescriptorSet) -> String {
    let mut types = BTreeMap::new();
    for file in &all.file {
        for message in &file.message_type {
            collect(&mut types, file.package(), message);
        }
    }
    let with_maps = with_maps(&types);
    let indexes: BTreeMap<&str, usize> = with_maps.iter().enumerate().map(|(index, name)| (*name, index)).collect();
    let mut source = String::from("static MAP_FIELDS: &[(&str, MapFields)] = &[\n");
    for name in &with_maps {
        let _ = write!(source, "    ({name:?}, &[");
        for (number, inner) in messages_of(types[*name]) {
            let index = |name: &str| indexes.get(name);
            let kind = match types.get(inner) {
                Some(entry) if is_map_entry(entry) => {
                    let value = messages_of(entry).find(|(number, _)| *number == 2);
                    Some(format!("MapField::Map({:?})", value.and_then(|(_, value)| index(value))))
                }
                _ => index(inner).map(|index| format!("MapField::Message({index})")),
            };
            if let Some(kind) = kind {
                let _ = write!(source, "({number}, {kind}), ");
            }
        }
        source.push_str("]),\n");
    }
    source.push_str("];\n");
    source
}

fn collect<'d>(types: &mut BTreeMap<String, &'d DescriptorProto>, scope: &str, message: &'d DescriptorProto) {
    let name = format!("{scope}.{}", message.name());
    for nested in &message.nested_type {
        collect(types, &name, nested);
    }
    types.insert(name, message);
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|options| options.map_entry())
}

/// The message fields of a message: (number, type name), by number.
fn messages_of(message: &DescriptorProto) -> impl Iterator<Item = (i32, &str)> {
    let mut fields: Vec<_> = message.field.iter().filter(|field| field.r#type() == Type::Message).collect();
    fields.sort_by_key(|field| field.number());
    fields.into_iter().map(|field| (field.number(), field.type_name().trim_start_matches('.')))
}

/// The message types that contain maps, without the entry types of maps.
fn with_maps<'t>(types: &'t BTreeMap<String, &DescriptorProto>) -> BTreeSet<&'t str> {
    let mut found: BTreeSet<&str> = BTreeSet::new();
    loop {
        let before = found.len();
        for (name, message) in types.iter().filter(|(_, message)| !is_map_entry(message)) {
            let contains_map =
                |inner: &str| found.contains(inner) || types.get(inner).is_some_and(|it| is_map_entry(it));
            if messages_of(message).any(|(_, inner)| contains_map(inner)) {
                found.insert(name);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}
