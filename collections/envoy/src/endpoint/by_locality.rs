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
    let rules = LocalityRules::new(inputs);
    let mut part = AssignmentPart::new(inputs, &rules);
    let mut endpoints = NamedEndpoints::new();
    let groups = frames(&rules, &part.totals).into_iter().map(|mut frame| {
        let collection = collection(name, &frame.key);
        let mut own = part.endpoints.remove(&frame.key).unwrap_or_default();
        own.append(&mut frame.gateways);
        let config = (!own.is_empty()).then(|| collection.clone());
        add(&mut endpoints, &collection, &own);
        by_collection(frame.message(Vec::new()), config)
    });
    let groups = groups.collect();
    (
        ClusterLoadAssignment { cluster_name: name.to_owned(), endpoints: groups, ..ClusterLoadAssignment::default() },
        endpoints,
    )
}

/// The endpoints among the backends of the inputs, and the sums over them: as [`super::build_part`].
#[must_use]
pub fn build_part_by_locality(inputs: &AssignmentInputs<'_>, cluster: &str) -> (NamedEndpoints, AssignmentTotals) {
    let AssignmentPart { endpoints: groups, mut totals } = AssignmentPart::new(inputs, &LocalityRules::new(inputs));
    let mut endpoints = NamedEndpoints::new();
    for (group, of_group) in groups {
        totals.set_bytes(&group, of_group.len());
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
    let (mut segments, mut endpoints) = (AssignmentSegments::new(), NamedEndpoints::new());
    for mut frame in frames(&LocalityRules::new(inputs), totals) {
        let collection = collection(cluster, &frame.key);
        let gateways = std::mem::take(&mut frame.gateways);
        let has_endpoints = frame.totals.bytes > 0 || !gateways.is_empty();
        add(&mut endpoints, &collection, &gateways);
        let name = segment_name(&frame.key, GroupSegment::Whole, "");
        let group = by_collection(frame.message(Vec::new()), has_endpoints.then_some(collection));
        let mut bytes = Vec::new();
        put_field(ENDPOINTS, &encode(&group), &mut bytes);
        segments.push((name, bytes));
    }
    (segments, endpoints)
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

/// A group without endpoints that refers to their collection. A group that has none does not, because Envoy would wait for them.
fn by_collection(group: LocalityLbEndpoints, collection: Option<String>) -> LocalityLbEndpoints {
    let config = collection.map(|name| {
        LbConfig::LedsClusterLocalityConfig(LedsClusterLocalityConfig {
            leds_config: Some(ads_source()),
            leds_collection_name: format!("{name}{}", lb_endpoint::ALL),
        })
    });
    LocalityLbEndpoints { lb_config: config, ..group }
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
