//! Request mirroring, and percentages, which faults use too.

use envoy_types::pb::envoy::config::core::v3::RuntimeFractionalPercent;
use envoy_types::pb::envoy::config::route::v3::route_action::RequestMirrorPolicy;
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use envoy_types::pb::envoy::r#type::v3::fractional_percent::DenominatorType;
use envoy_types::pb::google::protobuf::BoolValue;
use sluice_model::{Decimal, Destination, HttpRoute};

/// A percentage in millionths.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "percentages are between 0 and 100")]
pub(super) fn millionths(percent: Decimal) -> FractionalPercent {
    FractionalPercent { numerator: (percent.to_f64() * 10_000.0) as u32, denominator: DenominatorType::Million.into() }
}

/// A whole percentage.
pub(super) fn hundredths(percent: u32) -> FractionalPercent {
    FractionalPercent { numerator: percent, denominator: DenominatorType::Hundred.into() }
}

/// The mirror destinations with their percentage. A percentage of 0 mirrors nothing.
pub(super) fn build_mirrors(
    route: &HttpRoute,
    shadow_suffix: bool,
    cluster: impl Fn(&Destination) -> String,
) -> Vec<RequestMirrorPolicy> {
    let share = |percentage: Option<Decimal>, percent: Option<u32>| match (percentage, percent) {
        (Some(percentage), _) => (percentage > Decimal::default()).then(|| millionths(percentage)),
        (None, Some(percent)) => (percent > 0).then(|| hundredths(percent)),
        (None, None) => Some(hundredths(100)),
    };
    let policy = |destination: &Destination, share: FractionalPercent| RequestMirrorPolicy {
        cluster: cluster(destination),
        runtime_fraction: Some(RuntimeFractionalPercent { default_value: Some(share), ..Default::default() }),
        trace_sampled: Some(BoolValue { value: false }),
        disable_shadow_host_suffix_append: !shadow_suffix,
        ..RequestMirrorPolicy::default()
    };
    let first = route.mirror.as_ref().and_then(|destination| {
        share(route.mirror_percentage, route.mirror_percent).map(|share| policy(destination, share))
    });
    let more = route
        .mirrors
        .iter()
        .filter_map(|mirror| share(mirror.percentage, None).map(|share| policy(&mirror.destination, share)));
    first.into_iter().chain(more).collect()
}
