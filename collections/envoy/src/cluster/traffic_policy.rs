//! Connection pools, and the order in which the parts of a policy are applied (N14).

use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::thresholds::RetryBudget as EnvoyRetryBudget;
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, UpstreamConnectionOptions};
use envoy_types::pb::envoy::config::core::v3::{
    HttpProtocolOptions as CommonOptions, KeepaliveSettings, TcpKeepalive as EnvoyTcpKeepalive,
};
use envoy_types::pb::envoy::r#type::v3::Percent;
use sluice_model::{ConnectionPool, H2Upgrade, HttpSettings, Protocol, RetryBudget, TcpKeepalive, TrafficPolicy};

use super::ClusterSettings;
use super::draft::Draft;
use super::http_protocol::{set_http2, use_client_protocol};
use crate::wire::{duration, positive, uint32};

/// Default retry budget in percent of active requests.
const RETRY_BUDGET_PERCENT: f64 = 20.0;
/// Default number of concurrent retries that a budget always allows.
const RETRY_BUDGET_CONCURRENCY: u32 = 3;

/// The policy of a rule, with the connection pool and outlier detection of the mesh as defaults.
pub(super) fn with_defaults(settings: &ClusterSettings, policy: Option<TrafficPolicy>) -> TrafficPolicy {
    let mut policy = policy.unwrap_or_default();
    if policy.connection_pool.is_none() {
        policy.connection_pool.clone_from(&settings.connection_pool);
    }
    if policy.outlier_detection.is_none() {
        policy.outlier_detection.clone_from(&settings.outlier_detection);
    }
    policy
}

/// Whether HTTP/1.1 is upgraded: by the rule, or by the mesh for an HTTP port.
pub(super) fn apply_h2_upgrade(
    draft: &mut Draft,
    settings: &ClusterSettings,
    http: Option<&HttpSettings>,
    protocol: Protocol,
) {
    let upgrade = match http {
        Some(http) if http.use_client_protocol => false,
        Some(HttpSettings { h2_upgrade_policy: H2Upgrade::Upgrade, .. }) => true,
        Some(HttpSettings { h2_upgrade_policy: H2Upgrade::DoNotUpgrade, .. }) => false,
        _ => protocol.is_http() && settings.h2_upgrade,
    };
    if upgrade {
        set_http2(draft);
    }
}

/// Applies limits, timeouts and keepalive.
pub(super) fn apply_connection_pool(
    draft: &mut Draft,
    settings: &ClusterSettings,
    pool: &ConnectionPool,
    retry_budget: Option<&RetryBudget>,
) {
    let mut thresholds = unlimited(settings);
    thresholds.retry_budget = retry_budget.map(retries);
    draft.cluster.connect_timeout = Some(duration(settings.connect_timeout));
    let http = pool.http.clone().unwrap_or_default();
    let tcp = pool.tcp.clone().unwrap_or_default();

    let limit = |of: &mut Option<_>, value: i32| {
        if let Some(value) = positive(value) {
            *of = Some(value);
        }
    };
    limit(&mut thresholds.max_requests, http.http2_max_requests);
    limit(&mut thresholds.max_pending_requests, http.http1_max_pending_requests);
    limit(&mut thresholds.max_retries, http.max_retries);
    limit(&mut thresholds.max_connections, tcp.max_connections);
    draft.cluster.circuit_breakers =
        Some(CircuitBreakers { thresholds: vec![thresholds], ..CircuitBreakers::default() });

    if let Some(timeout) = tcp.connect_timeout {
        draft.cluster.connect_timeout = Some(duration(timeout));
    }
    apply_keepalive(draft, settings.tcp_keepalive.as_ref());
    apply_keepalive(draft, tcp.tcp_keepalive.as_ref());

    let idle_timeout = http.idle_timeout.or(tcp.idle_timeout);
    if tcp.max_connection_duration.is_some()
        || idle_timeout.is_some()
        || http.max_requests_per_connection > 0
        || http.max_concurrent_streams > 0
        || http.http2_keep_alive.is_some()
    {
        let common = draft.http().common_http_protocol_options.get_or_insert_with(CommonOptions::default);
        if let Some(timeout) = idle_timeout {
            common.idle_timeout = Some(duration(timeout));
        }
        if let Some(requests) = positive(http.max_requests_per_connection) {
            common.max_requests_per_connection = Some(requests);
        }
        if let Some(life) = tcp.max_connection_duration {
            common.max_connection_duration = Some(duration(life));
        }
        if let Some(http2) = draft.http2() {
            if let Some(streams) = positive(http.max_concurrent_streams) {
                http2.max_concurrent_streams = Some(streams);
            }
            if let Some((interval, timeout)) = http.http2_keep_alive {
                http2.connection_keepalive = Some(KeepaliveSettings {
                    interval: interval.map(duration),
                    timeout: timeout.map(duration),
                    ..KeepaliveSettings::default()
                });
            }
        }
    }
    if http.use_client_protocol {
        use_client_protocol(draft);
    }
}

/// Circuit breakers without limits: Envoy's defaults are too low.
pub(super) fn unlimited(settings: &ClusterSettings) -> Thresholds {
    Thresholds {
        track_remaining: settings.switches.tracks_remaining,
        max_connections: Some(uint32(u32::MAX)),
        max_pending_requests: Some(uint32(u32::MAX)),
        max_requests: Some(uint32(u32::MAX)),
        max_retries: Some(uint32(u32::MAX)),
        ..Thresholds::default()
    }
}

fn retries(budget: &RetryBudget) -> EnvoyRetryBudget {
    let at_least =
        if budget.min_retry_concurrency > 0 { budget.min_retry_concurrency } else { RETRY_BUDGET_CONCURRENCY };
    EnvoyRetryBudget {
        budget_percent: Some(Percent { value: budget.percent.map_or(RETRY_BUDGET_PERCENT, |p| p.to_f64()) }),
        budget_interval: budget.budget_interval.map(duration),
        min_retry_concurrency: Some(uint32(at_least)),
    }
}

fn apply_keepalive(draft: &mut Draft, keepalive: Option<&TcpKeepalive>) {
    let Some(keepalive) = keepalive else { return };
    let options = draft.cluster.upstream_connection_options.get_or_insert_with(UpstreamConnectionOptions::default);
    let out = options.tcp_keepalive.get_or_insert_with(EnvoyTcpKeepalive::default);
    let seconds = |value: std::time::Duration| uint32(u32::try_from(value.as_secs()).unwrap_or(u32::MAX));
    if keepalive.probes > 0 {
        out.keepalive_probes = Some(uint32(keepalive.probes));
    }
    if let Some(time) = keepalive.time {
        out.keepalive_time = Some(seconds(time));
    }
    if let Some(interval) = keepalive.interval {
        out.keepalive_interval = Some(seconds(interval));
    }
}
