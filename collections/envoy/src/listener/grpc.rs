//! Listeners of gRPC clients and servers without an Envoy (X28). A listener has only the fields that gRPC libraries accept
//! (gRFC A27, A36): they reject others.

use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::{AggregatedConfigSource, ConfigSource};
use envoy_types::pb::envoy::config::listener::v3::{ApiListener, FilterChain, Listener};
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{
    NonForwardingAction, Route, RouteConfiguration, RouteMatch, VirtualHost,
};
use envoy_types::pb::envoy::extensions::filters::http::{fault::v3::HttpFault, router::v3::Router};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds, http_connection_manager::RouteSpecifier,
};
use sluice_model::{IpFamilies, PersistentSession, Service, Text};

use super::address::{additional, localhosts, wildcards};
use super::mtls::MtlsMode;
use super::service_address::{extra_addresses, service_address};
use crate::address::{address, join_port};
use crate::certificate_provider::downstream_tls;
use crate::filter::session_filter_of;
use crate::filter_config::{FAULT, ROUTER, http_filter, network_filter};
use crate::listener_settings::ListenerSettings;
use crate::name::outbound_cluster;
use crate::wire::any;

/// Prefix of the name by which a server subscribes to its listener. The address and port at which it listens follow.
const SERVER_PREFIX: &str = "xds.istio.io/grpc/lds/inbound/";

/// Inputs of the listener by which clients reach a service port.
#[derive(Clone, Copy, Debug)]
pub struct GrpcClientInputs<'a> {
    /// Settings of mesh and client.
    pub settings: &'a ListenerSettings,
    /// The service.
    pub service: &'a Service,
    /// One of its ports.
    pub port: u16,
    /// How the client keeps sessions with the service.
    pub session: Option<&'a PersistentSession>,
}

/// Builds the listener of a service port. `host` is the name of the service in the target of clients, which may be shorter
/// than that of the service.
#[must_use]
pub fn build_grpc_client(inputs: &GrpcClientInputs<'_>, host: &str) -> Listener {
    let GrpcClientInputs { settings, service, port, session } = *inputs;
    let number = u32::from(port);
    let fault = http_filter(FAULT, any(&HttpFault::default()));
    let ads = ConfigSourceSpecifier::Ads(AggregatedConfigSource::default());
    let rds = Rds {
        config_source: Some(ConfigSource { config_source_specifier: Some(ads), ..ConfigSource::default() }),
        route_config_name: outbound_cluster(number, "", service.host.as_str()),
    };
    let manager = HttpConnectionManager {
        http_filters: session.map(session_filter_of).into_iter().chain([fault, router()]).collect(),
        route_specifier: Some(RouteSpecifier::Rds(rds)),
        ..HttpConnectionManager::default()
    };
    let bind = service_address(settings, service);
    Listener {
        name: join_port(host, number),
        address: Some(address(bind.as_deref().unwrap_or("0.0.0.0"), number)),
        additional_addresses: additional(&extra_addresses(settings, service), number),
        api_listener: Some(ApiListener { api_listener: Some(any(&manager)) }),
        ..Listener::default()
    }
}

/// Inputs of the listener of a server port.
#[derive(Clone, Copy, Debug)]
pub struct GrpcServerInputs<'a> {
    /// Settings of mesh and server.
    pub settings: &'a ListenerSettings,
    /// A service of the port.
    pub service: &'a Service,
    /// The port at which the server listens.
    pub port: u32,
    /// The mutual TLS mode of the port.
    pub mode: MtlsMode,
    /// Filters of AuthorizationPolicies.
    pub filters: &'a [HttpFilter],
}

/// Builds the listener of a server that listens at `bind`.
///
/// gRPC has no permissive mode: such a port accepts mutual TLS only if the server declares that it does so, because then
/// its clients use it, and plain text only otherwise.
#[must_use]
pub fn build_grpc_server(inputs: &GrpcServerInputs<'_>, bind: &str) -> Listener {
    let GrpcServerInputs { settings, service, port, mode, filters } = *inputs;
    let mtls = match mode {
        MtlsMode::Strict => true,
        MtlsMode::Permissive => settings.profile.grpc_mtls,
        MtlsMode::Disable => false,
    };
    let suffix = if mtls { "mtls" } else { "plaintext" };
    let manager = HttpConnectionManager {
        http_filters: filters.iter().cloned().chain([router()]).collect(),
        route_specifier: Some(RouteSpecifier::RouteConfig(accept_all())),
        ..HttpConnectionManager::default()
    };
    let chain = FilterChain {
        name: format!("inbound-{suffix}"),
        filters: vec![network_filter(&format!("inbound-hcm{suffix}"), any(&manager))],
        transport_socket: mtls.then(downstream_tls),
        ..FilterChain::default()
    };
    Listener {
        name: grpc_server_name(bind, port),
        address: Some(address(bind, port)),
        additional_addresses: additional(&extra_addresses(settings, service), port),
        filter_chains: vec![chain],
        ..Listener::default()
    }
}

