//! Where maps are in every message type: what deterministic encoding has to put in order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};

/// Source of a table sorted by name: each message type that has a map in it or below, with the parts to look into. Parts
/// name other message types by their place in the table.
pub(super) fn write(all: &FileDescriptorSet) -> String {
    let mut types = BTreeMap::new();
    for file in &all.file {
        for message in &file.message_type {
            collect(&mut types, file.package(), message);
        }
    }
    let with_maps = with_maps(&types);
    let places: BTreeMap<&str, usize> = with_maps.iter().enumerate().map(|(place, name)| (*name, place)).collect();
    let mut source = String::from("static PLANS: &[(&str, Plan)] = &[\n");
    for name in &with_maps {
        let _ = write!(source, "    ({name:?}, &[");
        for (number, inner) in messages_of(types[*name]) {
            let place = |name: &str| places.get(name);
            let part = match types.get(inner) {
                Some(entry) if is_map_entry(entry) => {
                    let value = messages_of(entry).find(|(number, _)| *number == 2);
                    Some(format!("Part::Map({:?})", value.and_then(|(_, value)| place(value))))
                }
                _ => place(inner).map(|place| format!("Part::Message({place})")),
            };
            if let Some(part) = part {
                let _ = write!(source, "({number}, {part}), ");
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

/// The fields that hold messages, and of which type, by number.
fn messages_of(message: &DescriptorProto) -> impl Iterator<Item = (i32, &str)> {
    let mut fields: Vec<_> = message.field.iter().filter(|field| field.r#type() == Type::Message).collect();
    fields.sort_by_key(|field| field.number());
    fields.into_iter().map(|field| (field.number(), field.type_name().trim_start_matches('.')))
}

/// The types that have a map in them or below, entries of maps aside.
fn with_maps<'t>(types: &'t BTreeMap<String, &DescriptorProto>) -> BTreeSet<&'t str> {
    let mut found: BTreeSet<&str> = BTreeSet::new();
    loop {
        let before = found.len();
        for (name, message) in types.iter().filter(|(_, message)| !is_map_entry(message)) {
            let leads_to_map =
                |inner: &str| found.contains(inner) || types.get(inner).is_some_and(|it| is_map_entry(it));
            if messages_of(message).any(|(_, inner)| leads_to_map(inner)) {
                found.insert(name);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}
