//! Filters that resolve the requested host (dynamic forward proxy).

use envoy_types::pb::envoy::config::listener::v3::{Filter, filter::ConfigType};
use envoy_types::pb::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use envoy_types::pb::envoy::extensions::filters::http::dynamic_forward_proxy::v3::{
    FilterConfig as HttpConfig, filter_config::ImplementationSpecifier,
};
use envoy_types::pb::envoy::extensions::filters::network::{
    http_connection_manager::v3::{HttpFilter, http_filter},
    sni_dynamic_forward_proxy::v3::{FilterConfig as SniConfig, filter_config::PortSpecifier},
};
use sluice_model::Service;

use crate::address::dns_family;
use crate::cluster::{ClusterProfile, allow_any_dns_cache, dns_cache};
use crate::listener_settings::ListenerSettings;
use crate::wire::any;

/// Name of the filter that resolves the SNI.
pub(super) const SNI_FILTER: &str = "envoy.extensions.filters.network.sni_dynamic_forward_proxy";

/// The filter that resolves the SNI of traffic to a wildcard host.
pub(super) fn sni_filter(settings: &ListenerSettings, service: &Service, port: u16) -> Filter {
    let config = SniConfig {
        dns_cache_config: Some(cache(settings, service)),
        port_specifier: Some(PortSpecifier::PortValue(u32::from(port))),
        ..SniConfig::default()
    };
    Filter { name: SNI_FILTER.to_owned(), config_type: Some(ConfigType::TypedConfig(any(&config))) }
}

/// The filter that resolves the host of requests to a wildcard host.
pub(super) fn http_filter(settings: &ListenerSettings, service: &Service) -> HttpFilter {
    filter(cache(settings, service))
}

/// The filter that resolves the host of requests to unknown hosts.
pub(super) fn allow_any_filter(settings: &ListenerSettings) -> HttpFilter {
    let profile = ClusterProfile {
        ip_families: settings.profile.families,
        dns_proxy: settings.profile.dns_proxy.clone(),
        ..ClusterProfile::default()
    };
    filter(allow_any_dns_cache(&profile, settings.dual_stack, settings.switches.dns_cache_hosts))
}

fn filter(cache: DnsCacheConfig) -> HttpFilter {
    let config = HttpConfig {
        implementation_specifier: Some(ImplementationSpecifier::DnsCacheConfig(cache)),
        ..HttpConfig::default()
    };
    HttpFilter {
        name: "envoy.filters.http.dynamic_forward_proxy".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any(&config))),
        ..HttpFilter::default()
    }
}

fn cache(settings: &ListenerSettings, service: &Service) -> DnsCacheConfig {
    DnsCacheConfig {
        name: dns_cache(service.host.as_str()),
        dns_lookup_family: dns_family(settings.profile.families, settings.dual_stack) as i32,
        ..DnsCacheConfig::default()
    }
}
