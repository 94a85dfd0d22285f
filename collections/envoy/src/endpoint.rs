//! Endpoint assignments: the addresses behind a cluster, for one kind of client (N16, N17).

mod assignment;
mod client;
mod locality;
mod metadata;
mod networks;

pub use assignment::{AssignmentInputs, Backend, build_assignment};
pub use client::{EndpointClient, Tier, tier};
pub(crate) use metadata::canonical_service;

#[cfg(test)]
mod tests;
