//! Istio's metrics (T02).

use envoy_types::pb::envoy::config::listener::v3::Filter;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use envoy_types::pb::google::protobuf::Any;
use sluice_model::{ProviderKind, ProxyType, Text};
use sluice_proto::stats::{MetricConfig, PluginConfig, Reporter};

use super::http::Class;
use super::http_filters::http_filter;
use super::network::network_filter;
use crate::listener::{METRICS, MetricSpec, MetricsSpec, Settings};
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
    let known =
        settings.observed(class).metrics.iter().filter(|(name, _)| {
            settings.provider(name).is_some_and(|provider| provider.kind == ProviderKind::Prometheus)
        });
    known.map(|(_, spec)| wire::any(&config(settings, class, spec))).collect()
}

fn config(settings: &Settings, class: Class, spec: &MetricsSpec) -> PluginConfig {
    let waypoint = settings.facts.proxy_type == ProxyType::Waypoint;
    PluginConfig {
        disable_host_header_fallback: class != Class::Outbound,
        tcp_reporting_duration: spec.reporting_interval.map(wire::duration),
        metrics: spec.overrides.iter().map(|(name, metric)| metric_config(name, metric)).collect(),
        reporter: if waypoint { Reporter::ServerGateway as i32 } else { Reporter::Unspecified as i32 },
        ..PluginConfig::default()
    }
}

fn metric_config(word: &Text, metric: &MetricSpec) -> MetricConfig {
    let own = METRICS.iter().find(|(known, _)| *word == **known);
    MetricConfig {
        name: own.map_or_else(|| word.to_string(), |(_, name)| (*name).to_owned()),
        drop: metric.disabled,
        dimensions: metric
            .tags
            .iter()
            .filter_map(|(tag, value)| Some((tag.to_string(), value.as_ref()?.to_string())))
            .collect(),
        tags_to_remove: metric
            .tags
            .iter()
            .filter(|(_, value)| value.is_none())
            .map(|(tag, _)| tag.to_string())
            .collect(),
        ..MetricConfig::default()
    }
}
