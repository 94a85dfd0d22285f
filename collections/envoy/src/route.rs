//! Routes of VirtualServices and services (N18 to N20).

mod action;
mod claims;
mod cors;
mod direct_response;
mod domains;
mod fault;
mod hash_policy;
mod headers;
mod inbound;
mod matching;
mod mirror;
mod redirect;
mod retry;
mod table;
mod vip;
mod virtual_host;

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{Decorator, Route, RouteMatch};
use sluice_model::{
    ConsistentHash, Destination, Host, HttpMatch, HttpRetry, HttpRoute, Labels, PersistentSession, VirtualService,
    match_labels,
};

pub use domains::{AltHosts, ServiceDomains, service_domains};
pub(crate) use hash_policy::build_hash_policy;
pub use headers::advertise_http3;
pub(crate) use inbound::build_inbound_route;
pub(crate) use retry::{build_inbound_retry_policy, build_retry_policy};
pub use table::{TableKind, build_header, by_virtual_host, grpc_table, renamed};
pub use vip::{WaypointDestination, vip_kinds};
pub(crate) use virtual_host::build_route_to;
pub use virtual_host::{
    CatchAll, VirtualHostInputs, build_catch_all, build_default_route, build_not_found, build_virtual_host,
    virtual_host_name,
};

use crate::endpoint_picker::{EXT_PROC, route_picker};
use crate::filter::add_session;
use crate::filter_config::{CORS, FAULT};
use crate::object_metadata::{ConfigKind, object_metadata};

/// Name of the route of a service without a VirtualService.
pub(crate) const DEFAULT_ROUTE_NAME: &str = "default";

/// Properties of a destination service that its route depends on.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DestinationService {
    /// Its only port; `None` if it has several.
    pub only_port: Option<u32>,
    /// The host that it is an alias of, if any.
    pub alias_of: Option<Host>,
    /// Its persistent sessions.
    pub session: Option<PersistentSession>,
    /// At a waypoint that serves it: how each port is proxied, as in the names of its clusters.
    pub vip_kinds: Option<BTreeMap<u32, &'static str>>,
}

/// Inputs of the routes of a VirtualService.
#[derive(Clone, Copy)]
pub struct RouteInputs<'a> {
    /// The VirtualService, with delegates merged.
    pub virtual_service: &'a VirtualService,
    /// Destination port of the client.
    pub port: u32,
    /// Gateway the routes are for: [`sluice_model::MESH_GATEWAY`] or `namespace/name`.
    pub gateway: &'a str,
    /// Namespace of the client.
    pub namespace: &'a str,
    /// Labels of the client.
    pub labels: &'a Labels,
    /// Whether the listener terminates TLS.
    pub is_tls: bool,
    /// Whether the client is a waypoint, which does not know the labels of the source.
    pub waypoint: bool,
    /// Whether `x-forwarded-host` is appended when the authority is rewritten.
    pub append_x_forwarded_host: bool,
    /// Default retry policy.
    pub default_retry: Option<&'a HttpRetry>,
    /// The host of mirrored requests has the suffix `-shadow` (not `DISABLE_SHADOW_HOST_SUFFIX`).
    pub shadow_suffix: bool,
    /// Whether the client is a gRPC library without an Envoy, which reads the time limit of a call from another field.
    pub grpc: bool,
    /// Looks up the service of a destination host.
    pub service: &'a dyn Fn(&Host) -> Option<DestinationService>,
    /// Looks up the consistent hashing of a destination by the client's rules.
    pub hash: &'a dyn Fn(&Destination) -> Option<ConsistentHash>,
}

/// The client of routes.
#[derive(Clone, Copy, Debug)]
pub struct RouteClient<'a> {
    /// Destination port of the client.
    pub port: u32,
    /// Gateway the routes are for: [`sluice_model::MESH_GATEWAY`] or `namespace/name`.
    pub gateway: &'a str,
    /// Namespace of the client.
    pub namespace: &'a str,
    /// Labels of the client; `None` if they are unknown, so that no label matches.
    pub labels: Option<&'a Labels>,
}

impl RouteInputs<'_> {
    fn client(&self) -> RouteClient<'_> {
        let Self { port, gateway, namespace, labels, waypoint, .. } = *self;
        RouteClient { port, gateway, namespace, labels: (!waypoint).then_some(labels) }
    }
}

/// Builds the HTTP routes of a VirtualService, in order. Routes after one that matches every request are left out.
#[must_use]
pub fn build_routes(inputs: &RouteInputs<'_>) -> Vec<Route> {
    let mut routes = Vec::new();
    for route in &inputs.virtual_service.http {
        if route.matches.is_empty() {
            routes.push(build_route(inputs, route, None));
            break;
        }
        for matched in route.matches.iter().filter(|matched| applies(matched, &inputs.client())) {
            let built = build_route(inputs, route, Some(matched));
            let last = is_catch_all(&built);
            routes.push(built);
            if last {
                return routes;
            }
        }
    }
    routes
}

/// Whether a VirtualService has an HTTP route for this client, gateway and port.
#[must_use]
pub fn has_routes(virtual_service: &VirtualService, client: &RouteClient<'_>) -> bool {
    let mut routes = virtual_service.http.iter();
    routes.any(|route| route.matches.is_empty() || route.matches.iter().any(|matched| applies(matched, client)))
}

