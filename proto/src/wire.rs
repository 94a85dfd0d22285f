//! Deterministic encoding.
//!
//! Envoy's types have maps as hash maps, which encode in a different order each time. Resource versions are content
//! hashes, so equal messages must have equal bytes: map entries are sorted by key after encoding.

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
    let bytes = message.encode_to_vec();
    match map_fields_of(&M::full_name()) {
        Some(fields) => sorted(fields, &bytes).unwrap_or(bytes),
        None => bytes,
    }
}

/// Packs a message into an `Any`, encoded as by [`encode()`].
pub fn to_any<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: encode(message) }
}

/// Sorts the map entries in the encoding of a message of type `name`, as [`encode()`] does. Bytes that do not decode,
/// or of an unknown type, are returned unchanged.
pub fn sort_maps(name: &str, bytes: Vec<u8>) -> Vec<u8> {
    match map_fields_of(name) {
        Some(fields) => sorted(fields, &bytes).unwrap_or(bytes),
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

fn sorted(map_fields: MapFields, mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut entries: Vec<(u32, Vec<u8>, Vec<u8>)> = Vec::new();
    while !bytes.is_empty() {
        let field = next(&mut bytes)?;
        let map_field = map_fields.iter().find(|(number, _)| *number == field.number).map(|(_, kind)| *kind);
        let map_field = map_field.filter(|_| field.kind == WireType::LengthDelimited);
        if entries.first().is_some_and(|(number, ..)| *number != field.number) {
            flush(&mut entries, &mut out);
        }
        match map_field {
            None => out.extend_from_slice(field.whole),
            Some(MapField::Message(index)) => {
                put_field(field.number, &sorted(map_fields_at(index as usize), field.value)?, &mut out);
            }
            Some(MapField::Map(value)) => {
                let (key, entry) = sorted_entry(value, field.value)?;
                entries.push((field.number, key, entry));
            }
        }
    }
    flush(&mut entries, &mut out);
    Some(out)
}

/// The key bytes of a map entry, and the entry with the maps in its value sorted.
fn sorted_entry(value: Option<u32>, entry: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut key, mut out, mut rest) = (Vec::new(), Vec::with_capacity(entry.len()), entry);
    while !rest.is_empty() {
        let field = next(&mut rest)?;
        match (field.number, value) {
            (2, Some(index)) => put_field(2, &sorted(map_fields_at(index as usize), field.value)?, &mut out),
            (number, _) => {
                if number == 1 {
                    key = field.value.to_vec();
                }
                out.extend_from_slice(field.whole);
            }
        }
    }
    Some((key, out))
}

fn flush(entries: &mut Vec<(u32, Vec<u8>, Vec<u8>)>, out: &mut Vec<u8>) {
    entries.sort();
    for (number, _, entry) in entries.drain(..) {
        put_field(number, &entry, out);
    }
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
