//! Assignments in segments: runs of bytes that, in the order of their names, are the encoded message.
//!
//! An assignment of very many endpoints is encoded in parts, so that a change of an endpoint encodes one part again. The
//! parts of a group are preceded by the start of its message, with the length of the whole, and followed by its end.

use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LocalityLbEndpoints};
use sluice_model::Text;
use sluice_proto::wire::{encode, put_field, put_head};

use super::frame::frames;
use super::group::locality;
use super::inputs::AssignmentInputs;
use super::locality::LocalityRules;
use super::part::AssignmentPart;
use super::totals::{AssignmentTotals, GroupKey};

// Fields of ClusterLoadAssignment and LocalityLbEndpoints.
pub(super) const ENDPOINTS: u32 = 2;
const LB_ENDPOINTS: u32 = 2;

/// Segments with their names.
pub type AssignmentSegments = Vec<(Text, Vec<u8>)>;

/// The fields of the assignment of cluster `name` that precede all endpoints: the segment without a name.
#[must_use]
pub fn build_head(name: &str) -> Vec<u8> {
    encode(&ClusterLoadAssignment { cluster_name: name.to_owned(), ..ClusterLoadAssignment::default() })
}

/// The segments with the backends of the inputs, and the sums over them. `part` names this part: parts are in the order
/// of their names, and of their endpoints.
#[must_use]
pub fn build_part(inputs: &AssignmentInputs<'_>, part: &str) -> (AssignmentSegments, AssignmentTotals) {
    let AssignmentPart { endpoints, mut totals } = AssignmentPart::new(inputs, &LocalityRules::new(inputs));
    let mut segments = Vec::new();
    for (group, endpoints) in endpoints {
        let mut bytes = Vec::new();
        for endpoint in &endpoints {
            put_field(LB_ENDPOINTS, &encode(endpoint), &mut bytes);
        }
        if let Some(totals) = totals.0.get_mut(&group.place).and_then(|place| place.groups.get_mut(&group.rank)) {
            totals.bytes = bytes.len();
        }
        segments.push((segment_name(&group, GroupSegment::Endpoints, part), bytes));
    }
    (segments, totals)
}

/// The segments around the endpoints of each group: from the sums over all parts. Backends are not read.
#[must_use]
pub fn build_frames(inputs: &AssignmentInputs<'_>, totals: &AssignmentTotals) -> AssignmentSegments {
    let mut segments = Vec::new();
    for frame in frames(&LocalityRules::new(inputs), totals) {
        let (key, endpoints) = (frame.key.clone(), frame.totals.bytes);
        let place = LocalityLbEndpoints { locality: Some(locality(&key.place)), ..LocalityLbEndpoints::default() };
        let place = encode(&place);
        let end = encode(&LocalityLbEndpoints { locality: None, ..frame.message(Vec::new()) });
        let mut start = Vec::new();
        put_head(ENDPOINTS, place.len() + endpoints + end.len(), &mut start);
        start.extend_from_slice(&place);
        segments.push((segment_name(&key, GroupSegment::Start, ""), start));
        segments.push((segment_name(&key, GroupSegment::End, ""), end));
    }
    segments
}

/// What a segment of a group has, in the order of the message.
#[derive(Clone, Copy)]
pub(super) enum GroupSegment {
    Start = 0,
    Endpoints = 1,
    End = 2,
    /// All of the group; there are no others.
    Whole = 3,
}

/// The name of a segment of a group. Names are in the order of (group, `kind`, `part`).
pub(super) fn segment_name(group: &GroupKey, kind: GroupSegment, part: &str) -> Text {
    let kind = kind as u8;
    let GroupKey { place, rank } = group;
    let mut name = String::new();
    for text in [&place.region, &place.zone, &place.subzone] {
        // NUL is written so that a text sorts before all texts that continue it.
        name.push_str(&text.replace('\0', "\0\u{2}"));
        name.push_str("\0\u{1}");
    }
    format!("{name}{rank:010}{kind}{part}").into()
}
