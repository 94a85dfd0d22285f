//! Templates: resources that differ between proxies in a few fields only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Serialize, Serializer};

use crate::Text;

/// Values for the slots of templates, by slot name: encoded protobuf fields, inserted without change.
pub type SlotValues = BTreeMap<Text, Arc<[u8]>>;

/// A piece of a [`Template`].
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum TemplatePart {
    /// Bytes that are the same for all proxies.
    Bytes(Bytes),
    /// The value of the slot with that name; empty if there is no value.
    Slot(Text),
    /// A length-delimited value: its length, then its parts. The tag of the field is in the bytes before it.
    Nested(Vec<TemplatePart>),
}

/// An encoded message with slots: one copy serves every proxy of a layer, and each fills in its own values.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Template {
    parts: Arc<Parts>,
    /// Values of slots that are already filled, sorted by name.
    filled: Box<[(Text, Arc<[u8]>)]>,
}

/// Parts that several templates share, with their hash, so that they are hashed once.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd)]
struct Parts {
    hash: u64,
    /// Names of the slots, sorted.
    slots: Box<[Text]>,
    parts: Box<[Part]>,
}

/// A [`TemplatePart`] that has its slot by number: slots are many, and their names few.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
enum Part {
    Bytes(Bytes),
    Slot(usize),
    Nested(Box<[Part]>),
}

impl Hash for Parts {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Template {
    /// A template of these parts, in order.
    #[must_use]
    pub fn new(parts: Vec<TemplatePart>) -> Self {
        let mut names = BTreeSet::new();
        collect(&parts, &mut names);
        let slots: Box<[Text]> = names.into_iter().collect();
        let parts = numbered(parts, &slots);
        let mut hasher = rapidhash::quality::RapidHasher::default();
        (&slots, &parts).hash(&mut hasher);
        Self { parts: Arc::new(Parts { hash: hasher.finish(), slots, parts }), filled: Box::default() }
    }

    /// The template with these slots filled. Both templates share their parts.
    #[must_use]
    pub fn with(&self, slots: &SlotValues) -> Self {
        let mut all = SlotValues::from_iter(self.filled.iter().cloned());
        all.extend(slots.iter().map(|(name, value)| (name.clone(), value.clone())));
        Self { parts: self.parts.clone(), filled: all.into_iter().collect() }
    }

    /// The values of the slots, in the order of their names.
    fn values<'a>(&'a self, slots: &'a SlotValues) -> Vec<&'a [u8]> {
        let value = |name: &Text| {
            let filled = self.filled.binary_search_by(|(known, _)| known.cmp(name)).ok().map(|at| &self.filled[at].1);
            filled.or_else(|| slots.get(name)).map_or(&[][..], |value| value)
        };
        self.parts.slots.iter().map(value).collect()
    }

    /// The message with all slots filled and all lengths computed.
    #[must_use]
    pub fn fill(&self, slots: &SlotValues) -> Bytes {
        let (values, mut lengths) = (self.values(slots), Vec::new());
        let length = measure(&self.parts.parts, &values, &mut lengths);
        let mut out = BytesMut::with_capacity(length);
        write(&self.parts.parts, &values, &mut lengths.into_iter(), &mut out);
        out.freeze()
    }

    /// Names of the slots that are not filled yet.
    #[must_use]
    pub fn slot_names(&self) -> BTreeSet<Text> {
        let is_filled = |name: &Text| self.filled.binary_search_by(|(known, _)| known.cmp(name)).is_ok();
        self.parts.slots.iter().filter(|name| !is_filled(name)).cloned().collect()
    }

    /// Size of the filled message, in bytes.
    #[must_use]
    pub fn len(&self, slots: &SlotValues) -> usize {
        measure(&self.parts.parts, &self.values(slots), &mut Vec::new())
    }

