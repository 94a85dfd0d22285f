//! Internal listeners that tunnel connections over HBONE (N23, N25).

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::config::listener::v3::listener::{InternalListenerConfig, ListenerSpecifier};
use envoy_types::pb::envoy::config::listener::v3::{Filter, FilterChain, Listener, ListenerFilter};
use envoy_types::pb::envoy::extensions::filters::common::set_filter_state::v3::filter_state_value::SharedWithUpstream;
use envoy_types::pb::envoy::extensions::filters::network::set_filter_state::v3::Config as SetFilterState;
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::TcpProxy;
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::tcp_proxy::TunnelingConfig;
use sluice_model::ProxyType;

use super::inspector::original_dst;
use super::virtual_outbound::to_cluster;
use crate::filter::{connection_failure_logs, listener_access_log, tcp_proxy_filter};
use crate::filter_config::network_filter;
use crate::filter_state::{DOUBLE_HBONE_TARGET, ORIGINAL_DESTINATION, filter_state, text_factory};
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name::{CONNECT_ORIGINATE, INNER_CONNECT_ORIGINATE, OUTER_CONNECT_ORIGINATE};
use crate::wire::{any, boolean, typed_struct};

/// Filter state: the metadata of the proxy in the form of a header.
const BAGGAGE: &str = "io.istio.baggage";
/// Header of a CONNECT request: the network that it comes from.
const FORWARDED_NETWORK: &str = "x-forwarded-network";
/// Header of a CONNECT request: the kind of proxy that it comes from. A gateway to another network sends requests of a
/// waypoint to the service and not to its waypoint; those of an ingress gateway too, unless the service asks for its
/// waypoint.
pub(super) const ISTIO_SOURCE: &str = "x-istio-source";

/// The listener that accepts connections from clusters and tunnels each one to its original destination.
#[must_use]
pub fn build_connect_originate(settings: &ListenerSettings) -> Listener {
    let class = match settings.profile.proxy_type {
        ProxyType::Router => ListenerClass::Gateway,
        ProxyType::Waypoint => ListenerClass::Inbound,
        ProxyType::Sidecar | ProxyType::Ztunnel | ProxyType::Agentgateway => ListenerClass::Outbound,
    };
    let baggage = settings.switches.tunnels.baggage;
    let tunnel = with_baggage(tunnel("%DOWNSTREAM_LOCAL_ADDRESS%".to_owned(), None), baggage);
    let reader = baggage.then(read_baggage).into_iter();
    let filters = reader.chain([tunnel_filter(settings, class, CONNECT_ORIGINATE, tunnel)]).collect();
    logged(settings, class, internal_listener(CONNECT_ORIGINATE, vec![original_dst()], filters))
}

/// The listeners of a waypoint or gateway that make two tunnels, one in the other, to a destination in another network.
/// Endpoints there state the destination in their metadata.
#[must_use]
pub fn build_double_tunnel(settings: &ListenerSettings) -> [Listener; 2] {
    let class = ListenerClass::Inbound;
    let shared = SharedWithUpstream::Transitive;
    let target = "%DYNAMIC_METADATA(istio:double_hbone:hbone_target_address)%";
    let state = SetFilterState {
        on_new_connection: vec![
            filter_state(
                ORIGINAL_DESTINATION,
                "%DYNAMIC_METADATA(envoy.filters.listener.original_dst:local)%",
                "",
                shared,
            ),
            filter_state(DOUBLE_HBONE_TARGET, target, text_factory(settings), shared),
        ],
        ..SetFilterState::default()
    };
    let destination = || format!("%FILTER_STATE({DOUBLE_HBONE_TARGET}:PLAIN)%");
    let inner = tunnel(destination(), Some((FORWARDED_NETWORK, settings.profile.network.as_str())));
    let source = if settings.profile.proxy_type == ProxyType::Router { "gateway" } else { "waypoint" };
    let outer = tunnel(destination(), Some((ISTIO_SOURCE, source)));
    let baggage = settings.switches.tunnels.baggage;
    let inner = tunnel_filter(settings, class, INNER_CONNECT_ORIGINATE, with_baggage(inner, baggage));
    let state = network_filter("propagate_endpoint_metadata", any(&state));
    let inner: Vec<Filter> = [state].into_iter().chain(baggage.then(read_baggage)).chain([inner]).collect();
    let outer = vec![tunnel_filter(settings, class, OUTER_CONNECT_ORIGINATE, outer)];
    [
        logged(settings, class, internal_listener(INNER_CONNECT_ORIGINATE, Vec::new(), inner)),
        logged(settings, class, internal_listener(OUTER_CONNECT_ORIGINATE, vec![original_dst()], outer)),
    ]
}

fn tunnel(hostname: String, header: Option<(&str, &str)>) -> TunnelingConfig {
    let headers = header.map(overwritten).into_iter().collect();
    TunnelingConfig { hostname, headers_to_add: headers, ..TunnelingConfig::default() }
}

fn overwritten((key, value): (&str, &str)) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: key.to_owned(), value: value.to_owned(), ..HeaderValue::default() }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd as i32,
        ..HeaderValueOption::default()
    }
}

/// The tunnel with the metadata of the proxy as baggage of the request, if `baggage`; [`read_baggage`] gets that of the response.
fn with_baggage(mut tunnel: TunnelingConfig, baggage: bool) -> TunnelingConfig {
    if baggage {
        tunnel.propagate_response_headers = true;
        tunnel.headers_to_add.push(overwritten(("baggage", &format!("%FILTER_STATE({BAGGAGE}:PLAIN)%"))));
    }
    tunnel
}

/// The filter that writes the metadata of the proxy into the filter state, and passes those of the peer to the cluster.
fn read_baggage() -> Filter {
    let config = typed_struct(
        "type.googleapis.com/envoy.extensions.network_filters.peer_metadata.Config",
        serde_json::json!({"baggage_key": BAGGAGE}),
    );
    network_filter("upstream_hbone_peer_metadata", config)
}

fn tunnel_filter(settings: &ListenerSettings, class: ListenerClass, cluster: &str, tunnel: TunnelingConfig) -> Filter {
    tcp_proxy_filter(&TcpProxy {
        access_log: connection_failure_logs(settings, class),
        tunneling_config: Some(tunnel),
        ..to_cluster(cluster)
    })
}

pub(super) fn internal_listener(name: &str, listener_filters: Vec<ListenerFilter>, filters: Vec<Filter>) -> Listener {
    Listener {
        name: name.to_owned(),
        use_original_dst: Some(boolean(false)),
        listener_specifier: Some(ListenerSpecifier::InternalListener(InternalListenerConfig {})),
        listener_filters,
        filter_chains: vec![FilterChain { filters, ..FilterChain::default() }],
        ..Listener::default()
    }
}

/// The listener with the access log of listeners.
pub(super) fn logged(settings: &ListenerSettings, class: ListenerClass, listener: Listener) -> Listener {
    Listener { access_log: listener_access_log(settings, class), ..listener }
}
