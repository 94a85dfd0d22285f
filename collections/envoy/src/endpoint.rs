//! Cluster load assignments (N16, N17).

mod assignment;
mod by_locality;
mod client;
mod frame;
mod group;
mod inputs;
mod lb_endpoint;
mod locality;
mod metadata;
mod networks;
mod part;
mod segments;
mod through_waypoint;
mod totals;

pub use assignment::build_assignment;
pub use by_locality::{NamedEndpoints, build_assignment_by_locality, build_frames_by_locality, build_part_by_locality};
pub use client::{EndpointClient, Tier, tier, tier_of_service, tiers_of_mesh, tiers_of_rule};
pub use inputs::{AssignmentInputs, Backend};
pub(crate) use metadata::canonical_service;
pub use networks::other_networks;
pub use segments::{AssignmentSegments, build_frames, build_head, build_part};
pub use through_waypoint::{WaypointInstances, build_assignment_through_waypoints};
pub use totals::AssignmentTotals;

#[cfg(test)]
mod tests;
