//! Deterministic encoding.
//!
//! Envoy's types have maps as hash maps, which encode in a different order each time. Resource versions are content
//! hashes, so equal messages must have equal bytes: map entries are sorted by key after encoding.

use std::ops::Range;

use prost::{
    Message, Name,
    encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint},
};

use crate::google::protobuf::Any;

/// The fields of a message type that are maps or contain maps, by field number.
type MapFields = &'static [(u32, MapField)];

#[derive(Clone, Copy, Debug)]
enum MapField {
    /// A map; if its values contain maps, the index of their type in `MAP_FIELDS`.
    Map(Option<u32>),
    /// A message that contains maps; the index of its type in `MAP_FIELDS`.
    Message(u32),
}

// `MAP_FIELDS`: by message type, sorted by its name; generated from the descriptors.
include!(concat!(env!("OUT_DIR"), "/map_fields.rs"));

/// Encodes a message deterministically: map entries in bytewise order of their keys.
pub fn encode<M: Message + Name>(message: &M) -> Vec<u8> {
    let mut bytes = message.encode_to_vec();
    if let Some(fields) = map_fields_of(&M::full_name()) {
        // Fails only for bytes that do not decode.
        let _ = sort(fields, &mut bytes);
    }
    bytes
}

/// Packs a message into an `Any`, encoded as by [`encode()`].
pub fn to_any<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: encode(message) }
}

/// Sorts the map entries in the encoding of a message of type `name`, as [`encode()`] does. Bytes that do not decode,
/// or of an unknown type, are returned unchanged.
pub fn sort_maps(name: &str, bytes: Vec<u8>) -> Vec<u8> {
    let Some(fields) = map_fields_of(name) else { return bytes };
    let mut sorted = bytes.clone();
    match sort(fields, &mut sorted) {
        Some(()) => sorted,
        None => bytes,
    }
}

/// Writes the tag and the length of a length-delimited field whose value follows.
pub fn put_head(number: u32, len: usize, out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(len as u64, out);
}

/// Writes a length-delimited field.
pub fn put_field(number: u32, value: &[u8], out: &mut Vec<u8>) {
    put_head(number, value.len(), out);
    out.extend_from_slice(value);
}

/// The map fields of a message type; `None` if it contains no maps.
fn map_fields_of(name: &str) -> Option<MapFields> {
    MAP_FIELDS.binary_search_by_key(&name, |(name, _)| name).ok().map(map_fields_at)
}

fn map_fields_at(index: usize) -> MapFields {
    MAP_FIELDS[index].1
}

/// One field of an encoded message.
#[derive(Clone, Copy, Debug)]
pub struct WireField<'a> {
    /// Field number.
    pub number: u32,
    kind: WireType,
    /// All its bytes, with the tag.
    whole: &'a [u8],
    /// The bytes of the value; of a length-delimited field without the length.
    value: &'a [u8],
}

impl<'a> WireField<'a> {
    /// The content of a length-delimited field: a string, bytes or a message.
    #[must_use]
    pub fn content(&self) -> Option<&'a [u8]> {
        (self.kind == WireType::LengthDelimited).then_some(self.value)
    }

    /// The number in a varint field, such as an enum.
    #[must_use]
    pub fn varint(&self) -> Option<u64> {
        let mut value = self.value;
        (self.kind == WireType::Varint).then(|| decode_varint(&mut value).ok()).flatten()
    }
}

/// The fields of an encoded message in order, without decoding their content. The iteration ends at invalid bytes.
pub fn fields(mut bytes: &[u8]) -> impl Iterator<Item = WireField<'_>> {
    std::iter::from_fn(move || next(&mut bytes))
}

/// The contents of the length-delimited fields with that number, in order.
pub fn contents(bytes: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    fields(bytes).filter(move |field| field.number == number).filter_map(|field| field.content())
}

fn next<'a>(bytes: &mut &'a [u8]) -> Option<WireField<'a>> {
    let start = *bytes;
    let (number, kind) = decode_key(bytes).ok()?;
    let length = match kind {
        WireType::Varint => {
            let at = *bytes;
            decode_varint(bytes).ok()?;
            let used = at.len() - bytes.len();
            *bytes = at;
            used
        }
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::LengthDelimited => usize::try_from(decode_varint(bytes).ok()?).ok()?,
        WireType::StartGroup | WireType::EndGroup => return None,
    };
    let value = bytes.get(..length)?;
    *bytes = &bytes[length..];
    Some(WireField { number, kind, whole: &start[..start.len() - bytes.len()], value })
}

