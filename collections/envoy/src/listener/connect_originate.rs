//! The internal listener that tunnels connections over HBONE (N25).

use envoy_types::pb::envoy::config::accesslog::v3::access_log_filter::FilterSpecifier;
use envoy_types::pb::envoy::config::accesslog::v3::{AccessLogFilter, ResponseFlagFilter};
use envoy_types::pb::envoy::config::listener::v3::listener::{InternalListenerConfig, ListenerSpecifier};
use envoy_types::pb::envoy::config::listener::v3::{FilterChain, Listener};
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::TcpProxy;
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::tcp_proxy::TunnelingConfig;
use sluice_model::ProxyType;

use super::inspector::original_dst;
use super::virtual_outbound::to_cluster;
use crate::filter::{tcp_access_logs, tcp_proxy_filter};
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name::CONNECT_ORIGINATE;
use crate::wire::boolean;

/// The listener that accepts connections from clusters and tunnels each one to its original destination.
#[must_use]
pub fn build_connect_originate(settings: &ListenerSettings) -> Listener {
    let class =
        if settings.profile.proxy_type == ProxyType::Router { ListenerClass::Gateway } else { ListenerClass::Outbound };
    let mut logs = tcp_access_logs(settings, class);
    for log in &mut logs {
        // Only connection failures are logged here. The originating listener logs the rest.
        let unreached = ResponseFlagFilter { flags: vec!["UF".to_owned()] };
        log.filter = Some(AccessLogFilter { filter_specifier: Some(FilterSpecifier::ResponseFlagFilter(unreached)) });
    }
    let proxy = TcpProxy {
        access_log: logs,
        tunneling_config: Some(TunnelingConfig {
            hostname: "%DOWNSTREAM_LOCAL_ADDRESS%".to_owned(),
            ..TunnelingConfig::default()
        }),
        ..to_cluster(CONNECT_ORIGINATE)
    };
    Listener {
        name: CONNECT_ORIGINATE.to_owned(),
        use_original_dst: Some(boolean(false)),
        listener_specifier: Some(ListenerSpecifier::InternalListener(InternalListenerConfig {})),
        listener_filters: vec![original_dst()],
        filter_chains: vec![FilterChain { filters: vec![tcp_proxy_filter(&proxy)], ..FilterChain::default() }],
        ..Listener::default()
    }
}
