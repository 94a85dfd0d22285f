//! Endpoints of a locality with their origins, while their weights are computed.

use envoy_types::pb::envoy::config::core::v3::Locality as EnvoyLocality;
use envoy_types::pb::envoy::config::endpoint::v3::{LbEndpoint, LocalityLbEndpoints};
use sluice_model::{Endpoint, Locality, NetworkGateway};

use crate::wire::uint32;

/// Endpoints of a locality: the message, and the origins of its endpoints in the same order.
pub(super) struct Group<'a> {
    pub(super) message: LocalityLbEndpoints,
    pub(super) origins: Vec<EndpointOrigin<'a>>,
}

/// The origin of an endpoint in a message.
#[derive(Clone, Copy)]
pub(super) enum EndpointOrigin<'a> {
    /// An endpoint of the service.
    Endpoint(&'a Endpoint),
    /// A gateway that replaces endpoints of its network.
    Gateway(&'a NetworkGateway),
}

impl<'a> Group<'a> {
    /// A group without endpoints in a locality.
    pub(super) fn at(place: &Locality) -> Self {
        let locality = EnvoyLocality {
            region: place.region.to_string(),
            zone: place.zone.to_string(),
            sub_zone: place.subzone.to_string(),
        };
        let message = LocalityLbEndpoints { locality: Some(locality), ..LocalityLbEndpoints::default() };
        Self { message, origins: Vec::new() }
    }

    /// Adds an endpoint. The weight of the group does not change.
    pub(super) fn push(&mut self, endpoint: LbEndpoint, origin: EndpointOrigin<'a>) {
        self.message.lb_endpoints.push(endpoint);
        self.origins.push(origin);
    }

    /// Sets the weight of a group to the sum of its endpoints; a group without endpoints has no weight.
    pub(super) fn sum_weight(&mut self) {
        let endpoints = &self.message.lb_endpoints;
        let sum = endpoints.iter().fold(0u32, |sum, endpoint| sum.saturating_add(weight_of(endpoint)));
        self.message.load_balancing_weight = (!endpoints.is_empty()).then(|| uint32(sum));
    }

    /// Keeps the endpoints for which `keep` returns true, and sets the weight of the group.
    pub(super) fn retain(&mut self, keep: impl Fn(&LbEndpoint) -> bool) {
        let endpoints = std::mem::take(&mut self.message.lb_endpoints);
        let origins = std::mem::take(&mut self.origins);
        for (endpoint, origin) in endpoints.into_iter().zip(origins) {
            if keep(&endpoint) {
                self.push(endpoint, origin);
            }
        }
        self.sum_weight();
    }
}

/// The weight of an endpoint; 0 if it has none.
pub(super) fn weight_of(endpoint: &LbEndpoint) -> u32 {
    endpoint.load_balancing_weight.as_ref().map_or(0, |weight| weight.value)
}
