//! Assignments of gateways that send to a service through its waypoints (`istio.io/ingress-use-waypoint`, N26).

use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use sluice_model::Endpoint;

use super::assignment::assemble;
use super::inputs::AssignmentInputs;
use super::locality::LocalityRules;
use super::part::{AssignmentPart, has_unhealthy};
use super::{lb_endpoint, networks};
use crate::address::join_port;

/// The weight of a waypoint for each percent of its share, so that the weights of its instances stay exact.
const WEIGHT_OF_A_PERCENT: u32 = 10_000;

/// The instances of a waypoint.
#[derive(Clone, Copy, Debug)]
pub struct WaypointInstances<'a> {
    /// Endpoints of the waypoint's own service, of all ports.
    pub endpoints: &'a [Endpoint],
    /// Name of its port for HBONE.
    pub port_name: &'a str,
    /// Share of the traffic in percent, if several waypoints share it.
    pub share: Option<u32>,
}

/// The assignment of cluster `name`: the instances of the waypoints of the service, each of which ends the tunnel of connections
/// to the virtual address and port of the service. Neither subsets nor localities of the service matter.
#[must_use]
pub fn build_assignment_through_waypoints(
    inputs: &AssignmentInputs<'_>,
    waypoints: &[WaypointInstances<'_>],
    name: &str,
) -> ClusterLoadAssignment {
    let rules = LocalityRules::new(inputs).without_places();
    let unhealthy = has_unhealthy(inputs, &rules);
    let scale = networks::scale(inputs.gateways);
    let mut part = AssignmentPart::default();
    for waypoint in waypoints.iter().filter(|waypoint| waypoint.share != Some(0)) {
        let instances = || waypoint.endpoints.iter().filter(|endpoint| *endpoint.port_name == *waypoint.port_name);
        let number = u32::try_from(instances().count()).unwrap_or(u32::MAX);
        let weight = waypoint.share.map(|share| (share * WEIGHT_OF_A_PERCENT / number.max(1)).max(1));
        for endpoint in instances().filter(|endpoint| lb_endpoint::is_usable(inputs, endpoint, unhealthy)) {
            let endpoint = Endpoint { weight: weight.unwrap_or(endpoint.weight), ..endpoint.clone() };
            // Waypoints accept virtual addresses only.
            let Some(address) = inputs.service.addresses_for(&endpoint.cluster).first() else { continue };
            let local = join_port(address, u32::from(inputs.port.port));
            let message = lb_endpoint::through_waypoint(inputs, &endpoint, &local);
            part.push(inputs, &rules, &endpoint, (message, scale));
        }
    }
    assemble(part, &rules, name)
}
