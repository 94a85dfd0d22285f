//! Load balancing, with locality settings (N14, N17).

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::common_lb_config::{
    LocalityConfigSpecifier, LocalityWeightedLbConfig, ZoneAwareLbConfig,
};
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, DiscoveryType, LbConfig, LbPolicy, LeastRequestLbConfig, MaglevLbConfig, RingHashLbConfig,
    RoundRobinLbConfig, SlowStartConfig,
};
use envoy_types::pb::envoy::config::core::v3::RuntimeDouble;
use envoy_types::pb::envoy::r#type::v3::Percent;
use envoy_types::pb::google::protobuf::UInt64Value;
use sluice_model::{
    ConsistentHash, HashAlgorithm, LoadBalancer, LocalityLb, Service, SimpleLb, Text, TrafficDistribution, ZoneAwareLb,
    label,
};

use super::ClusterSettings;
use super::draft::Draft;
use crate::wire::duration;

/// Default minimum size of a hash ring.
const MINIMUM_RING_SIZE: u64 = 1024;

/// Locality load balancing of a service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum LocalityMode {
    /// None.
    Off,
    /// Locality weights or failover.
    Locality {
        /// The setting.
        setting: LocalityLb,
        /// Whether failover applies without outlier detection.
        forced: bool,
    },
    /// Envoy's zone-aware routing.
    ZoneAware(ZoneAwareLb),
}

/// The effective mode: the rule has precedence over the service and the service over the mesh; zone-aware routing has
/// precedence over locality weights.
#[must_use]
pub(crate) fn locality_mode(lb: Option<&LoadBalancer>, service: &Service, settings: &ClusterSettings) -> LocalityMode {
    let on = |setting: &LocalityLb, forced| {
        if setting.enabled == Some(false) {
            LocalityMode::Off
        } else {
            LocalityMode::Locality { setting: setting.clone(), forced }
        }
    };
    if let Some(zone_aware) = lb.and_then(|lb| lb.zone_aware.as_ref()) {
        return LocalityMode::ZoneAware(zone_aware.clone());
    }
    if let Some(locality) = lb.and_then(|lb| lb.locality.as_ref()) {
        return on(locality, false);
    }
    if let Some(setting) = near_first(service.traffic_distribution) {
        return on(&setting, true);
    }
    if let Some(zone_aware) = &settings.zone_aware_lb {
        return LocalityMode::ZoneAware(zone_aware.clone());
    }
    on(&settings.locality_lb, false)
}

/// The failover order of a service's traffic distribution; `None` without a preference.
pub(crate) fn near_first(distribution: TrafficDistribution) -> Option<LocalityLb> {
    const LABELS: [&str; 5] = [label::NETWORK, label::REGION, label::ZONE, label::SUBZONE, label::HOSTNAME];
    let labels = match distribution {
        TrafficDistribution::Any => return None,
        TrafficDistribution::PreferSameZone => &LABELS[..3],
        TrafficDistribution::PreferSameNode => &LABELS[..],
    };
    let failover_priority = labels.iter().copied().map(Text::from).collect();
    Some(LocalityLb { failover_priority, enabled: Some(true), ..LocalityLb::default() })
}

impl LocalityMode {
    /// Whether endpoints have priorities.
    #[must_use]
    pub(crate) fn fails_over(&self, outlier_detection: bool) -> bool {
        match self {
            Self::Off => false,
            Self::Locality { forced, .. } => *forced || outlier_detection,
            Self::ZoneAware(setting) => setting.enabled != Some(false),
        }
    }

    fn specifier(&self, outlier_detection: bool) -> Option<LocalityConfigSpecifier> {
        match self {
            Self::Off => None,
            Self::Locality { setting, .. } => {
                let ordered = !setting.failover.is_empty() || !setting.failover_priority.is_empty();
                // Locality weights change the choice of LEAST_REQUEST, so they are set only if needed.
                (!setting.distribute.is_empty() || (self.fails_over(outlier_detection) && ordered))
                    .then(|| LocalityConfigSpecifier::LocalityWeightedLbConfig(LocalityWeightedLbConfig::default()))
            }
            Self::ZoneAware(setting) => Some(LocalityConfigSpecifier::ZoneAwareLbConfig(ZoneAwareLbConfig {
                routing_enabled: (setting.enabled == Some(false)).then_some(Percent { value: 0.0 }),
                min_cluster_size: setting.min_cluster_size.map(|value| UInt64Value { value }),
                ..ZoneAwareLbConfig::default()
            })),
        }
    }
}

