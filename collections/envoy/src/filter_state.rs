//! Filter state: values that a waypoint's listeners pass to each other over internal connections (N23).

use envoy_types::pb::envoy::config::core::v3::substitution_format_string::Format;
use envoy_types::pb::envoy::config::core::v3::{DataSource, SubstitutionFormatString, data_source::Specifier};
use envoy_types::pb::envoy::extensions::filters::common::set_filter_state::v3::FilterStateValue;
use envoy_types::pb::envoy::extensions::filters::common::set_filter_state::v3::filter_state_value::{
    Key, SharedWithUpstream, Value,
};

use crate::listener_settings::{ISTIO_STATS, ListenerSettings};

/// The original destination of an internal connection.
pub(crate) const ORIGINAL_DESTINATION: &str = "envoy.filters.listener.original_dst.local_ip";
/// The client address of an internal connection.
pub(crate) const ORIGINAL_SOURCE: &str = "envoy.filters.listener.original_dst.remote_ip";
/// The authority of the terminated CONNECT request.
pub(crate) const CONNECT_AUTHORITY: &str = "io.istio.connect_authority";
/// The identity of the client of the terminated tunnel.
pub(crate) const PEER_PRINCIPAL: &str = "io.istio.peer_principal";
/// The identity of the waypoint in the terminated tunnel.
pub(crate) const LOCAL_PRINCIPAL: &str = "io.istio.local_principal";
/// The kind of proxy that the terminated CONNECT request comes from, if it says so.
pub(crate) const REQUEST_SOURCE: &str = "io.istio.source";
/// The destination inside of two HBONE tunnels.
pub(crate) const DOUBLE_HBONE_TARGET: &str = "istio.double_hbone.hbone_target_address";

/// Factory of texts: connections with different texts are not shared. Versions of istio-proxy before 1.29.2 have only a
/// simpler one, and an Envoy without Istio's extensions has its own.
pub(crate) fn text_factory(settings: &ListenerSettings) -> &'static str {
    match settings.profile.has(ISTIO_STATS) {
        false => "envoy.hashable_string",
        true if settings.profile.no_hashable_text => "envoy.string",
        true => "istio.hashable_string",
    }
}

/// A value under `key`, formatted at run time by `format`. Without a `factory`, the key determines the type of the
/// value.
pub(crate) fn filter_state(key: &str, format: &str, factory: &str, shared: SharedWithUpstream) -> FilterStateValue {
    FilterStateValue {
        key: Some(Key::ObjectKey(key.to_owned())),
        factory_key: factory.to_owned(),
        value: Some(Value::FormatString(SubstitutionFormatString {
            format: Some(Format::TextFormatSource(DataSource {
                specifier: Some(Specifier::InlineString(format.to_owned())),
                ..DataSource::default()
            })),
            ..SubstitutionFormatString::default()
        })),
        shared_with_upstream: shared as i32,
        ..FilterStateValue::default()
    }
}
