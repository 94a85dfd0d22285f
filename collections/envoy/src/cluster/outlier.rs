//! Outlier detection.

use envoy_types::pb::envoy::config::cluster::v3::OutlierDetection as EnvoyOutlierDetection;
use envoy_types::pb::envoy::config::common::matcher::v3::match_predicate::{MatchSet, Rule};
use envoy_types::pb::envoy::config::common::matcher::v3::{HttpHeadersMatch, MatchPredicate};
use envoy_types::pb::envoy::config::route::v3::HeaderMatcher;
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::OutlierDetection as HttpOutlierDetection;
use envoy_types::pb::envoy::r#type::v3::Percent;
use sluice_model::{OutlierDetection, Service, TrafficDistribution};

use super::ClusterSettings;
use super::draft::Draft;
use crate::string_match::exact;
use crate::wire::{duration, positive, uint32};

/// Applies the outlier detection of a rule, if any.
pub(super) fn apply_outlier_detection(
    draft: &mut Draft,
    outlier: Option<&OutlierDetection>,
    settings: &ClusterSettings,
    service: &Service,
) {
    let Some(outlier) = outlier else { return };
    // A count of 0 disables the check, so enforcement depends on the count.
    let enforced = |count: Option<u32>| count.map(|count| uint32(if count > 0 { 100 } else { 0 }));
    let mut out = EnvoyOutlierDetection {
        // Ejection by success rate is disabled.
        enforcing_success_rate: Some(uint32(0)),
        consecutive_5xx: outlier.consecutive_5xx_errors.map(uint32),
        enforcing_consecutive_5xx: enforced(outlier.consecutive_5xx_errors),
        consecutive_gateway_failure: outlier.consecutive_gateway_errors.map(uint32),
        enforcing_consecutive_gateway_failure: enforced(outlier.consecutive_gateway_errors),
        interval: outlier.interval.map(duration),
        base_ejection_time: outlier.base_ejection_time.map(duration),
        max_ejection_percent: positive(outlier.max_ejection_percent),
        ..EnvoyOutlierDetection::default()
    };
    if outlier.split_external_local_origin_errors {
        out.split_external_local_origin_errors = true;
        if let Some(failures) = outlier.consecutive_local_origin_failures.filter(|failures| *failures > 0) {
            out.consecutive_local_origin_failure = Some(uint32(failures));
            out.enforcing_consecutive_local_origin_failure = Some(uint32(100));
        }
        out.enforcing_local_origin_success_rate = Some(uint32(0));
    }
    draft.cluster.outlier_detection = Some(out);
    // Services often have few pods, so panic routing is disabled unless the rule enables it.
    if outlier.min_health_percent >= 0 {
        let percent = if sends_unhealthy(settings, service) { 0 } else { outlier.min_health_percent };
        draft.cluster.common_lb_config.get_or_insert_default().healthy_panic_threshold =
            Some(Percent { value: f64::from(percent) });
    }
    if !outlier.http_error_codes.is_empty() {
        draft.http().outlier_detection =
            Some(HttpOutlierDetection { error_matcher: Some(status_codes(&outlier.http_error_codes)) });
    }
}

/// Whether a service always has endpoints that are not ready: failover by traffic distribution requires them.
pub(crate) fn sends_unhealthy(settings: &ClusterSettings, service: &Service) -> bool {
    settings.switches.sends_unhealthy || service.traffic_distribution != TrafficDistribution::Any
}

fn status_codes(codes: &[u32]) -> MatchPredicate {
    let mut rules: Vec<MatchPredicate> = codes.iter().map(|code| status_code(*code)).collect();
    match rules.len() {
        1 => rules.remove(0),
        _ => MatchPredicate { rule: Some(Rule::OrMatch(MatchSet { rules })) },
    }
}

fn status_code(code: u32) -> MatchPredicate {
    let matcher = HeaderMatcher {
        name: ":status".to_owned(),
        header_match_specifier: Some(HeaderMatchSpecifier::StringMatch(exact(&code.to_string()))),
        ..HeaderMatcher::default()
    };
    MatchPredicate { rule: Some(Rule::HttpResponseHeadersMatch(HttpHeadersMatch { headers: vec![matcher] })) }
}
