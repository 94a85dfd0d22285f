//! Istio's metrics (T02).

use envoy_types::pb::envoy::config::listener::v3::Filter;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use envoy_types::pb::google::protobuf::Any;
use sluice_model::{ProviderKind, ProxyType, Text};
use sluice_proto::stats::{MetricConfig, PluginConfig, Reporter};

use crate::filter_config::{http_filter, network_filter};
use crate::listener_settings::{ISTIO_STATS, ListenerClass, ListenerSettings, METRICS, MetricSpec, MetricsSpec};
use crate::wire;

pub(super) fn http_stats(settings: &ListenerSettings, class: ListenerClass) -> Vec<HttpFilter> {
    configs(settings, class).into_iter().map(|config| http_filter(ISTIO_STATS, config)).collect()
}

pub(crate) fn tcp_stats(settings: &ListenerSettings, class: ListenerClass) -> Vec<Filter> {
    configs(settings, class).into_iter().map(|config| network_filter(ISTIO_STATS, config)).collect()
}

/// The configurations of the stats filter: one per Prometheus provider in use, in the order of their names.
fn configs(settings: &ListenerSettings, class: ListenerClass) -> Vec<Any> {
    if !settings.profile.has(ISTIO_STATS) {
        return Vec::new();
    }
    let known =
        settings.observed(class).metrics.iter().filter(|(name, _)| {
            settings.provider(name).is_some_and(|provider| provider.kind == ProviderKind::Prometheus)
        });
    known.map(|(_, spec)| wire::any(&config(settings, class, spec))).collect()
}

fn config(settings: &ListenerSettings, class: ListenerClass, spec: &MetricsSpec) -> PluginConfig {
    let waypoint = settings.profile.proxy_type == ProxyType::Waypoint;
    PluginConfig {
        disable_host_header_fallback: class != ListenerClass::Outbound,
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use prost::Message;
    use sluice_model::{ExtensionProvider, MeshConfig};

    use super::*;
    use crate::listener_settings::{ListenerAttachments, Observation, ObservedSide};

    fn settings(specs: &[(&str, MetricsSpec)]) -> ListenerSettings {
        let mut mesh = MeshConfig::default();
        mesh.extension_providers.push(ExtensionProvider { name: "prom2".into(), kind: ProviderKind::Prometheus });
        let metrics = specs.iter().map(|(name, spec)| (Text::from(*name), spec.clone())).collect();
        let client = ObservedSide { metrics, ..ObservedSide::default() };
        let observation = Observation { client, ..Observation::default() };
        ListenerSettings {
            mesh: Arc::new(mesh),
            attached: Arc::new(ListenerAttachments { observation, ..ListenerAttachments::default() }),
            ..ListenerSettings::default()
        }
    }

    fn built(settings: &ListenerSettings, class: ListenerClass) -> Vec<PluginConfig> {
        let configs = configs(settings, class).into_iter();
        configs.map(|any| PluginConfig::decode(any.value.as_slice()).expect("a configuration")).collect()
    }

    #[test]
    fn each_prometheus_provider_has_a_stats_filter() {
        let spec = MetricsSpec::default;
        let settings = settings(&[("Prometheus", spec()), ("envoy", spec()), ("unknown", spec()), ("prom2", spec())]);
        assert_eq!(built(&settings, ListenerClass::Outbound), [PluginConfig::default(), PluginConfig::default()]);
        let gateway = built(&settings, ListenerClass::Gateway);
        assert!(gateway.len() == 2 && gateway.iter().all(|config| config.disable_host_header_fallback));
        assert_eq!(built(&settings, ListenerClass::Inbound), []);
    }

    #[test]
    fn metric_overrides_use_the_names_of_the_stats_filter() {
        let tags = [("add".into(), Some("'x'".into())), ("drop".into(), None)].into();
        let overrides = [
            ("REQUEST_COUNT".into(), MetricSpec { disabled: true, ..MetricSpec::default() }),
            ("mine".into(), MetricSpec { disabled: false, tags }),
        ];
        let spec = MetricsSpec { overrides: overrides.into(), reporting_interval: Some(Duration::from_secs(5)) };
        let [config] =
            built(&settings(&[("prometheus", spec)]), ListenerClass::Outbound).try_into().expect("one filter");
        assert_eq!(config.tcp_reporting_duration, Some(wire::duration(Duration::from_secs(5))));
        let [count, mine] = config.metrics.try_into().expect("two metrics");
        assert_eq!((count.name.as_str(), count.drop), ("requests_total", true));
        assert_eq!((mine.name.as_str(), mine.tags_to_remove), ("mine", vec!["drop".to_owned()]));
        assert_eq!(mine.dimensions, [("add".to_owned(), "'x'".to_owned())].into());
    }
}