    /// Whether the template has no parts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.parts.is_empty()
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({} bytes)", self.len(&SlotValues::new()))
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

fn collect(parts: &[TemplatePart], names: &mut BTreeSet<Text>) {
    for part in parts {
        match part {
            TemplatePart::Bytes(_) => {}
            TemplatePart::Slot(name) => {
                names.insert(name.clone());
            }
            TemplatePart::Nested(parts) => collect(parts, names),
        }
    }
}

/// The parts with their slots by number. `slots` has the names of all.
fn numbered(parts: Vec<TemplatePart>, slots: &[Text]) -> Box<[Part]> {
    let part = |part| match part {
        TemplatePart::Bytes(bytes) => Part::Bytes(bytes),
        TemplatePart::Slot(name) => Part::Slot(slots.partition_point(|known| *known < name)),
        TemplatePart::Nested(parts) => Part::Nested(numbered(parts, slots)),
    };
    parts.into_iter().map(part).collect()
}

/// The length of the filled parts. Adds the lengths of nested ones to `lengths`, outer ones first.
fn measure(parts: &[Part], values: &[&[u8]], lengths: &mut Vec<usize>) -> usize {
    let mut length = 0;
    for part in parts {
        length += match part {
            Part::Bytes(bytes) => bytes.len(),
            Part::Slot(slot) => values[*slot].len(),
            Part::Nested(parts) => {
                let at = lengths.len();
                lengths.push(0);
                let inner = measure(parts, values, lengths);
                lengths[at] = inner;
                varint_length(inner) + inner
            }
        };
    }
    length
}

/// Writes the filled parts. `lengths`: see [`measure`].
fn write(parts: &[Part], values: &[&[u8]], lengths: &mut impl Iterator<Item = usize>, out: &mut BytesMut) {
    for part in parts {
        match part {
            Part::Bytes(bytes) => out.put_slice(bytes),
            Part::Slot(slot) => out.put_slice(values[*slot]),
            Part::Nested(parts) => {
                put_varint(lengths.next().unwrap_or(0), out);
                write(parts, values, lengths, out);
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
    fn lengths_include_the_filled_slots() {
        let inner = TemplatePart::Nested(vec![
            TemplatePart::Bytes(Bytes::from_static(b"ab")),
            TemplatePart::Slot("who".into()),
        ]);
        let template = Template::new(vec![
            TemplatePart::Bytes(Bytes::from_static(b"\x0a")),
            TemplatePart::Nested(vec![TemplatePart::Bytes(Bytes::from_static(b"\x12")), inner]),
        ]);
        assert_eq!(&template.fill(&SlotValues::new())[..], b"\x0a\x04\x12\x02ab");
        let long = vec![b'x'; 200];
        let slots = SlotValues::from([("who".into(), long.clone().into())]);
        let filled = template.fill(&slots);
        assert_eq!(filled.len(), template.len(&slots));
        // 202 and 205 need two bytes of length each.
        assert_eq!(&filled[..8], b"\x0a\xcd\x01\x12\xca\x01ab");
        assert_eq!(&filled[8..], &long[..]);
        assert_eq!(template.slot_names(), BTreeSet::from(["who".into()]));
    }

    #[test]
    fn slots_filled_early_keep_their_value() {
        let parts = vec![TemplatePart::Slot("what".into()), TemplatePart::Slot("who".into())];
        let template = Template::new(parts.clone());
        let value = |text: &str| SlotValues::from([("what".into(), text.as_bytes().into())]);
        let (first, second) = (template.with(&value("a")), template.with(&value("bc")));
        assert_eq!(first.slot_names(), BTreeSet::from(["who".into()]));
        let who = SlotValues::from([("who".into(), b"me"[..].into()), ("what".into(), b"no"[..].into())]);
        assert_eq!((&first.fill(&who)[..], &second.fill(&who)[..]), (&b"ame"[..], &b"bcme"[..]));
        assert_ne!(first, second);
        assert_eq!(first, Template::new(parts).with(&value("a")));
        assert!(Arc::ptr_eq(&first.parts, &second.parts));
    }
}
