//! Filters that only istio-proxy has.

use envoy_types::pb::google::protobuf::Any;
use sluice_proto::istio::envoy::config::filter::http::alpn::v2alpha1::FilterConfig;
use sluice_proto::istio::envoy::config::filter::http::alpn::v2alpha1::filter_config::{AlpnOverride, Protocol};

use crate::alpn::{ISTIO, ISTIO_H2, ISTIO_HTTP_1_0, ISTIO_HTTP_1_1};
use crate::wire;

/// The ALPN filter, which replaces the upstream ALPN with values that identify mesh traffic (N11).
pub(super) fn alpn() -> Any {
    let names = |protocol: Protocol, mesh: &str, plain: &str| AlpnOverride {
        upstream_protocol: protocol.into(),
        alpn_override: vec![mesh.to_owned(), ISTIO.to_owned(), plain.to_owned()],
    };
    wire::any(&FilterConfig {
        alpn_override: vec![
            names(Protocol::Http10, ISTIO_HTTP_1_0, "http/1.0"),
            names(Protocol::Http11, ISTIO_HTTP_1_1, "http/1.1"),
            names(Protocol::Http2, ISTIO_H2, "h2"),
        ],
    })
}

/// The filter for metadata exchange over HTTP, server side or client side (N09).
pub(super) fn peer_metadata(inbound: bool, skip_external: bool) -> Any {
    let headers = if skip_external {
        serde_json::json!({"istio_headers": {"skip_external_clusters": true}})
    } else {
        serde_json::json!({"istio_headers": {}})
    };
    let discovery = serde_json::json!([{"istio_headers": {}}, {"workload_discovery": {}}]);
    let side = if inbound { "downstream" } else { "upstream" };
    let value = serde_json::json!({
        format!("{side}_discovery"): discovery,
        format!("{side}_propagation"): [headers],
    });
    wire::typed_struct("type.googleapis.com/io.istio.http.peer_metadata.Config", value)
}

/// The filter of a waypoint that looks up the metadata of its peers by address, and with `baggage` in the baggage of the tunnel.
/// That of the downstream is shared with the internal listener.
pub(crate) fn waypoint_peer_metadata(downstream: bool, baggage: bool) -> Any {
    let discovery = serde_json::json!({"workload_discovery": {}});
    let of_tunnel = serde_json::json!({"upstream_filter_state": {"peer_metadata_key": "upstream_peer"}});
    let value = match (downstream, baggage) {
        (true, false) => serde_json::json!({"downstream_discovery": [discovery], "shared_with_upstream": true}),
        (false, false) => serde_json::json!({"upstream_discovery": [discovery]}),
        (true, true) => serde_json::json!({
            "downstream_discovery": [discovery, {"baggage": {}}],
            "downstream_propagation": [{"baggage": {}}],
            "shared_with_upstream": true,
        }),
        (false, true) => serde_json::json!({"upstream_discovery": [discovery, of_tunnel]}),
    };
    wire::typed_struct("type.googleapis.com/io.istio.http.peer_metadata.Config", value)
}
