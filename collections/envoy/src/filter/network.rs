//! Network filters (N28).

use std::time::Duration;

use envoy_types::pb::envoy::config::listener::v3::Filter;
use envoy_types::pb::envoy::extensions::filters::network::{
    http_connection_manager::v3::HttpConnectionManager,
    mongo_proxy::v3::MongoProxy,
    redis_proxy::v3::{
        RedisProxy,
        redis_proxy::{ConnPoolSettings, PrefixRoutes, prefix_routes::Route},
    },
    tcp_proxy::v3::TcpProxy,
};
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use sluice_model::{HTTP_CONNECTION_MANAGER, Protocol};

use crate::filter_config::network_filter;
use crate::listener_settings::{ListenerSettings, NETWORK_METADATA_EXCHANGE};
use crate::metadata_exchange::{METADATA_EXCHANGE, metadata_exchange_config};
use crate::wire::{any, duration};

const MYSQL_TYPE: &str = "type.googleapis.com/envoy.extensions.filters.network.mysql_proxy.v3.MySQLProxy";

/// The used fields of a message that Envoy's main API does not contain: the filter is a contrib extension.
#[derive(Clone, PartialEq, Message)]
struct MySqlProxy {
    #[prost(string, tag = "1")]
    stat_prefix: String,
}

/// Timeout of Redis operations.
const REDIS_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn tcp_proxy_filter(proxy: &TcpProxy) -> Filter {
    network_filter("envoy.filters.network.tcp_proxy", any(proxy))
}

pub(crate) fn hcm_filter(manager: &HttpConnectionManager) -> Filter {
    network_filter(HTTP_CONNECTION_MANAGER, any(manager))
}

/// The filter for metadata exchange with the peer; `None` if the proxy does not have it.
pub(crate) fn metadata_exchange(settings: &ListenerSettings) -> Option<Filter> {
    let has = settings.profile.has(NETWORK_METADATA_EXCHANGE) && !settings.in_tunnel;
    has.then(|| network_filter(METADATA_EXCHANGE, metadata_exchange_config()))
}

/// The last network filters: the TCP proxy, with the protocol's filter in front, or the Redis proxy to `cluster`.
pub(crate) fn protocol_filters(
    settings: &ListenerSettings,
    protocol: Protocol,
    stat_prefix: &str,
    cluster: &str,
    proxy: &TcpProxy,
) -> Vec<Filter> {
    let stat_prefix = stat_prefix.to_owned();
    let switches = &settings.switches;
    let decoder = match protocol {
        Protocol::Mongo if switches.mongo => {
            let config = MongoProxy { stat_prefix, ..MongoProxy::default() };
            Some(network_filter("envoy.filters.network.mongo_proxy", any(&config)))
        }
        Protocol::Mysql if switches.mysql => {
            let value = MySqlProxy { stat_prefix }.encode_to_vec();
            Some(network_filter("envoy.filters.network.mysql_proxy", Any { type_url: MYSQL_TYPE.to_owned(), value }))
        }
        Protocol::Redis if switches.redis => return vec![redis_filter(stat_prefix, cluster)],
        _ => None,
    };
    decoder.into_iter().chain([tcp_proxy_filter(proxy)]).collect()
}

fn redis_filter(stat_prefix: String, cluster: &str) -> Filter {
    let route = Route { cluster: cluster.to_owned(), ..Route::default() };
    let config = RedisProxy {
        stat_prefix,
        latency_in_micros: true,
        settings: Some(ConnPoolSettings { op_timeout: Some(duration(REDIS_TIMEOUT)), ..ConnPoolSettings::default() }),
        prefix_routes: Some(PrefixRoutes { catch_all_route: Some(route), ..PrefixRoutes::default() }),
        ..RedisProxy::default()
    };
    network_filter("envoy.filters.network.redis_proxy", any(&config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener_settings::ListenerSwitches;

    #[test]
    fn protocol_filters_are_added_if_enabled() {
        let names = |protocol, switches| {
            let settings = ListenerSettings { switches, ..ListenerSettings::default() };
            let filters = protocol_filters(&settings, protocol, "s", "c", &TcpProxy::default());
            filters.iter().map(|filter| filter.name.replace("envoy.filters.network.", "")).collect::<Vec<_>>()
        };
        let usual = ListenerSwitches::default();
        assert_eq!(names(Protocol::Mongo, usual), ["mongo_proxy", "tcp_proxy"]);
        assert_eq!(names(Protocol::Redis, usual), ["tcp_proxy"]);
        assert_eq!(names(Protocol::Mysql, usual), ["tcp_proxy"]);
        let other = ListenerSwitches { mongo: false, redis: true, mysql: true, ..usual };
        assert_eq!(names(Protocol::Mongo, other), ["tcp_proxy"]);
        assert_eq!(names(Protocol::Redis, other), ["redis_proxy"]);
        assert_eq!(names(Protocol::Mysql, other), ["mysql_proxy", "tcp_proxy"]);
    }
}
