//! Route actions: forwarding to clusters.

use std::time::Duration;

use envoy_types::pb::envoy::config::route::v3::route_action::{
    ClusterNotFoundResponseCode, ClusterSpecifier, HostRewriteSpecifier, MaxStreamDuration,
};
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::weighted_cluster::{ClusterWeight, cluster_weight};
use envoy_types::pb::envoy::config::route::v3::{Route, RouteAction, WeightedCluster};
use envoy_types::pb::envoy::r#type::matcher::v3::RegexMatchAndSubstitute;
use envoy_types::pb::google::protobuf;
use sluice_model::{Destination, HttpDestination, HttpRoute, RouteSemantics, StringMatch};

use super::vip::WaypointDestination;
use super::{DestinationService, RouteInputs, build_hash_policy, build_retry_policy, headers, mirror};
use crate::name;
use crate::string_match::build_regex;
use crate::wire::{duration, uint32};

/// The action of a route with destinations. Header changes of a single destination are added to `out`.
pub(super) fn build_action(
    inputs: &RouteInputs<'_>,
    route: &HttpRoute,
    mut authority: Option<String>,
    out: &mut Route,
) -> RouteAction {
    let mut action = RouteAction::default();
    if inputs.grpc {
        set_call_limit(&mut action, route.timeout);
    } else {
        set_timeout(&mut action, route.timeout);
    }
    if inputs.virtual_service.semantics == RouteSemantics::GatewayApi {
        action.cluster_not_found_response_code = ClusterNotFoundResponseCode::InternalServerError.into();
    }
    if let Some(rewrite) = &route.rewrite {
        action.append_x_forwarded_host = inputs.append_x_forwarded_host;
        if let Some((pattern, substitution)) = &rewrite.regex {
            action.regex_rewrite = Some(RegexMatchAndSubstitute {
                pattern: Some(build_regex(pattern)),
                substitution: substitution.to_string(),
            });
        } else if inputs.virtual_service.semantics == RouteSemantics::GatewayApi && rewrite.uri == *"/" {
            // The prefix is removed, and a `/` stays if the path would be empty.
            let prefix = match out.r#match.as_ref().and_then(|matched| matched.path_specifier.as_ref()) {
                Some(PathSpecifier::PathSeparatedPrefix(prefix)) => StringMatch::escape_regex(prefix),
                _ => String::new(),
            };
            action.regex_rewrite = Some(RegexMatchAndSubstitute {
                pattern: Some(build_regex(&format!("^{prefix}(/?)(.*)"))),
                substitution: r"/\2".to_owned(),
            });
        } else {
            action.prefix_rewrite = rewrite.uri.to_string();
        }
        if !rewrite.authority.is_empty() {
            authority = Some(rewrite.authority.to_string());
        }
    }
    action.host_rewrite_specifier = authority.map(HostRewriteSpecifier::HostRewriteLiteral);
    action.request_mirror_policies =
        mirror::build_mirrors(route, inputs.shadow_suffix, |destination| cluster(inputs, destination));
    let mut consistent_hash = false;
    if let [destination] = route.route.as_slice() {
        consistent_hash = single(inputs, destination, out, &mut action);
    } else {
        // A destination with weight 0 is left out if there are others.
        let weighted = route.route.iter().filter(|destination| destination.weight > 0);
        let clusters = weighted.map(|destination| weigh(inputs, destination, &mut action)).collect();
        let weighted = WeightedCluster { clusters, ..WeightedCluster::default() };
        action.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(weighted));
    }
    action.retry_policy = build_retry_policy(route.retries.as_ref().or(inputs.default_retry), consistent_hash);
    action
}

/// Sets the timeouts of a route: unlimited unless declared.
#[expect(deprecated, reason = "its replacement counts from another moment; the reference keeps this one")]
pub(super) fn set_timeout(action: &mut RouteAction, timeout: Option<Duration>) {
    let timeout = timeout.map_or_else(protobuf::Duration::default, duration);
    action.timeout = Some(timeout);
    action.max_grpc_timeout = Some(timeout);
}

/// Sets the timeouts of a route for a gRPC library without an Envoy: unlimited unless declared.
fn set_call_limit(action: &mut RouteAction, timeout: Option<Duration>) {
    let timeout = Some(timeout.map_or_else(protobuf::Duration::default, duration));
    action.timeout = timeout;
    action.max_stream_duration =
        Some(MaxStreamDuration { max_stream_duration: timeout, ..MaxStreamDuration::default() });
}

/// The cluster of a destination (N01).
fn cluster(inputs: &RouteInputs<'_>, destination: &Destination) -> String {
    if destination.host.as_str().is_empty() {
        return name::UNKNOWN_SERVICE.into();
    }
    let service = (inputs.service)(&destination.host);
    if inputs.waypoint {
        return waypoint_destination(service.as_ref()).cluster(destination, inputs.port);
    }
    let host = service.as_ref().and_then(|service| service.alias_of.as_ref()).unwrap_or(&destination.host);
    let only_port = service.as_ref().and_then(|service| service.only_port);
    let port = destination.port.or(only_port).unwrap_or(inputs.port);
    name::outbound_cluster(port, &destination.subset, host.as_str())
}

fn waypoint_destination(service: Option<&DestinationService>) -> WaypointDestination<'_> {
    let Some(DestinationService { only_port, vip_kinds, .. }) = service else { return WaypointDestination::Unknown };
    match vip_kinds {
        Some(kinds) => WaypointDestination::Served { only_port: *only_port, kinds },
        None => WaypointDestination::Other { only_port: *only_port },
    }
}

fn single(inputs: &RouteInputs<'_>, destination: &HttpDestination, out: &mut Route, action: &mut RouteAction) -> bool {
    action.cluster_specifier = Some(ClusterSpecifier::Cluster(cluster(inputs, &destination.destination)));
    if let Some(headers) = &destination.headers {
        let authority = headers::apply(headers, out);
        // An authority rewrite of the whole route stays, as with several destinations.
        if action.host_rewrite_specifier.is_none() {
            action.host_rewrite_specifier = authority.map(HostRewriteSpecifier::HostRewriteLiteral);
        }
    }
    let hash = (inputs.hash)(&destination.destination);
    action.hash_policy.extend(hash.as_ref().and_then(build_hash_policy));
    hash.is_some()
}

fn weigh(inputs: &RouteInputs<'_>, destination: &HttpDestination, action: &mut RouteAction) -> ClusterWeight {
    let operations = destination.headers.as_ref().map(headers::build_operations).unwrap_or_default();
    let hash = (inputs.hash)(&destination.destination);
    action.hash_policy.extend(hash.as_ref().and_then(build_hash_policy));
    ClusterWeight {
        name: cluster(inputs, &destination.destination),
        weight: Some(uint32(u32::try_from(destination.weight).unwrap_or_default())),
        request_headers_to_add: operations.request_add,
        request_headers_to_remove: operations.request_remove,
        response_headers_to_add: operations.response_add,
        response_headers_to_remove: operations.response_remove,
        host_rewrite_specifier: operations.authority.map(cluster_weight::HostRewriteSpecifier::HostRewriteLiteral),
        ..ClusterWeight::default()
    }
}
