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
    let mut part = AssignmentPart::new(inputs, &rules);
    let groups = frames(&rules, &part.totals).into_iter();
    let endpoints = groups.map(|frame| {
        let endpoints = part.endpoints.remove(&frame.key).unwrap_or_default();
        frame.message(endpoints)
    });
    let endpoints = endpoints.collect();
    ClusterLoadAssignment { cluster_name: name.to_owned(), endpoints, ..ClusterLoadAssignment::default() }
}
