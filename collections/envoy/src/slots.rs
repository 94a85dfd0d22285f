//! Slots: parts of a listener that differ per proxy, such as its name in traces.
//!
//! Builders write a marker in place of the proxy's value. [`template`] splits the encoded message at the markers, so that
//! all proxies share one copy and [`Template::fill`](sluice_model::Template::fill) inserts the value.

use std::ops::Range;

use bytes::Bytes;
use envoy_types::pb::envoy::r#type::tracing::v3::{CustomTag, custom_tag};
use prost::Message;
use sluice_model::label::{APP_NAME, CANONICAL_NAME, CANONICAL_REVISION};
use sluice_model::{Proxy, Resource, SlotValues, Template, TemplatePart, Text};

/// Beginnings of markers. No name, address or pattern contains their first byte.
const ELEMENT: &str = "\u{1}element:";
const FIELD: &str = "\u{1}field:";

/// Marker text. The slot replaces the element that contains the string field with the marker.
pub(crate) fn element_marker(slot: &str) -> String {
    format!("{ELEMENT}{slot}")
}

/// Marker text. The slot replaces the string field with the marker.
pub(crate) fn field_marker(slot: &str) -> String {
    format!("{FIELD}{slot}")
}

/// Slots of the tags that identify a proxy, in the order of their names (field 8 of the tracing message).
pub(crate) const IDENTITY_TAGS: [&str; 5] =
    ["istio.canonical_revision", "istio.canonical_service", "istio.cluster_id", "istio.mesh_id", "istio.namespace"];

/// Slot of the service name in a Datadog tracer (field 2).
pub(crate) const DATADOG_SERVICE: &str = "datadog.service_name";
/// Slot of the service name in an OpenTelemetry tracer (field 2).
pub(crate) const OTEL_SERVICE: &str = "otel.service_name";
/// Slot of the service name by OpenTelemetry's semantic conventions.
pub(crate) const OTEL_SEMANTIC_SERVICE: &str = "otel.semantic_service_name";

#[derive(Clone, PartialEq, Message)]
struct OneTag {
    #[prost(message, repeated, tag = "8")]
    custom_tags: Vec<CustomTag>,
}

#[derive(Clone, PartialEq, Message)]
struct OneName {
    #[prost(string, tag = "2")]
    service_name: String,
}

/// Slots of service names in tracers, each in its own message.
const NAMES: [&str; 3] = [DATADOG_SERVICE, OTEL_SERVICE, OTEL_SEMANTIC_SERVICE];

