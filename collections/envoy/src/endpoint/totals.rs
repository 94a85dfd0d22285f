//! Sums over the endpoints of an assignment, by group. Sums of parts can be added.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_model::{Locality, NetworkGateway};

/// What is known of an assignment without its endpoints: its groups, with sums over their endpoints.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct AssignmentTotals(pub(super) BTreeMap<Locality, PlaceTotals>);

/// The sums of a locality.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct PlaceTotals {
    /// By rank, see [`GroupKey`].
    pub(super) groups: BTreeMap<usize, GroupTotals>,
    /// Weights of the gateways that replace endpoints of the locality.
    pub(super) gateways: BTreeMap<NetworkGateway, u32>,
}

/// The sums of a group.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct GroupTotals {
    /// Number of endpoints.
    pub(super) endpoints: usize,
    /// Sum of their weights.
    pub(super) weight: u32,
    /// Size of their encoded form; 0 if they are not encoded.
    pub(super) bytes: usize,
}

/// A group of endpoints: those of a locality that have the same priority by labels.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(super) struct GroupKey {
    pub(super) place: Locality,
    /// Distance by labels; 0 if labels do not matter.
    pub(super) rank: usize,
}

impl AssignmentTotals {
    /// Adds the sums of another part of the same assignment.
    pub fn add(&mut self, other: &Self) {
        for (place, totals) in &other.0 {
            let PlaceTotals { groups, gateways } = self.0.entry(place.clone()).or_default();
            for (rank, other) in &totals.groups {
                groups.entry(*rank).or_default().add(other);
            }
            for (gateway, weight) in &totals.gateways {
                let sum = gateways.entry(gateway.clone()).or_default();
                *sum = sum.saturating_add(*weight);
            }
        }
    }
}

impl GroupTotals {
    fn add(&mut self, other: &Self) {
        self.endpoints += other.endpoints;
        self.weight = self.weight.saturating_add(other.weight);
        self.bytes += other.bytes;
    }
}
