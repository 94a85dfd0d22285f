//! Virtual hosts: domains and the routes of requests to them.

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
use crate::filter::add_session;
use crate::name;

/// What a virtual host is made of.
#[derive(Clone, Debug, Default)]
pub struct VirtualHostInputs {
    /// Its name, see [`virtual_host_name`].
    pub name: String,
    /// Its domains.
    pub domains: Vec<String>,
    /// Its routes in order.
    pub routes: Vec<Route>,
    /// The number of tries is told upstream.
    pub include_attempt_count: bool,
    /// Plain requests are sent to HTTPS.
    pub require_tls: bool,
    /// How sessions with its service are kept.
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

/// `host:port`, IPv6 addresses in brackets.
#[must_use]
pub fn virtual_host_name(host: &str, port: u32) -> String {
    join_port(host, port)
}

pub(super) fn join_port(host: &str, port: u32) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn everything() -> Option<RouteMatch> {
    Some(RouteMatch { path_specifier: Some(PathSpecifier::Prefix("/".into())), ..RouteMatch::default() })
}

/// The route to a service that no VirtualService speaks of.
#[must_use]
pub fn build_default_route(host: &str, port: u32, hash: Option<&ConsistentHash>, retry: Option<&HttpRetry>) -> Route {
    let mut action = RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(name::outbound_cluster(port, "", host))),
        // The rule's hash does not change which hosts are tried again: only a VirtualService's route does.
        retry_policy: build_retry_policy(retry, false),
        hash_policy: hash.and_then(build_hash_policy).into_iter().collect(),
        ..RouteAction::default()
    };
    set_timeout(&mut action, None);
    Route {
        name: DEFAULT_ROUTE_NAME.into(),
        r#match: everything(),
        decorator: Some(Decorator { operation: format!("{}/*", join_port(host, port)), propagate: None }),
        action: Some(Action::Route(action)),
        ..Route::default()
    }
}

/// What happens to requests for hosts nobody declared.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CatchAll {
    /// They go to this cluster: their original destination, or an egress proxy.
    Allow(String),
    /// They go where DNS says.
    AllowDynamicDns,
    /// They are refused.
    Block,
}

/// The virtual host of hosts nobody declared.
#[must_use]
pub fn build_catch_all(
    catch_all: &CatchAll,
    include_attempt_count: bool,
    append_x_forwarded_host: bool,
) -> VirtualHost {
    let (name, cluster) = match catch_all {
        CatchAll::Allow(cluster) => ("allow_any", Some(cluster.as_str())),
        CatchAll::AllowDynamicDns => ("allow_any_dynamic_dns", Some("AllowAnyDynamicDNSCluster")),
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

/// The virtual host of a gateway's table without any route: every request gets 404.
#[must_use]
pub fn build_not_found(port: u32) -> VirtualHost {
    VirtualHost { name: join_port("blackhole", port), domains: vec!["*".into()], ..VirtualHost::default() }
}
