//! Routes: VirtualServices and services to virtual hosts (N18 to N20).

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
mod virtual_host;

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{Decorator, Route, RouteMatch};
use sluice_model::{
    ConsistentHash, Destination, Host, HttpMatch, HttpRetry, HttpRoute, Labels, PersistentSession, VirtualService,
    match_labels,
};

pub use domains::{AltHosts, ServiceDomains, service_domains};
pub use hash_policy::build_hash_policy;
pub use headers::advertise_http3;
pub use inbound::build_inbound_route;
pub use retry::{build_inbound_retry_policy, build_retry_policy};
pub use table::{TableKind, build_header, by_virtual_host, renamed};
pub use virtual_host::{
    CatchAll, VirtualHostInputs, build_catch_all, build_default_route, build_not_found, build_virtual_host,
    virtual_host_name,
};

use crate::filter::add_session;
use crate::wire::{string_value, structure};

/// Name of the route of a service without a VirtualService.
pub const DEFAULT_ROUTE_NAME: &str = "default";

/// What a route has to know of the service it leads to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DestinationService {
    /// Its only port; `None` if it has several.
    pub only_port: Option<u32>,
    /// The host it stands for, if it is an alias.
    pub alias_of: Option<Host>,
    /// How sessions with it are kept.
    pub session: Option<PersistentSession>,
}

/// Everything the routes of a VirtualService depend on.
#[derive(Clone, Copy)]
pub struct RouteInputs<'a> {
    /// The VirtualService, delegates merged in.
    pub virtual_service: &'a VirtualService,
    /// Port the client addresses.
    pub port: u32,
    /// Gateway the routes are for: [`sluice_model::MESH_GATEWAY`] or `namespace/name`.
    pub gateway: &'a str,
    /// Namespace of the client.
    pub namespace: &'a str,
    /// Labels of the client.
    pub labels: &'a Labels,
    /// The listener terminates TLS.
    pub is_tls: bool,
    /// `x-forwarded-host` is appended when the authority is rewritten.
    pub append_x_forwarded_host: bool,
    /// Retries of routes that say nothing.
    pub default_retry: Option<&'a HttpRetry>,
    /// What is known of the service of a destination, `None` if there is none.
    pub service: &'a dyn Fn(&Host) -> Option<DestinationService>,
    /// Consistent hashing the client's rules ask for at a destination.
    pub hash: &'a dyn Fn(&Destination) -> Option<ConsistentHash>,
}

/// Who routes are for.
#[derive(Clone, Copy, Debug)]
pub struct RouteClient<'a> {
    /// Port the client addresses.
    pub port: u32,
    /// Gateway the routes are for: [`sluice_model::MESH_GATEWAY`] or `namespace/name`.
    pub gateway: &'a str,
    /// Namespace of the client.
    pub namespace: &'a str,
    /// Labels of the client.
    pub labels: &'a Labels,
}

impl RouteInputs<'_> {
    fn client(&self) -> RouteClient<'_> {
        let Self { port, gateway, namespace, labels, .. } = *self;
        RouteClient { port, gateway, namespace, labels }
    }
}

/// The HTTP routes of a VirtualService, in order; what follows a route that matches everything is left out.
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

/// Whether a VirtualService has any HTTP route for this client, gateway and port.
#[must_use]
pub fn has_routes(virtual_service: &VirtualService, client: &RouteClient<'_>) -> bool {
    let mut routes = virtual_service.http.iter();
    routes.any(|route| route.matches.is_empty() || route.matches.iter().any(|matched| applies(matched, client)))
}

/// Whether a condition can hold for this client, gateway and port at all.
fn applies(matched: &HttpMatch, client: &RouteClient<'_>) -> bool {
    if matched.port != 0 && matched.port != client.port {
        return false;
    }
    if !matched.gateways.is_empty() {
        return matched.gateways.iter().any(|gateway| gateway.as_str() == client.gateway);
    }
    match_labels(&matched.source_labels, client.labels)
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
        metadata: Some(config_metadata(virtual_service)),
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
        out.typed_per_filter_config.insert("envoy.filters.http.fault".into(), fault::build_fault(fault));
    }
    if let Some(cors) = &route.cors {
        out.typed_per_filter_config.insert("envoy.filters.http.cors".into(), cors::build_cors(cors));
    }
    out
}

/// How sessions with the destinations of a route are kept: the last of them says, unless one before it does as well.
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

/// Metadata that names the object a route comes from (N10).
fn config_metadata(virtual_service: &VirtualService) -> Metadata {
    let VirtualService { namespace, name, .. } = virtual_service;
    let path = format!("/apis/networking.istio.io/v1/namespaces/{namespace}/virtual-service/{name}");
    let mut metadata = Metadata::default();
    metadata.filter_metadata.insert("istio".into(), structure([("config", string_value(&path))]));
    metadata
}

/// What a trace calls the request: host and port if there is one destination, else the VirtualService; then the path.
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
#[must_use]
pub fn is_catch_all(route: &Route) -> bool {
    let Some(matched) = &route.r#match else { return false };
    let any_path = match &matched.path_specifier {
        Some(PathSpecifier::Prefix(prefix) | PathSpecifier::PathSeparatedPrefix(prefix)) => prefix == "/",
        Some(PathSpecifier::SafeRegex(regex)) => regex.regex == ".*",
        _ => false,
    };
    let RouteMatch { headers, query_parameters, dynamic_metadata, .. } = matched;
    any_path && headers.is_empty() && query_parameters.is_empty() && dynamic_metadata.is_empty()
}

/// Routes that match everything last, the rest as they were.
#[must_use]
pub fn catch_all_last(routes: Vec<Route>) -> Vec<Route> {
    let (last, mut first): (Vec<_>, Vec<_>) = routes.into_iter().partition(is_catch_all);
    first.extend(last);
    first
}

#[cfg(test)]
mod tests;