/// Values that restore the markers: a template that is filled with them is the original message, and [`template`] splits
/// it again.
#[must_use]
pub fn marker_slots() -> SlotValues {
    let tags = IDENTITY_TAGS.iter().map(|slot| {
        let tag = CustomTag { tag: element_marker(slot), r#type: None };
        (Text::from(*slot), OneTag { custom_tags: vec![tag] }.encode_to_vec().into())
    });
    let names = NAMES.iter().map(|slot| {
        let name = OneName { service_name: field_marker(slot) };
        (Text::from(*slot), name.encode_to_vec().into())
    });
    tags.chain(names).collect()
}

/// The values of a proxy for the slots of its listeners.
#[must_use]
pub fn identity_slots(proxy: &Proxy) -> SlotValues {
    let label = |name: &str, default: &'static str| {
        proxy.labels.get(name).filter(|value| !value.is_empty()).map_or_else(|| default.into(), Text::clone)
    };
    let or = |text: &Text, default: &'static str| if text.is_empty() { default.into() } else { text.clone() };
    let values = [
        label(CANONICAL_REVISION, "latest"),
        label(CANONICAL_NAME, "unknown"),
        or(&proxy.cluster, "unknown"),
        or(&proxy.mesh_id, "unknown"),
        or(&proxy.namespace, "default"),
    ];
    let tags = IDENTITY_TAGS.iter().zip(values).map(|(tag, value)| {
        let literal = custom_tag::Literal { value: value.to_string() };
        let tag_message = CustomTag { tag: (*tag).to_owned(), r#type: Some(custom_tag::Type::Literal(literal)) };
        (Text::from(*tag), OneTag { custom_tags: vec![tag_message] }.encode_to_vec())
    });
    let name = |name: &str| OneName { service_name: name.to_owned() }.encode_to_vec();
    let names = [
        (DATADOG_SERVICE, name(&proxy.service_cluster)),
        (OTEL_SERVICE, name(&proxy.service_cluster)),
        (OTEL_SEMANTIC_SERVICE, name(&semantic_service_name(proxy))),
    ];
    tags.chain(names.map(|(slot, value)| (Text::from(slot), value))).map(|(slot, value)| (slot, value.into())).collect()
}

/// `service.name` by OpenTelemetry's rules for Kubernetes workloads.
fn semantic_service_name(proxy: &Proxy) -> Text {
    let annotation = proxy.annotations.get("resource.opentelemetry.io/service.name");
    let labels = ["app.kubernetes.io/instance", APP_NAME].map(|label| proxy.labels.get(label));
    std::iter::once(annotation)
        .chain(labels)
        .chain([Some(&proxy.workload_name), Some(&proxy.name)])
        .flatten()
        .find(|name| !name.is_empty())
        .cloned()
        .unwrap_or_else(|| "unknown_service".into())
}

/// An encoded message as a resource: a template if it contains markers.
#[must_use]
pub fn template(encoded: Bytes) -> Resource {
    let markers = Markers::find(&encoded);
    if markers.0.is_empty() {
        return Resource::Encoded(encoded);
    }
    match scan_markers(&encoded, 0..encoded.len(), &markers) {
        MarkerScan::Parts(parts) if parts.iter().any(|part| !matches!(part, TemplatePart::Bytes(_))) => {
            Resource::Template(Template::new(parts))
        }
        _ => Resource::Encoded(encoded),
    }
}

/// The result of a search for markers in a message.
enum MarkerScan {
    /// A message with slots inside.
    Parts(Vec<TemplatePart>),
    /// The element of an element marker: the slot replaces it as a whole.
    Element(Text),
    /// No marker.
    Nothing,
}

fn scan_markers(encoded: &Bytes, range: Range<usize>, markers: &Markers) -> MarkerScan {
    if !markers.are_in(&range) {
        return MarkerScan::Nothing;
    }
    let mut parts = Vec::new();
    let mut kept = range.start;
    let mut at = range.start;
    while at < range.end {
        let Some(field) = read_field(encoded, at, range.end) else { return MarkerScan::Nothing };
        at = field.end;
        let Some(content) = field.content else { continue };
        let bytes = &encoded[content.clone()];
        if let Some(slot) = marker(bytes, ELEMENT) {
            return MarkerScan::Element(slot);
        }
        let keep_until = |until: usize, parts: &mut Vec<TemplatePart>| {
            if until > kept {
                parts.push(TemplatePart::Bytes(encoded.slice(kept..until)));
            }
        };
        if let Some(slot) = marker(bytes, FIELD) {
            keep_until(field.start, &mut parts);
            parts.push(TemplatePart::Slot(slot));
            kept = field.end;
            continue;
        }
        match scan_markers(encoded, content, markers) {
            MarkerScan::Parts(inner) => {
                keep_until(field.length_at, &mut parts);
                parts.push(TemplatePart::Nested(inner));
                kept = field.end;
            }
            MarkerScan::Element(slot) => {
                keep_until(field.start, &mut parts);
                parts.push(TemplatePart::Slot(slot));
                kept = field.end;
            }
            MarkerScan::Nothing => {}
        }
    }
    if kept < range.end {
        parts.push(TemplatePart::Bytes(encoded.slice(kept..range.end)));
    }
    MarkerScan::Parts(parts)
}

/// Positions of the beginnings of markers, in order: a message is searched once, not again for each message in it.
struct Markers(Vec<Range<usize>>);

impl Markers {
    fn find(bytes: &[u8]) -> Self {
        let of = |kind: &'static str| {
            let found = memchr::memmem::find_iter(bytes, kind).map(move |start| start..start + kind.len());
            found.collect::<Vec<_>>()
        };
        let mut found = of(ELEMENT);
        found.extend(of(FIELD));
        found.sort_unstable_by_key(|marker| marker.start);
        Self(found)
    }

    fn are_in(&self, range: &Range<usize>) -> bool {
        let first = self.0.partition_point(|marker| marker.start < range.start);
        self.0.get(first).is_some_and(|marker| marker.end <= range.end)
    }
}

fn marker(content: &[u8], kind: &str) -> Option<Text> {
    let name = content.strip_prefix(kind.as_bytes())?;
    std::str::from_utf8(name).ok().map(Text::from)
}

struct Field {
    start: usize,
    /// Position of the length, if the field has one.
    length_at: usize,
    content: Option<Range<usize>>,
    end: usize,
}

/// The field that starts at `at`; `None` if the bytes are not a valid message.
fn read_field(bytes: &[u8], at: usize, end: usize) -> Option<Field> {
    let (tag, length_at) = read_varint(bytes, at, end)?;
    let plain = |end: usize| Field { start: at, length_at, content: None, end };
    let field = match tag & 7 {
        0 => plain(read_varint(bytes, length_at, end)?.1),
        1 => plain(length_at + 8),
        2 => {
            let (length, content) = read_varint(bytes, length_at, end)?;
            let stop = content.checked_add(usize::try_from(length).ok()?)?;
            Field { start: at, length_at, content: Some(content..stop), end: stop }
        }
        5 => plain(length_at + 4),
        _ => return None,
    };
    (tag >> 3 != 0 && field.end <= end).then_some(field)
}

fn read_varint(bytes: &[u8], mut at: usize, end: usize) -> Option<(u64, usize)> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(at).filter(|_| at < end)?;
        value |= u64::from(byte & 0x7f) << shift;
        at += 1;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
    }
    None
}

#[cfg(test)]
mod tests;
