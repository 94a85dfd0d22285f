//! HTTP filters and their order (N07).

use envoy_types::pb::envoy::config::common::mutation_rules::v3::{HeaderMutation as RequestMutation, header_mutation};
use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::extensions::filters::http::{
    cors::v3::Cors,
    fault::v3::HttpFault,
    grpc_stats::v3::{FilterConfig as GrpcStats, filter_config::PerMethodStatSpecifier},
    grpc_web::v3::GrpcWeb,
    header_mutation::v3::{HeaderMutation, Mutations},
    on_demand::v3::{OnDemand, OnDemandCds},
    router::v3::Router,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use sluice_model::{ExtensionPhase, Protocol, ProxyType};

use super::extension::Extensions;
use super::http_chain::HttpChain;
use super::{istio, session, stats};
use crate::config_source::ads_source;
use crate::endpoint_picker::picker_filter;
use crate::filter_config::{CORS, FAULT, ROUTER, http_filter};
use crate::filter_state::{LOCAL_PRINCIPAL, PEER_PRINCIPAL};
use crate::listener_settings::{HTTP_METADATA_EXCHANGE, ISTIO_ALPN, ListenerClass, ListenerSettings};
use crate::metadata_exchange::METADATA_EXCHANGE;
use crate::wire::{any, boolean};

/// Builds the filters of an HTTP connection manager. The router is the last one.
pub(super) fn http_filters(settings: &ListenerSettings, chain: &HttpChain) -> Vec<HttpFilter> {
    let profile = &settings.profile;
    let waypoint = profile.proxy_type == ProxyType::Waypoint;
    let headers = settings.config().proxy_headers.as_ref();
    let mut filters = Vec::new();
    if profile.on_demand_clusters && chain.class != ListenerClass::Inbound {
        // When the cluster has arrived, Envoy begins the chain again, so no other filter may have seen the request.
        filters.push(on_demand_filter());
    }
    // The peer of a tunnel is found by its address in the listener that terminates the tunnel.
    if profile.has(HTTP_METADATA_EXCHANGE) && !waypoint && !settings.in_tunnel {
        // Only outbound traffic of sidecars supports headers limited to the mesh; the HTTP proxy listener does not.
        let skip = chain.mesh_headers_only_in_mesh && headers.is_some_and(|headers| headers.metadata_exchange_in_mesh);
        let config = istio::peer_metadata(chain.class == ListenerClass::Inbound, skip);
        filters.push(http_filter(METADATA_EXCHANGE, config));
    }
    if profile.states_client_identity {
        filters.push(client_identity());
    }
    let extensions = Extensions::on(settings, chain.class, chain.port);
    filters.extend(chain.policies.custom.iter().cloned());
    filters.extend(extensions.http(ExtensionPhase::Authn));
    filters.extend(chain.policies.authentication.iter().cloned());
    filters.extend(extensions.http(ExtensionPhase::Authz));
    filters.extend(chain.policies.authorization.iter().cloned());
    let late = || extensions.http(ExtensionPhase::Stats).chain(extensions.http(ExtensionPhase::Unspecified));
    if !waypoint {
        filters.extend(late());
    }
    if chain.calls_pickers {
        filters.push(picker_filter());
    }
    if chain.protocol == Protocol::GrpcWeb {
        filters.push(http_filter("envoy.filters.http.grpc_web", any(&GrpcWeb::default())));
    }
    filters.push(grpc_stats());
    if chain.class != ListenerClass::Inbound && profile.has(ISTIO_ALPN) {
        filters.push(http_filter(ISTIO_ALPN, istio::alpn()));
    }
    filters.push(http_filter(FAULT, any(&HttpFault::default())));
    filters.push(http_filter(CORS, any(&Cors::default())));
    if !waypoint {
        filters.extend(stats::http_stats(settings, chain.class));
    }
    if settings.switches.persistent_sessions && chain.class != ListenerClass::Inbound {
        filters.push(session::session_filter());
    }
    filters.extend(chain.forward_filters.iter().cloned());
    if waypoint {
        filters.extend(late());
        if profile.has(HTTP_METADATA_EXCHANGE) {
            filters.push(http_filter(
                "waypoint_upstream_peer_metadata",
                istio::waypoint_peer_metadata(false, settings.switches.tunnels.baggage),
            ));
        }
        filters.extend(stats::http_stats(settings, chain.class));
    }
    filters.push(router(settings));
    filters
}

/// The router, which is the last filter.
pub(crate) fn router(settings: &ListenerSettings) -> HttpFilter {
    let headers = settings.config().proxy_headers.as_ref();
    let router = Router {
        suppress_envoy_headers: headers.is_some_and(|headers| headers.envoy_debug_headers_disabled == Some(true)),
        ..Router::default()
    };
    http_filter(ROUTER, any(&router))
}

/// The filter of a waypoint that replaces `x-forwarded-client-cert`: the certificate of the client belongs to another
/// listener, and what the client has written is not verified.
fn client_identity() -> HttpFilter {
    let value = format!("By=%FILTER_STATE({LOCAL_PRINCIPAL}:PLAIN)%;URI=%FILTER_STATE({PEER_PRINCIPAL}:PLAIN)%");
    let header = HeaderValue { key: "x-forwarded-client-cert".to_owned(), value, ..HeaderValue::default() };
    let option = HeaderValueOption {
        header: Some(header),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd as i32,
        ..HeaderValueOption::default()
    };
    let mutation = RequestMutation { action: Some(header_mutation::Action::Append(option)) };
    let config = HeaderMutation {
        mutations: Some(Mutations { request_mutations: vec![mutation], ..Mutations::default() }),
        ..HeaderMutation::default()
    };
    http_filter("istio.waypoint.xfcc_client_identity", any(&config))
}

/// The filter that holds a request for an unknown cluster until that has arrived.
fn on_demand_filter() -> HttpFilter {
    let odcds = OnDemandCds { source: Some(ads_source()), ..OnDemandCds::default() };
    http_filter("envoy.filters.http.on_demand", any(&OnDemand { odcds: Some(odcds) }))
}

fn grpc_stats() -> HttpFilter {
    let config = GrpcStats {
        emit_filter_state: true,
        per_method_stat_specifier: Some(PerMethodStatSpecifier::StatsForAllMethods(boolean(false))),
        ..GrpcStats::default()
    };
    http_filter("envoy.filters.http.grpc_stats", any(&config))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_model::{TrafficSelector, WorkloadMode};

    use super::*;
    use crate::filter::RouteSource;
    use crate::listener_settings::{ListenerAttachments, ListenerExtension, ListenerSwitches};

    fn extension(name: &str, phase: ExtensionPhase) -> ListenerExtension {
        ListenerExtension { name: name.into(), phase, matches: Vec::new(), network: false, script: None }
    }

    fn names(extensions: Vec<ListenerExtension>, port: u32) -> Vec<String> {
        let attached = Arc::new(ListenerAttachments { extensions, ..ListenerAttachments::default() });
        let settings = ListenerSettings { attached, ..ListenerSettings::default() };
        let routes = RouteSource::Named(String::new());
        let mut chain = HttpChain::new(ListenerClass::Inbound, Protocol::Http, port, routes, String::new());
        let filter = |name: &str| vec![HttpFilter { name: name.to_owned(), ..HttpFilter::default() }];
        chain.policies.custom = filter("custom");
        chain.policies.authentication = filter("jwt");
        chain.policies.authorization = filter("rbac");
        let filters = http_filters(&settings, &chain).into_iter().map(|filter| filter.name);
        filters.take_while(|name| name != "envoy.filters.http.grpc_stats").collect()
    }

    #[test]
    fn extensions_are_placed_between_policy_steps() {
        let all = vec![
            extension("late", ExtensionPhase::Unspecified),
            extension("stats", ExtensionPhase::Stats),
            extension("authz", ExtensionPhase::Authz),
            extension("authn-1", ExtensionPhase::Authn),
            extension("authn-2", ExtensionPhase::Authn),
        ];
        let expected =
            ["istio.metadata_exchange", "custom", "authn-1", "authn-2", "jwt", "authz", "rbac", "stats", "late"];
        assert_eq!(names(all, 80), expected);
    }

    #[test]
    fn extensions_apply_to_matching_traffic() {
        let matching = |mode, ports: &[u32]| ListenerExtension {
            matches: vec![TrafficSelector { mode, ports: ports.to_vec() }],
            ..extension("x", ExtensionPhase::Authn)
        };
        let has = |extension, port| names(vec![extension], port).contains(&"x".to_owned());
        assert!(has(matching(WorkloadMode::Server, &[]), 80) && !has(matching(WorkloadMode::Client, &[]), 80));
        assert!(has(matching(WorkloadMode::ClientAndServer, &[81, 80]), 80));
        assert!(!has(matching(WorkloadMode::ClientAndServer, &[81]), 80));
        let network = ListenerExtension { network: true, ..extension("x", ExtensionPhase::Authn) };
        assert!(!has(network, 80));
    }

    #[test]
    fn waypoints_place_extensions_and_statistics_before_the_router() {
        let mut settings = ListenerSettings::default();
        settings.profile.proxy_type = ProxyType::Waypoint;
        settings.profile.states_client_identity = true;
        let extensions =
            vec![extension("late", ExtensionPhase::Unspecified), extension("authn", ExtensionPhase::Authn)];
        settings.attached = Arc::new(ListenerAttachments { extensions, ..ListenerAttachments::default() });
        let mut chain =
            HttpChain::new(ListenerClass::Inbound, Protocol::Http, 0, RouteSource::Named(String::new()), String::new());
        chain.policies.authorization = vec![HttpFilter { name: "rbac".to_owned(), ..HttpFilter::default() }];
        let names: Vec<String> = http_filters(&settings, &chain).into_iter().map(|filter| filter.name).collect();
        assert_eq!(
            names,
            [
                "istio.waypoint.xfcc_client_identity",
                "authn",
                "rbac",
                "envoy.filters.http.grpc_stats",
                FAULT,
                CORS,
                "late",
                "waypoint_upstream_peer_metadata",
                "envoy.filters.http.router",
            ]
        );
    }

    #[test]
    fn session_filter_is_added_for_outbound_traffic() {
        let has = |class, persistent_sessions| {
            let switches = ListenerSwitches { persistent_sessions, ..ListenerSwitches::default() };
            let settings = ListenerSettings { switches, ..ListenerSettings::default() };
            let chain = HttpChain::new(class, Protocol::Http, 80, RouteSource::Named(String::new()), String::new());
            let names: Vec<String> = http_filters(&settings, &chain).into_iter().map(|filter| filter.name).collect();
            let found = names.iter().position(|name| name == "envoy.filters.http.stateful_session");
            assert!(found.is_none_or(|at| at + 2 == names.len()), "before the router: {names:?}");
            found.is_some()
        };
        assert_eq!(
            [has(ListenerClass::Outbound, true), has(ListenerClass::Gateway, true), has(ListenerClass::Inbound, true)],
            [true, true, false]
        );
        assert!(!has(ListenerClass::Outbound, false));
    }
}
