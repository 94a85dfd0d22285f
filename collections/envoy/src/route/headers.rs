//! Header changes.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::config::route::v3::Route;
use sluice_model::{Headers, Text};

/// Header changes in Envoy's form.
#[derive(Default)]
pub(super) struct Operations {
    pub(super) request_add: Vec<HeaderValueOption>,
    pub(super) request_remove: Vec<String>,
    pub(super) response_add: Vec<HeaderValueOption>,
    pub(super) response_remove: Vec<String>,
    /// The new authority, which Envoy sets with a separate field.
    pub(super) authority: Option<String>,
}

/// Whether a header may be changed. The proxy relies on the others.
fn is_internal(name: &str) -> bool {
    name.starts_with(':') || name.eq_ignore_ascii_case("host")
}

fn is_authority(name: &str) -> bool {
    name.eq_ignore_ascii_case(":authority") || name.eq_ignore_ascii_case("host")
}

pub(super) fn build_operations(headers: &Headers) -> Operations {
    let options = |values: &BTreeMap<Text, Text>, action: HeaderAppendAction| -> Vec<HeaderValueOption> {
        let changed = values.iter().filter(|(name, _)| !is_internal(name));
        let option = |(name, value): (&Text, &Text)| HeaderValueOption {
            header: Some(HeaderValue { key: name.to_string(), value: value.to_string(), ..HeaderValue::default() }),
            append_action: action.into(),
            ..HeaderValueOption::default()
        };
        changed.map(option).collect()
    };
    let both = |set: &BTreeMap<Text, Text>, add: &BTreeMap<Text, Text>| {
        let mut all = options(set, HeaderAppendAction::OverwriteIfExistsOrAdd);
        all.extend(options(add, HeaderAppendAction::AppendIfExistsOrAdd));
        all
    };
    let removed = |names: &[Text]| names.iter().filter(|name| !is_internal(name)).map(Text::to_string).collect();
    let authority = |values: &BTreeMap<Text, Text>| {
        values.iter().find(|(name, value)| is_authority(name) && !value.is_empty()).map(|(_, value)| value.to_string())
    };
    let Headers { request, response } = headers;
    Operations {
        request_add: both(&request.set, &request.add),
        request_remove: removed(&request.remove),
        response_add: both(&response.set, &response.add),
        response_remove: removed(&response.remove),
        authority: authority(&request.set).or_else(|| authority(&request.add)),
    }
}

/// Adds the changes to a route and returns the authority that they set, if any.
pub(super) fn apply(headers: &Headers, route: &mut Route) -> Option<String> {
    let operations = build_operations(headers);
    route.request_headers_to_add.extend(operations.request_add);
    route.request_headers_to_remove.extend(operations.request_remove);
    route.response_headers_to_add.extend(operations.response_add);
    route.response_headers_to_remove.extend(operations.response_remove);
    operations.authority
}

/// The `alt-svc` header: the host is served over HTTP/3 at `port`.
pub fn advertise_http3(route: &mut Route, port: u32) {
    let value = format!("h3=\":{port}\"; ma=86400");
    route.response_headers_to_add.push(HeaderValueOption {
        header: Some(HeaderValue { key: "alt-svc".to_owned(), value, ..HeaderValue::default() }),
        append_action: HeaderAppendAction::AppendIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    });
}
