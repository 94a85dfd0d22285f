//! A cluster load assignment: endpoints are selected, grouped by locality, weighted and prioritized.

use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;

use super::frame::frames;
use super::inputs::AssignmentInputs;
use super::locality::LocalityRules;
use super::part::AssignmentPart;

/// Builds the assignment of cluster `name`, which may have no endpoints.
#[must_use]
pub fn build_assignment(inputs: &AssignmentInputs<'_>, name: &str) -> ClusterLoadAssignment {
    let rules = LocalityRules::new(inputs);
    let part = AssignmentPart::new(inputs, &rules);
    assemble(part, &rules, name)
}

/// The assignment of all endpoints of a part.
pub(super) fn assemble(mut part: AssignmentPart, rules: &LocalityRules<'_>, name: &str) -> ClusterLoadAssignment {
    let groups = frames(rules, &part.totals).into_iter();
    let endpoints = groups.map(|frame| {
        let endpoints = part.endpoints.remove(&frame.key).unwrap_or_default();
        frame.message(endpoints)
    });
    let endpoints = endpoints.collect();
    ClusterLoadAssignment { cluster_name: name.to_owned(), endpoints, ..ClusterLoadAssignment::default() }
}
