//! CORS policies.

use envoy_types::pb::envoy::config::core::v3::RuntimeFractionalPercent;
use envoy_types::pb::envoy::extensions::filters::http::cors::v3::CorsPolicy as EnvoyCors;
use envoy_types::pb::google::protobuf::{Any, BoolValue};
use sluice_model::{CorsPolicy, Text};

use super::mirror::hundredths;
use crate::string_match::build_string_match;
use crate::wire::any;

/// Configuration of the CORS filter for a route.
pub(super) fn build_cors(cors: &CorsPolicy) -> Any {
    any(&EnvoyCors {
        allow_origin_string_match: cors.allow_origins.iter().map(build_string_match).collect(),
        allow_methods: joined(&cors.allow_methods),
        allow_headers: joined(&cors.allow_headers),
        expose_headers: joined(&cors.expose_headers),
        max_age: cors.max_age.map(|age| age.as_secs().to_string()).unwrap_or_default(),
        allow_credentials: cors.allow_credentials.map(|value| BoolValue { value }),
        filter_enabled: Some(RuntimeFractionalPercent { default_value: Some(hundredths(100)), ..Default::default() }),
        forward_not_matching_preflights: Some(BoolValue { value: !cors.ignore_unmatched_preflights }),
        ..EnvoyCors::default()
    })
}

fn joined(texts: &[Text]) -> String {
    texts.iter().map(Text::as_str).collect::<Vec<_>>().join(",")
}