/// Whether a match applies to this client, gateway and port.
fn applies(matched: &HttpMatch, client: &RouteClient<'_>) -> bool {
    if matched.port != 0 && matched.port != client.port {
        return false;
    }
    if client.labels.is_none() && !matched.source_labels.is_empty() {
        return false;
    }
    if !matched.gateways.is_empty() {
        return matched.gateways.iter().any(|gateway| gateway.as_str() == client.gateway);
    }
    client.labels.is_none_or(|labels| match_labels(&matched.source_labels, labels))
        && (matched.source_namespace.is_empty() || matched.source_namespace.as_str() == client.namespace)
}

fn build_route(inputs: &RouteInputs<'_>, route: &HttpRoute, matched: Option<&HttpMatch>) -> Route {
    let mut name = route.name.to_string();
    if let Some(matched) = matched.filter(|matched| !matched.name.is_empty()) {
        name = format!("{name}.{}", matched.name);
    }
    let virtual_service = inputs.virtual_service;
    let mut out = Route {
        name,
        r#match: Some(matching::build_match(virtual_service.semantics, matched)),
        metadata: Some(object_metadata(ConfigKind::VirtualService, &virtual_service.namespace, &virtual_service.name)),
        stat_prefix: matched.map(|matched| matched.stat_prefix.to_string()).unwrap_or_default(),
        ..Route::default()
    };
    let authority = route.headers.as_ref().and_then(|headers| headers::apply(headers, &mut out));
    if let Some(redirect) = &route.redirect {
        out.action = redirect::build_redirect(redirect, inputs.port, inputs.is_tls).map(Action::Redirect);
    } else if let Some(response) = &route.direct_response {
        out.action = Some(Action::DirectResponse(direct_response::build_direct_response(response)));
    } else {
        let action = action::build_action(inputs, route, authority, &mut out);
        out.action = Some(Action::Route(action));
        add_session(&mut out.typed_per_filter_config, session(inputs, route).as_ref());
    }
    out.decorator = Some(Decorator { operation: operation(&out, virtual_service, inputs.port), propagate: None });
    if let Some(fault) = &route.fault {
        out.typed_per_filter_config.insert(FAULT.into(), fault::build_fault(fault));
    }
    // gRPC libraries reject settings of filters that they do not have.
    if let Some(picker) = route.endpoint_picker.as_ref().filter(|_| !inputs.grpc) {
        out.typed_per_filter_config.insert(EXT_PROC.into(), route_picker(picker));
    }
    if let Some(cors) = route.cors.as_ref().filter(|_| !inputs.grpc) {
        out.typed_per_filter_config.insert(CORS.into(), cors::build_cors(cors));
    }
    out
}

/// The persistent session of a route: that of its last destination, if no earlier destination has one.
fn session(inputs: &RouteInputs<'_>, route: &HttpRoute) -> Option<PersistentSession> {
    let lone = route.route.len() == 1;
    let destinations = route.route.iter().filter(|destination| lone || destination.weight > 0);
    let mut session = None;
    for destination in destinations {
        let own = (inputs.service)(&destination.destination.host).and_then(|service| service.session);
        if session.is_some() && own.is_some() {
            break;
        }
        session = own;
    }
    session
}

/// The operation name in traces: host and port of a single destination, otherwise the VirtualService; then the path.
fn operation(route: &Route, virtual_service: &VirtualService, port: u32) -> String {
    let path = match route.r#match.as_ref().and_then(|matched| matched.path_specifier.as_ref()) {
        Some(PathSpecifier::Prefix(prefix)) => format!("{prefix}*"),
        Some(PathSpecifier::Path(path)) => path.clone(),
        Some(PathSpecifier::SafeRegex(regex)) => regex.regex.clone(),
        _ => "/*".into(),
    };
    if let Some(Action::Route(action)) = &route.action
        && let Some(ClusterSpecifier::Cluster(cluster)) = &action.cluster_specifier
        && let [_, port, _, host] = cluster.split('|').collect::<Vec<_>>().as_slice()
    {
        return format!("{host}:{port}{path}");
    }
    format!("{}:{port}{path}", virtual_service.name)
}

/// Whether a route matches every request.
fn is_catch_all(route: &Route) -> bool {
    let Some(matched) = &route.r#match else { return false };
    let any_path = match &matched.path_specifier {
        Some(PathSpecifier::Prefix(prefix) | PathSpecifier::PathSeparatedPrefix(prefix)) => prefix == "/",
        Some(PathSpecifier::SafeRegex(regex)) => regex.regex == ".*",
        _ => false,
    };
    let RouteMatch { headers, query_parameters, dynamic_metadata, .. } = matched;
    any_path && headers.is_empty() && query_parameters.is_empty() && dynamic_metadata.is_empty()
}

/// Moves routes that match everything to the end and keeps the order otherwise.
#[must_use]
pub fn catch_all_last(routes: Vec<Route>) -> Vec<Route> {
    let (last, mut first): (Vec<_>, Vec<_>) = routes.into_iter().partition(is_catch_all);
    first.extend(last);
    first
}

#[cfg(test)]
mod tests;
