//! HTTP and network filters with a typed configuration.

use envoy_types::pb::envoy::config::listener::v3::{Filter, filter};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{HttpFilter, http_filter};
use envoy_types::pb::google::protobuf::Any;

/// Name of the CORS filter, and of its configuration in routes.
pub(crate) const CORS: &str = "envoy.filters.http.cors";
/// Name of the fault filter, and of its configuration in routes.
pub(crate) const FAULT: &str = "envoy.filters.http.fault";

/// Name of the router, the last HTTP filter.
pub(crate) const ROUTER: &str = "envoy.filters.http.router";

/// An HTTP filter with this name and configuration.
pub(crate) fn http_filter(name: &str, config: Any) -> HttpFilter {
    HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..HttpFilter::default()
    }
}

/// A network filter with this name and configuration.
pub(crate) fn network_filter(name: &str, config: Any) -> Filter {
    Filter { name: name.to_owned(), config_type: Some(filter::ConfigType::TypedConfig(config)) }
}
