//! Direct responses.

use envoy_types::pb::envoy::config::core::v3::DataSource;
use envoy_types::pb::envoy::config::core::v3::data_source::Specifier;
use envoy_types::pb::envoy::config::route::v3::DirectResponseAction;
use sluice_model::{DirectResponse, DirectResponseBody};

pub(super) fn build_direct_response(response: &DirectResponse) -> DirectResponseAction {
    let body = response.body.as_ref().map(|body| {
        let specifier = match body {
            DirectResponseBody::Text(text) => Specifier::InlineString(text.to_string()),
            DirectResponseBody::Bytes(bytes) => Specifier::InlineBytes(bytes.clone()),
        };
        DataSource { specifier: Some(specifier), ..DataSource::default() }
    });
    DirectResponseAction { status: response.status, body, ..DirectResponseAction::default() }
}
