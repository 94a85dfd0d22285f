//! Cluster load assignments (N16, N17).

mod assignment;
mod client;
mod group;
mod inputs;
mod locality;
mod metadata;
mod networks;

pub use assignment::build_assignment;
pub use client::{EndpointClient, Tier, tier, tier_of_service, tiers_of_mesh, tiers_of_rule};
pub use inputs::{AssignmentInputs, Backend};
pub(crate) use metadata::canonical_service;

#[cfg(test)]
mod tests;
