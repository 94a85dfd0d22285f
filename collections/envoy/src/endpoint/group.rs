//! A group of an assignment: weight, priority, and the gateways that replace endpoints.

use envoy_types::pb::envoy::config::core::v3::Locality as EnvoyLocality;
use envoy_types::pb::envoy::config::endpoint::v3::{LbEndpoint, LocalityLbEndpoints};
use sluice_model::Locality;

use super::totals::{GroupKey, GroupTotals};
use crate::wire::uint32;

/// A group of an assignment without its endpoints.
pub(super) struct GroupFrame {
    pub(super) key: GroupKey,
    pub(super) priority: u32,
    /// Of a group without endpoints, `None`.
    pub(super) weight: Option<u32>,
    /// Gateways to endpoints of other networks. They follow the endpoints.
    pub(super) gateways: Vec<LbEndpoint>,
    /// The sums over the endpoints.
    pub(super) totals: GroupTotals,
}

impl GroupFrame {
    /// The message of the group with these endpoints.
    pub(super) fn message(self, mut endpoints: Vec<LbEndpoint>) -> LocalityLbEndpoints {
        endpoints.extend(self.gateways);
        LocalityLbEndpoints {
            locality: Some(locality(&self.key.place)),
            lb_endpoints: endpoints,
            priority: self.priority,
            load_balancing_weight: self.weight.map(uint32),
            ..LocalityLbEndpoints::default()
        }
    }
}

/// The message of a locality.
pub(super) fn locality(place: &Locality) -> EnvoyLocality {
    EnvoyLocality {
        region: place.region.to_string(),
        zone: place.zone.to_string(),
        sub_zone: place.subzone.to_string(),
    }
}
