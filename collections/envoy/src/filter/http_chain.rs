//! Inputs of an HTTP connection manager.

use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use sluice_model::Protocol;

use crate::listener_settings::ListenerClass;
use crate::security::PolicySteps;

/// Source of the routes of a connection manager.
#[derive(Clone, Debug)]
pub(crate) enum RouteSource {
    /// RDS, with this name.
    Named(String),
    /// Inline routes.
    Inline(Box<RouteConfiguration>),
}

/// Inputs of an HTTP connection manager besides the settings.
#[derive(Clone, Debug)]
pub(crate) struct HttpChain {
    pub(crate) class: ListenerClass,
    pub(crate) protocol: Protocol,
    /// The port for the selection of extensions.
    pub(crate) port: u32,
    pub(crate) routes: RouteSource,
    /// Prefix of statistics, with its delimiter.
    pub(crate) stat_prefix: String,
    /// Whether the remote address of the connection is used as the client address.
    pub(crate) use_remote_address: bool,
    /// Whether metadata exchange headers may be limited to the mesh.
    pub(crate) mesh_headers_only_in_mesh: bool,
    /// Whether the chain serves only HTTP/3.
    pub(crate) http3: bool,
    /// Whether absolute URLs are accepted, as an HTTP proxy does.
    pub(crate) forward_proxy: bool,
    /// Authentication and authorization.
    pub(crate) policies: PolicySteps<HttpFilter>,
    /// Whether routes may call endpoint pickers.
    pub(crate) calls_pickers: bool,
    /// Filter that resolves hosts, before the router.
    pub(crate) forward_filters: Vec<HttpFilter>,
}

impl HttpChain {
    pub(crate) fn new(
        class: ListenerClass,
        protocol: Protocol,
        port: u32,
        routes: RouteSource,
        stat_prefix: String,
    ) -> Self {
        Self {
            class,
            protocol,
            port,
            routes,
            stat_prefix,
            use_remote_address: false,
            mesh_headers_only_in_mesh: class != ListenerClass::Inbound,
            http3: false,
            forward_proxy: false,
            policies: PolicySteps::default(),
            calls_pickers: false,
            forward_filters: Vec::new(),
        }
    }
}
