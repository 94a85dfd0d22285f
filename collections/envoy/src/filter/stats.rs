//! Istio's metrics (T02).

use envoy_types::pb::envoy::config::listener::v3::Filter;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use envoy_types::pb::google::protobuf::Any;
use sluice_model::ProviderKind;
use sluice_proto::stats::PluginConfig;

use super::http::Class;
use super::http_filters::http_filter;
use super::network::network_filter;
use crate::listener::Settings;
use crate::wire;

const NAME: &str = "istio.stats";

pub(super) fn http_stats(settings: &Settings, class: Class) -> Vec<HttpFilter> {
    configs(settings, class).into_iter().map(|config| http_filter(NAME, config)).collect()
}

pub(crate) fn tcp_stats(settings: &Settings, class: Class) -> Vec<Filter> {
    configs(settings, class).into_iter().map(|config| network_filter(NAME, config)).collect()
}

/// One configuration a Prometheus provider in use, in order of the providers' names.
fn configs(settings: &Settings, class: Class) -> Vec<Any> {
    if !settings.facts.has(NAME) {
        return Vec::new();
    }
    let mut names = settings.mesh.default_providers.metrics.clone();
    names.sort();
    names.dedup();
    names
        .iter()
        .filter_map(|name| {
            settings.mesh.extension_providers.iter().find(|provider| provider.name.eq_ignore_ascii_case(name))
        })
        .filter(|provider| provider.kind == ProviderKind::Prometheus)
        .map(|_| {
            let disable_host_header_fallback = class != Class::Outbound;
            wire::any(&PluginConfig { disable_host_header_fallback, ..PluginConfig::default() })
        })
        .collect()
}
