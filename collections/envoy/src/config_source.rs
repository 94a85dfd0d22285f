//! Where Envoy gets resources from.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::{AggregatedConfigSource, ApiVersion, ConfigSource};

use crate::wire::duration;

/// The stream of the control plane. Envoy waits for the first response without a limit.
pub(crate) fn ads_source() -> ConfigSource {
    ConfigSource {
        config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource::default())),
        initial_fetch_timeout: Some(duration(Duration::ZERO)),
        resource_api_version: ApiVersion::V3 as i32,
        ..ConfigSource::default()
    }
}
