//! Virtual hosts: domains and their routes.

use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::virtual_host::TlsRequirementType;
use envoy_types::pb::envoy::config::route::v3::{
    Decorator, DirectResponseAction, Route, RouteAction, RouteMatch, VirtualHost,
};
use sluice_model::{ConsistentHash, HttpRetry, PersistentSession};

use super::action::set_timeout;
use super::{DEFAULT_ROUTE_NAME, build_hash_policy, build_retry_policy};
use crate::address::join_port;
use crate::filter::add_session;
use crate::name;

/// Inputs of a virtual host.
#[derive(Clone, Debug, Default)]
pub struct VirtualHostInputs {
    /// Its name, see [`virtual_host_name`].
    pub name: String,
    /// Its domains.
    pub domains: Vec<String>,
    /// Its routes in order.
    pub routes: Vec<Route>,
    /// The attempt count is sent upstream in a header.
    pub include_attempt_count: bool,
    /// Plain-text requests are redirected to HTTPS.
    pub require_tls: bool,
    /// Persistent sessions of its service.
    pub session: Option<PersistentSession>,
}

/// The virtual host of a host and port.
#[must_use]
pub fn build_virtual_host(inputs: VirtualHostInputs) -> VirtualHost {
    let require_tls = if inputs.require_tls { TlsRequirementType::All } else { TlsRequirementType::None };
    let mut virtual_host = VirtualHost {
        name: inputs.name,
        domains: inputs.domains,
        routes: inputs.routes,
        include_request_attempt_count: inputs.include_attempt_count,
        require_tls: require_tls.into(),
        ..VirtualHost::default()
    };
    add_session(&mut virtual_host.typed_per_filter_config, inputs.session.as_ref());
    virtual_host
}

/// `host:port`, with IPv6 addresses in brackets.
#[must_use]
pub fn virtual_host_name(host: &str, port: u32) -> String {
    join_port(host, port)
}

fn everything() -> Option<RouteMatch> {
    Some(RouteMatch { path_specifier: Some(PathSpecifier::Prefix("/".into())), ..RouteMatch::default() })
}

/// The route to a service without a VirtualService.
#[must_use]
pub fn build_default_route(host: &str, port: u32, hash: Option<&ConsistentHash>, retry: Option<&HttpRetry>) -> Route {
    let operation = format!("{}/*", join_port(host, port));
    build_route_to(name::outbound_cluster(port, "", host), operation, hash, retry)
}

/// The route of all requests to a cluster, with the name `operation` in traces.
#[must_use]
pub(crate) fn build_route_to(
    cluster: String,
    operation: String,
    hash: Option<&ConsistentHash>,
    retry: Option<&HttpRetry>,
) -> Route {
    let mut action = RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster)),
        // Consistent hashing does not change the hosts of retries here. It does so only in a VirtualService route.
        retry_policy: build_retry_policy(retry, false),
        hash_policy: hash.and_then(build_hash_policy).into_iter().collect(),
        ..RouteAction::default()
    };
    set_timeout(&mut action, None);
    Route {
        name: DEFAULT_ROUTE_NAME.into(),
        r#match: everything(),
        decorator: Some(Decorator { operation, propagate: None }),
        action: Some(Action::Route(action)),
        ..Route::default()
    }
}

/// Handling of requests to unknown hosts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CatchAll {
    /// Forward to this cluster: the original destination or an egress proxy.
    Allow(String),
    /// Resolve the host by DNS.
    AllowDynamicDns,
    /// Reject with 502.
    Block,
}

/// The virtual host of unknown hosts.
#[must_use]
pub fn build_catch_all(
    catch_all: &CatchAll,
    include_attempt_count: bool,
    append_x_forwarded_host: bool,
) -> VirtualHost {
    let (name, cluster) = match catch_all {
        CatchAll::Allow(cluster) => ("allow_any", Some(cluster.as_str())),
        CatchAll::AllowDynamicDns => (name::ALLOW_ANY_DYNAMIC_DNS, Some(name::ALLOW_ANY_DYNAMIC_DNS_CLUSTER)),
        CatchAll::Block => ("block_all", None),
    };
    let action = match cluster {
        Some(cluster) => {
            let mut action = RouteAction {
                cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.into())),
                append_x_forwarded_host,
                ..RouteAction::default()
            };
            set_timeout(&mut action, None);
            Action::Route(action)
        }
        None => Action::DirectResponse(DirectResponseAction { status: 502, ..DirectResponseAction::default() }),
    };
    let route = Route { name: name.into(), r#match: everything(), action: Some(action), ..Route::default() };
    VirtualHost {
        name: name.into(),
        domains: vec!["*".into()],
        routes: vec![route],
        include_request_attempt_count: include_attempt_count,
        ..VirtualHost::default()
    }
}

/// The virtual host of a gateway table without routes: every request gets 404.
#[must_use]
pub fn build_not_found(port: u32) -> VirtualHost {
    VirtualHost { name: join_port("blackhole", port), domains: vec!["*".into()], ..VirtualHost::default() }
}
