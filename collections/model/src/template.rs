//! Resources that differ between proxies only in a few places.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Serialize, Serializer};

use crate::Text;

/// What a proxy puts into the slots of templates, by slot name: encoded protobuf fields, inserted as they are.
pub type Slots = BTreeMap<Text, Arc<[u8]>>;

/// A piece of a [`Template`].
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum Part {
    /// Bytes that are the same for everyone.
    Bytes(Bytes),
    /// The value of the slot of that name; a proxy without it has nothing there.
    Slot(Text),
    /// A length-delimited value: its length, then its parts. The field's tag is in the bytes before it.
    Nested(Vec<Part>),
}

/// An encoded message with slots: one copy serves every proxy of a layer, each fills in its own identity.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Template {
    parts: Vec<Part>,
}

impl Template {
    /// A template of these parts, in order.
    #[must_use]
    pub fn new(parts: Vec<Part>) -> Self {
        Self { parts }
    }

    /// The message with the slots filled in and every enclosing length made right.
    #[must_use]
    pub fn fill(&self, slots: &Slots) -> Bytes {
        let mut out = BytesMut::with_capacity(length(&self.parts, slots));
        write(&self.parts, slots, &mut out);
        out.freeze()
    }

    /// The slots it has, each once.
    #[must_use]
    pub fn slot_names(&self) -> BTreeSet<Text> {
        let mut names = BTreeSet::new();
        collect(&self.parts, &mut names);
        names
    }

    /// Size of the filled message, in bytes.
    #[must_use]
    pub fn len(&self, slots: &Slots) -> usize {
        length(&self.parts, slots)
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({} bytes)", self.len(&Slots::new()))
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

fn length(parts: &[Part], slots: &Slots) -> usize {
    parts
        .iter()
        .map(|part| match part {
            Part::Bytes(bytes) => bytes.len(),
            Part::Slot(name) => slots.get(name).map_or(0, |value| value.len()),
            Part::Nested(parts) => {
                let inner = length(parts, slots);
                varint_length(inner) + inner
            }
        })
        .sum()
}

fn collect(parts: &[Part], names: &mut BTreeSet<Text>) {
    for part in parts {
        match part {
            Part::Bytes(_) => {}
            Part::Slot(name) => {
                names.insert(name.clone());
            }
            Part::Nested(parts) => collect(parts, names),
        }
    }
}

fn write(parts: &[Part], slots: &Slots, out: &mut BytesMut) {
    for part in parts {
        match part {
            Part::Bytes(bytes) => out.put_slice(bytes),
            Part::Slot(name) => {
                if let Some(value) = slots.get(name) {
                    out.put_slice(value);
                }
            }
            Part::Nested(parts) => {
                put_varint(length(parts, slots), out);
                write(parts, slots, out);
            }
        }
    }
}

fn varint_length(value: usize) -> usize {
    let bits = (usize::BITS - value.leading_zeros()).max(1) as usize;
    bits.div_ceil(7)
}

#[expect(clippy::cast_possible_truncation, reason = "seven bits are taken at a time")]
fn put_varint(mut value: usize, out: &mut BytesMut) {
    while value >= 0x80 {
        out.put_u8((value as u8) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_what_is_filled_in() {
        let inner = Part::Nested(vec![Part::Bytes(Bytes::from_static(b"ab")), Part::Slot("who".into())]);
        let template = Template::new(vec![
            Part::Bytes(Bytes::from_static(b"\x0a")),
            Part::Nested(vec![Part::Bytes(Bytes::from_static(b"\x12")), inner]),
        ]);
        assert_eq!(&template.fill(&Slots::new())[..], b"\x0a\x04\x12\x02ab");
        let long = vec![b'x'; 200];
        let slots = Slots::from([("who".into(), long.clone().into())]);
        let filled = template.fill(&slots);
        assert_eq!(filled.len(), template.len(&slots));
        // 202 and 205 need two bytes of length each.
        assert_eq!(&filled[..8], b"\x0a\xcd\x01\x12\xca\x01ab");
        assert_eq!(&filled[8..], &long[..]);
        assert_eq!(template.slot_names(), BTreeSet::from(["who".into()]));
    }
}
