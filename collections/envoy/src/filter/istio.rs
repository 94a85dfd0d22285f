//! Messages of filters only istio-proxy has.

use envoy_types::pb::google::protobuf::{Any, Duration};
use prost::Message;

use crate::wire;

/// `istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig`.
#[derive(Clone, PartialEq, Message)]
struct Alpn {
    #[prost(message, repeated, tag = "1")]
    overrides: Vec<AlpnOverride>,
}

#[derive(Clone, PartialEq, Message)]
struct AlpnOverride {
    /// 0 is HTTP/1.0, 1 is HTTP/1.1, 2 is HTTP/2.
    #[prost(int32, tag = "1")]
    upstream: i32,
    #[prost(string, repeated, tag = "2")]
    names: Vec<String>,
}

/// Replaces the protocol names a client offers upstream by ones that tell an Istio server it is the mesh (N11).
pub(super) fn alpn() -> Any {
    let names = |upstream, mesh: &str, plain: &str| AlpnOverride {
        upstream,
        names: vec![mesh.to_owned(), "istio".to_owned(), plain.to_owned()],
    };
    let overrides = vec![
        names(0, "istio-http/1.0", "http/1.0"),
        names(1, "istio-http/1.1", "http/1.1"),
        names(2, "istio-h2", "h2"),
    ];
    Any {
        type_url: "type.googleapis.com/istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig".to_owned(),
        value: Alpn { overrides }.encode_to_vec(),
    }
}

/// `stats.MetricConfig`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(super) dimensions: std::collections::BTreeMap<String, String>,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(string, repeated, tag = "3")]
    pub(super) tags_to_remove: Vec<String>,
    #[prost(bool, tag = "5")]
    pub(super) drop: bool,
}

/// `stats.PluginConfig`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Stats {
    #[prost(bool, tag = "6")]
    pub(super) disable_host_header_fallback: bool,
    #[prost(message, optional, tag = "7")]
    pub(super) tcp_reporting_duration: Option<Duration>,
    #[prost(message, repeated, tag = "8")]
    pub(super) metrics: Vec<Metric>,
    /// 1 is a server-side gateway.
    #[prost(int32, tag = "10")]
    pub(super) reporter: i32,
}

pub(super) fn stats(config: &Stats) -> Any {
    Any { type_url: "type.googleapis.com/stats.PluginConfig".to_owned(), value: config.encode_to_vec() }
}

/// Metadata exchange over HTTP, server side or client side (N09).
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

/// Metadata exchange over TCP (N09).
pub(super) fn metadata_exchange() -> Any {
    let value = serde_json::json!({"protocol": "istio-peer-exchange", "enable_discovery": true});
    wire::typed_struct("type.googleapis.com/envoy.tcp.metadataexchange.config.MetadataExchange", value)
}
