//! Assignments whose endpoints are resources of their own (LEDS): a changed endpoint is sent alone, without the others of its cluster.
//!
//! The endpoints of a group are a collection, to which Envoy subscribes when it has the assignment.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::core::v3::address::Address as Location;
use envoy_types::pb::envoy::config::core::v3::envoy_internal_address::AddressNameSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::locality_lb_endpoints::LbConfig;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, LbEndpoint, LedsClusterLocalityConfig, LocalityLbEndpoints,
};
use sluice_model::{Text, lb_endpoint};
use sluice_proto::wire::{encode, put_field};

use super::frame::frames;
use super::group::GroupFrame;
use super::inputs::AssignmentInputs;
use super::locality::LocalityRules;
use super::part::AssignmentPart;
use super::segments::{AssignmentSegments, ENDPOINTS, GroupSegment, segment_name};
use super::totals::{AssignmentTotals, GroupKey};
use crate::config_source::ads_source;

/// Encoded endpoints with their names.
pub type NamedEndpoints = BTreeMap<Text, Vec<u8>>;

/// Builds the assignment of cluster `name`, and its endpoints.
#[must_use]
pub fn build_assignment_by_locality(
    inputs: &AssignmentInputs<'_>,
    name: &str,
) -> (ClusterLoadAssignment, NamedEndpoints) {
    let (mut endpoints, totals) = build_part_by_locality(inputs, name);
    let groups = groups(inputs, name, &totals, &mut endpoints).into_iter().map(|(_, group)| group).collect();
    let assignment =
        ClusterLoadAssignment { cluster_name: name.to_owned(), endpoints: groups, ..ClusterLoadAssignment::default() };
    (assignment, endpoints)
}

/// The endpoints among the backends of the inputs, and the sums over them: as [`super::build_part`].
#[must_use]
pub fn build_part_by_locality(inputs: &AssignmentInputs<'_>, cluster: &str) -> (NamedEndpoints, AssignmentTotals) {
    let AssignmentPart { endpoints: groups, totals } = AssignmentPart::new(inputs, &LocalityRules::new(inputs));
    let mut endpoints = NamedEndpoints::new();
    for (group, of_group) in groups {
        add(&mut endpoints, &collection(cluster, &group), &of_group);
    }
    (endpoints, totals)
}

/// The segments of the assignment after its head, and the gateways in it: as [`super::build_frames`].
#[must_use]
pub fn build_frames_by_locality(
    inputs: &AssignmentInputs<'_>,
    cluster: &str,
    totals: &AssignmentTotals,
) -> (AssignmentSegments, NamedEndpoints) {
    let mut gateways = NamedEndpoints::new();
    let segment = |(key, group): (GroupKey, LocalityLbEndpoints)| {
        let mut bytes = Vec::new();
        put_field(ENDPOINTS, &encode(&group), &mut bytes);
        (segment_name(&key, GroupSegment::Whole, ""), bytes)
    };
    let segments = groups(inputs, cluster, totals, &mut gateways).into_iter().map(segment).collect();
    (segments, gateways)
}

/// The groups of an assignment, each of which refers to the collection of its endpoints. Gateways in it are added to `endpoints`.
fn groups(
    inputs: &AssignmentInputs<'_>,
    cluster: &str,
    totals: &AssignmentTotals,
    endpoints: &mut NamedEndpoints,
) -> Vec<(GroupKey, LocalityLbEndpoints)> {
    let rules = LocalityRules::new(inputs);
    let group = |mut frame: GroupFrame| {
        let (key, gateways) = (frame.key.clone(), std::mem::take(&mut frame.gateways));
        let has_endpoints = frame.totals.endpoints > 0 && rules.sends_to(&key.place) || !gateways.is_empty();
        let collection = collection(cluster, &key);
        add(endpoints, &collection, &gateways);
        let group = frame.message(Vec::new());
        (key, if has_endpoints { by_collection(group, &collection) } else { group })
    };
    frames(&rules, totals).into_iter().map(group).collect()
}

/// The name of the collection of a group's endpoints.
fn collection(cluster: &str, GroupKey { place, rank }: &GroupKey) -> String {
    lb_endpoint::collection_name(cluster, &[&place.region, &place.zone, &place.subzone, &rank.to_string()])
}

/// Adds endpoints under their names. Of those with the same address, Envoy uses the first.
fn add(endpoints: &mut NamedEndpoints, collection: &str, added: &[LbEndpoint]) {
    for endpoint in added {
        let name = Text::from(lb_endpoint::endpoint_name(collection, &address_of(endpoint)));
        endpoints.entry(name).or_insert_with(|| encode(endpoint));
    }
}

/// A group without endpoints that refers to their collection. Envoy waits for them, so the collection must have some.
fn by_collection(group: LocalityLbEndpoints, collection: &str) -> LocalityLbEndpoints {
    let config = LedsClusterLocalityConfig {
        leds_config: Some(ads_source()),
        leds_collection_name: format!("{collection}{}", lb_endpoint::ALL),
    };
    LocalityLbEndpoints { lb_config: Some(LbConfig::LedsClusterLocalityConfig(config)), ..group }
}

/// The text of an endpoint's address.
fn address_of(endpoint: &LbEndpoint) -> String {
    let address = match &endpoint.host_identifier {
        Some(HostIdentifier::Endpoint(endpoint)) => {
            endpoint.address.as_ref().and_then(|address| address.address.as_ref())
        }
        _ => None,
    };
    match address {
        Some(Location::SocketAddress(address)) => {
            let port = match address.port_specifier.as_ref() {
                Some(PortSpecifier::PortValue(port)) => *port,
                _ => 0,
            };
            format!("{}_{port}", address.address)
        }
        Some(Location::EnvoyInternalAddress(address)) => {
            let listener = match address.address_name_specifier.as_ref() {
                Some(AddressNameSpecifier::ServerListenerName(listener)) => listener.as_str(),
                None => "",
            };
            format!("{listener}_{}", address.endpoint_id)
        }
        Some(Location::Pipe(pipe)) => pipe.path.clone(),
        None => String::new(),
    }
}