/// Sorts the map entries of an encoded message in place. `None` if the bytes do not decode; entries may have been moved then.
fn sort(map_fields: &[(u32, MapField)], bytes: &mut [u8]) -> Option<()> {
    let mut run: Option<MapEntries> = None;
    let mut at = 0;
    while at < bytes.len() {
        let field = next(&mut &bytes[at..])?;
        let (number, kind, start) = (field.number, field.kind, at);
        at += field.whole.len();
        let content = at - field.value.len()..at;
        let map_field = map_fields.iter().find(|(of, _)| *of == number).map(|(_, field)| *field);
        let map_field = map_field.filter(|_| kind == WireType::LengthDelimited);
        if let Some(entries) = run.take_if(|entries| entries.number != number || map_field.is_none()) {
            entries.sort(&mut bytes[..start])?;
        }
        match map_field {
            None => {}
            Some(MapField::Message(index)) => sort(map_fields_at(index as usize), &mut bytes[content])?,
            Some(MapField::Map(value)) => {
                // An entry is a message, whose value may contain maps.
                let of_entry = value.map(|index| (2, MapField::Message(index)));
                sort(of_entry.as_slice(), &mut bytes[content.clone()])?;
                match &mut run {
                    None => run = Some(MapEntries { number, start, last: content, is_sorted: true }),
                    Some(entries) => {
                        let order = |entry: &Range<usize>| entry_order(&bytes[entry.clone()]);
                        entries.is_sorted &= order(&entries.last) <= order(&content);
                        entries.last = content;
                    }
                }
            }
        }
    }
    run.map_or(Some(()), |entries| entries.sort(bytes))
}

/// Entries of a map that follow each other in an encoded message. Most maps have one entry, or have few that are in order.
struct MapEntries {
    number: u32,
    start: usize,
    /// The content of the last entry.
    last: Range<usize>,
    is_sorted: bool,
}

impl MapEntries {
    /// Sorts the entries, which `bytes` end with.
    fn sort(&self, bytes: &mut [u8]) -> Option<()> {
        if self.is_sorted {
            return Some(());
        }
        let unsorted = bytes[self.start..].to_vec();
        let mut entries: Vec<WireField<'_>> = fields(&unsorted).collect();
        entries.sort_by_key(|entry| entry_order(entry.value));
        let mut at = self.start;
        for entry in entries {
            let end = at + entry.whole.len();
            bytes.get_mut(at..end)?.copy_from_slice(entry.whole);
            at = end;
        }
        Some(())
    }
}

/// What map entries are sorted by: the bytes of the key, then the entry.
fn entry_order(entry: &[u8]) -> (&[u8], &[u8]) {
    let key = fields(entry).filter(|field| field.number == 1).last();
    (key.map_or(&[], |key| key.value), entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::google::protobuf::{Struct, Value, value::Kind as ValueKind};

    #[test]
    fn equal_messages_have_equal_bytes() {
        let text = |s: &str| Value { kind: Some(ValueKind::StringValue(s.to_owned())) };
        let make = |reverse: bool| {
            let mut names: Vec<String> = (0..50).map(|n| format!("name-{n}")).collect();
            if reverse {
                names.reverse();
            }
            let inner = Struct { fields: names.iter().map(|n| (n.clone(), text(n))).collect() };
            let nested = Value { kind: Some(ValueKind::StructValue(inner)) };
            Struct { fields: names.into_iter().map(|n| (n, nested.clone())).collect() }
        };
        let (a, b) = (make(false), make(true));
        assert_eq!(encode(&a), encode(&b));
        assert_eq!(Struct::decode(encode(&a).as_slice()), Ok(a.clone()));
        assert_eq!(sort_maps("google.protobuf.Struct", b.encode_to_vec()), encode(&a));
    }

    #[test]
    fn map_fields_include_every_map_of_the_descriptors() {
        for message in crate::pool().all_messages().filter(|message| !message.is_map_entry()) {
            for field in message.fields().filter(prost_reflect::FieldDescriptor::is_map) {
                let fields = map_fields_of(message.full_name()).unwrap_or_else(|| panic!("{}", message.full_name()));
                assert!(
                    fields.iter().any(|(number, kind)| *number == field.number() && matches!(kind, MapField::Map(_)))
                );
            }
        }
        assert!(MAP_FIELDS.is_sorted_by_key(|(name, _)| *name));
        assert!(map_fields_of("google.protobuf.Duration").is_none());
    }

    #[test]
    fn undecodable_bytes_are_unchanged() {
        assert_eq!(sort_maps("google.protobuf.Struct", vec![10, 200, 1]), vec![10, 200, 1]);
        assert_eq!(sort_maps("no.such.Type", vec![1]), vec![1]);
    }
}