/// Applies a rule's load balancing, or the default.
pub(super) fn apply_load_balancer(
    draft: &mut Draft,
    settings: &ClusterSettings,
    lb: Option<&LoadBalancer>,
    service: &Service,
) {
    if draft.cluster.lb_policy == LbPolicy::ClusterProvided as i32 {
        return;
    }
    let has_outlier_detection = draft.cluster.outlier_detection.is_some();
    let common = draft.cluster.common_lb_config.get_or_insert_default();
    // Unready endpoints are in the assignment too, and panic routing would use them.
    common.healthy_panic_threshold.get_or_insert_default();
    if let Some(specifier) = locality_mode(lb, service, settings).specifier(has_outlier_detection) {
        common.locality_config_specifier = Some(specifier);
    }
    if draft.is(DiscoveryType::OriginalDst) {
        draft.cluster.lb_policy = LbPolicy::ClusterProvided as i32;
        return;
    }
    let slow_start = lb.and_then(slow_start);
    match lb.map(|lb| lb.simple).unwrap_or_default() {
        SimpleLb::Unspecified | SimpleLb::LeastRequest => {
            draft.cluster.lb_policy = LbPolicy::LeastRequest as i32;
            if let Some(slow_start) = slow_start {
                draft.cluster.lb_config = Some(LbConfig::LeastRequestLbConfig(LeastRequestLbConfig {
                    slow_start_config: Some(slow_start),
                    ..LeastRequestLbConfig::default()
                }));
            }
        }
        SimpleLb::RoundRobin => {
            draft.cluster.lb_policy = LbPolicy::RoundRobin as i32;
            if let Some(slow_start) = slow_start {
                draft.cluster.lb_config =
                    Some(LbConfig::RoundRobinLbConfig(RoundRobinLbConfig { slow_start_config: Some(slow_start) }));
            }
        }
        SimpleLb::Random => draft.cluster.lb_policy = LbPolicy::Random as i32,
        SimpleLb::Passthrough => {
            draft.cluster.lb_policy = LbPolicy::ClusterProvided as i32;
            draft.cluster.cluster_discovery_type = Some(ClusterDiscoveryType::Type(DiscoveryType::OriginalDst as i32));
            draft.cluster.load_assignment = None;
        }
    }
    if let Some(hash) = lb.and_then(|lb| lb.consistent_hash.as_ref()) {
        apply_hash(&mut draft.cluster, hash);
    }
}

/// Applies consistent hashing.
pub(super) fn apply_hash(cluster: &mut Cluster, hash: &ConsistentHash) {
    let ring = |minimum| {
        LbConfig::RingHashLbConfig(RingHashLbConfig {
            minimum_ring_size: Some(UInt64Value { value: minimum }),
            ..RingHashLbConfig::default()
        })
    };
    match hash.algorithm {
        HashAlgorithm::Maglev(size) => {
            cluster.lb_policy = LbPolicy::Maglev as i32;
            if size != 0 {
                cluster.lb_config =
                    Some(LbConfig::MaglevLbConfig(MaglevLbConfig { table_size: Some(UInt64Value { value: size }) }));
            }
        }
        HashAlgorithm::RingHash(minimum) => {
            cluster.lb_policy = LbPolicy::RingHash as i32;
            if minimum != 0 {
                cluster.lb_config = Some(ring(minimum));
            }
        }
        HashAlgorithm::Unspecified => {
            cluster.lb_policy = LbPolicy::RingHash as i32;
            let declared = hash.minimum_ring_size;
            cluster.lb_config = Some(ring(if declared == 0 { MINIMUM_RING_SIZE } else { declared }));
        }
    }
}

fn slow_start(lb: &LoadBalancer) -> Option<SlowStartConfig> {
    if let Some(warmup) = &lb.warmup {
        return Some(SlowStartConfig {
            slow_start_window: Some(duration(warmup.duration)),
            aggression: Some(RuntimeDouble {
                default_value: warmup.aggression.map_or(1.0, |aggression| aggression.to_f64()),
                // Envoy requires a runtime key. This is the key that Istio sends; no runtime layer sets it.
                runtime_key: "(".to_owned(),
            }),
            min_weight_percent: Some(Percent {
                value: warmup.minimum_percent.map_or(10.0, |percent| percent.to_f64()),
            }),
        });
    }
    lb.warmup_duration
        .map(|window| SlowStartConfig { slow_start_window: Some(duration(window)), ..SlowStartConfig::default() })
}
