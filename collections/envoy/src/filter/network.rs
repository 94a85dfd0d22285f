//! Network filters (N28).

use envoy_types::pb::envoy::config::listener::v3::{Filter, filter::ConfigType};
use envoy_types::pb::envoy::extensions::filters::network::{
    http_connection_manager::v3::HttpConnectionManager, mongo_proxy::v3::MongoProxy, tcp_proxy::v3::TcpProxy,
};
use envoy_types::pb::google::protobuf::Any;
use sluice_model::Protocol;

use super::istio;
use crate::listener::Settings;
use crate::wire::any;

pub(super) fn network_filter(name: &str, config: Any) -> Filter {
    Filter { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)) }
}

pub(crate) fn tcp_proxy_filter(proxy: &TcpProxy) -> Filter {
    network_filter("envoy.filters.network.tcp_proxy", any(proxy))
}

pub(crate) fn hcm_filter(manager: &HttpConnectionManager) -> Filter {
    network_filter("envoy.filters.network.http_connection_manager", any(manager))
}

/// Exchange of workload metadata with the peer; nothing where the proxy has no such filter.
pub(crate) fn metadata_exchange(settings: &Settings) -> Option<Filter> {
    let has = settings.facts.has("istio.metadata_exchange.network");
    has.then(|| network_filter("istio.metadata_exchange", istio::metadata_exchange()))
}

/// What the port's protocol adds in front of the TCP proxy.
pub(crate) fn protocol_filters(protocol: Protocol, stat_prefix: &str, proxy: &TcpProxy) -> Vec<Filter> {
    let mut filters = Vec::new();
    if protocol == Protocol::Mongo {
        let mongo = MongoProxy { stat_prefix: stat_prefix.to_owned(), ..MongoProxy::default() };
        filters.push(network_filter("envoy.filters.network.mongo_proxy", any(&mongo)));
    }
    filters.push(tcp_proxy_filter(proxy));
    filters
}
