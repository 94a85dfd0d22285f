//! Deterministic encoding.
//!
//! Envoy's types keep maps in hash maps, which encode in another order every time. Content versions need equal bytes
//! for equal messages, so entries are put in order of their keys after encoding.

use prost::{
    Message, Name,
    encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint},
};

use crate::google::protobuf::Any;

/// Where maps are below a message type: per field number, what its bytes are.
type Plan = &'static [(u32, Part)];

#[derive(Clone, Copy, Debug)]
enum Part {
    /// A map; the place of its values' plan, when maps are inside them.
    Map(Option<u32>),
    /// A message that has maps inside, by the place of its plan.
    Message(u32),
}

// `PLANS`: from the descriptors, sorted by the names of message types.
include!(concat!(env!("OUT_DIR"), "/plans.rs"));

/// Encodes a message so that equal messages give equal bytes: map entries in bytewise order of their keys.
pub fn encode<M: Message + Name>(message: &M) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    match plan_of(&M::full_name()) {
        Some(plan) => sorted(plan, &bytes).unwrap_or(bytes),
        None => bytes,
    }
}

/// Packs a message into an `Any`, encoded as by [`encode()`].
pub fn to_any<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: encode(message) }
}

/// Rewrites the encoding of a message of type `name` as [`encode()`] would write it. Bytes that do not decode, or are of
/// no known type, come back as they are.
pub fn sort_maps(name: &str, bytes: Vec<u8>) -> Vec<u8> {
    match plan_of(name) {
        Some(plan) => sorted(plan, &bytes).unwrap_or(bytes),
        None => bytes,
    }
}

/// The plan of a message type; `None` when no map is in it or below.
fn plan_of(name: &str) -> Option<Plan> {
    PLANS.binary_search_by_key(&name, |(name, _)| name).ok().map(plan_at)
}

fn plan_at(place: usize) -> Plan {
    PLANS[place].1
}

/// One field of an encoded message.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its number.
    pub number: u32,
    kind: WireType,
    /// All of it, key included.
    whole: &'a [u8],
    /// The value; of length-delimited ones without the length.
    value: &'a [u8],
}

impl<'a> Record<'a> {
    /// The content of a length-delimited field: a text, bytes or a message.
    #[must_use]
    pub fn content(&self) -> Option<&'a [u8]> {
        (self.kind == WireType::LengthDelimited).then_some(self.value)
    }

    /// The number in a varint field, such as an enum's.
    #[must_use]
    pub fn varint(&self) -> Option<u64> {
        let mut value = self.value;
        (self.kind == WireType::Varint).then(|| decode_varint(&mut value).ok()).flatten()
    }
}

/// The fields of an encoded message in order, without decoding what is in them; ends at what is no protobuf.
pub fn fields(mut bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || next(&mut bytes))
}

/// The contents of the length-delimited fields of that number, in order.
pub fn contents(bytes: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    fields(bytes).filter(move |field| field.number == number).filter_map(|field| field.content())
}

fn next<'a>(bytes: &mut &'a [u8]) -> Option<Record<'a>> {
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
    Some(Record { number, kind, whole: &start[..start.len() - bytes.len()], value })
}

fn sorted(plan: Plan, mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut entries: Vec<(u32, Vec<u8>, Vec<u8>)> = Vec::new();
    while !bytes.is_empty() {
        let record = next(&mut bytes)?;
        let part = plan.iter().find(|(number, _)| *number == record.number).map(|(_, part)| *part);
        let part = part.filter(|_| record.kind == WireType::LengthDelimited);
        if entries.first().is_some_and(|(number, ..)| *number != record.number) {
            flush(&mut entries, &mut out);
        }
        match part {
            None => out.extend_from_slice(record.whole),
            Some(Part::Message(place)) => {
                put(&mut out, record.number, &sorted(plan_at(place as usize), record.value)?);
            }
            Some(Part::Map(value)) => {
                let (key, entry) = sorted_entry(value, record.value)?;
                entries.push((record.number, key, entry));
            }
        }
    }
    flush(&mut entries, &mut out);
    Some(out)
}

/// An entry's key bytes, and the entry with its value in order.
fn sorted_entry(value: Option<u32>, entry: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut key, mut out, mut rest) = (Vec::new(), Vec::with_capacity(entry.len()), entry);
    while !rest.is_empty() {
        let record = next(&mut rest)?;
        match (record.number, value) {
            (2, Some(place)) => put(&mut out, 2, &sorted(plan_at(place as usize), record.value)?),
            (number, _) => {
                if number == 1 {
                    key = record.value.to_vec();
                }
                out.extend_from_slice(record.whole);
            }
        }
    }
    Some((key, out))
}

fn flush(entries: &mut Vec<(u32, Vec<u8>, Vec<u8>)>, out: &mut Vec<u8>) {
    entries.sort();
    for (number, _, entry) in entries.drain(..) {
        put(out, number, &entry);
    }
}

fn put(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::google::protobuf::{Struct, Value, value::Kind as ValueKind};

    #[test]
    fn equal_messages_give_equal_bytes() {
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
    fn plans_name_every_map_that_descriptors_have() {
        for message in crate::pool().all_messages().filter(|message| !message.is_map_entry()) {
            for field in message.fields().filter(prost_reflect::FieldDescriptor::is_map) {
                let plan = plan_of(message.full_name()).unwrap_or_else(|| panic!("{}", message.full_name()));
                assert!(plan.iter().any(|(number, part)| *number == field.number() && matches!(part, Part::Map(_))));
            }
        }
        assert!(PLANS.is_sorted_by_key(|(name, _)| *name));
        assert!(plan_of("google.protobuf.Duration").is_none());
    }

    #[test]
    fn bytes_that_do_not_decode_stay() {
        assert_eq!(sort_maps("google.protobuf.Struct", vec![10, 200, 1]), vec![10, 200, 1]);
        assert_eq!(sort_maps("no.such.Type", vec![1]), vec![1]);
    }
}