/// The name of the listener of a server that listens at this address and port.
#[must_use]
pub fn grpc_server_name(bind: &str, port: u32) -> String {
    format!("{SERVER_PREFIX}{}", join_port(bind, port))
}

/// The addresses of any pod at which a server may listen: those of all interfaces, and of the loopback interface, of both
/// families, because a server may use the other family also in a cluster of one family.
#[must_use]
pub fn grpc_server_addresses() -> Vec<Text> {
    [wildcards(IpFamilies::Dual), localhosts(IpFamilies::Dual), vec!["localhost".into()]].concat()
}

/// The routes of a server: every request is handled by the server itself.
fn accept_all() -> RouteConfiguration {
    let route = Route {
        r#match: Some(RouteMatch { path_specifier: Some(PathSpecifier::Prefix("/".into())), ..RouteMatch::default() }),
        action: Some(Action::NonForwardingAction(NonForwardingAction::default())),
        ..Route::default()
    };
    let host = VirtualHost { domains: vec!["*".to_owned()], routes: vec![route], ..VirtualHost::default() };
    RouteConfiguration { name: "inbound".to_owned(), virtual_hosts: vec![host], ..RouteConfiguration::default() }
}

fn router() -> HttpFilter {
    http_filter(ROUTER, any(&Router::default()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_model::MeshConfig;

    use super::*;
    use crate::listener_settings::ListenerProfile;

    fn settings(grpc_mtls: bool) -> ListenerSettings {
        let profile = ListenerProfile { cluster: "c".into(), grpc: true, grpc_mtls, ..ListenerProfile::default() };
        ListenerSettings { mesh: Arc::new(MeshConfig::default()), profile, ..ListenerSettings::default() }
    }

    #[test]
    fn permissive_ports_require_mutual_tls_if_the_server_declares_it() {
        let service = Service::default();
        let chain = |mode, declares| {
            let settings = settings(declares);
            let inputs = GrpcServerInputs { settings: &settings, service: &service, port: 50051, mode, filters: &[] };
            let listener = build_grpc_server(&inputs, "::");
            assert_eq!(listener.name, "xds.istio.io/grpc/lds/inbound/[::]:50051");
            let chain = listener.filter_chains.into_iter().next().expect("a chain");
            (chain.name, chain.transport_socket.is_some())
        };
        let (mtls, plain) = (("inbound-mtls".to_owned(), true), ("inbound-plaintext".to_owned(), false));
        assert_eq!(chain(MtlsMode::Strict, false), mtls);
        assert_eq!(chain(MtlsMode::Permissive, true), mtls);
        assert_eq!(chain(MtlsMode::Permissive, false), plain);
        assert_eq!(chain(MtlsMode::Disable, true), plain);
    }

    #[test]
    fn client_listener_has_the_name_of_the_target_and_the_routes_of_the_service() {
        let service = Service { host: "kettle.shop.svc.cluster.local".into(), ..Service::default() };
        let settings = settings(false);
        let inputs = GrpcClientInputs { settings: &settings, service: &service, port: 7070, session: None };
        let listener = build_grpc_client(&inputs, "kettle.shop");
        assert_eq!(listener.name, "kettle.shop:7070");
        let packed = listener.api_listener.and_then(|api| api.api_listener).expect("a connection manager");
        let manager = <HttpConnectionManager as prost::Message>::decode(packed.value.as_slice()).expect("a manager");
        let names: Vec<&str> = manager.http_filters.iter().map(|filter| filter.name.as_str()).collect();
        assert_eq!(names, ["envoy.filters.http.fault", "envoy.filters.http.router"]);
        let Some(RouteSpecifier::Rds(rds)) = manager.route_specifier else { panic!("routes by name") };
        assert_eq!(rds.route_config_name, "outbound|7070||kettle.shop.svc.cluster.local");
    }
}
