//! A cluster under construction. Its HTTP options are packed after all steps that change them.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use envoy_types::pb::envoy::config::core::v3::{Http1ProtocolOptions, Http2ProtocolOptions};
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::{
    ExplicitHttpConfig, UpstreamProtocolOptions,
};

use crate::wire::any;

/// Key of the HTTP options in a cluster.
const HTTP_PROTOCOL_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// A cluster and its HTTP options.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) cluster: Cluster,
    pub(super) http: Option<HttpProtocolOptions>,
    /// Whether the cluster resolves the host of each request (dynamic forward proxy).
    pub(super) dynamic_dns: bool,
}

impl Draft {
    pub(super) fn is(&self, kind: DiscoveryType) -> bool {
        matches!(self.cluster.cluster_discovery_type, Some(ClusterDiscoveryType::Type(found)) if found == kind as i32)
    }

    pub(super) fn set_type(&mut self, kind: DiscoveryType) {
        self.cluster.cluster_discovery_type = Some(ClusterDiscoveryType::Type(kind as i32));
    }

    pub(super) fn http(&mut self) -> &mut HttpProtocolOptions {
        self.http.get_or_insert_with(HttpProtocolOptions::default)
    }

    /// The options of explicit HTTP/2, if the cluster uses it.
    pub(super) fn http2(&mut self) -> Option<&mut Http2ProtocolOptions> {
        match self.http.as_mut()?.upstream_protocol_options.as_mut()? {
            UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
                protocol_config: Some(ProtocolConfig::Http2ProtocolOptions(options)),
            }) => Some(options),
            _ => None,
        }
    }

    pub(super) fn speaks_http2(&mut self) -> bool {
        self.http2().is_some()
    }

    /// The finished message.
    pub(super) fn finish(mut self) -> Cluster {
        if let Some(mut http) = self.http {
            http.upstream_protocol_options
                .get_or_insert_with(|| explicit(ProtocolConfig::HttpProtocolOptions(Http1ProtocolOptions::default())));
            self.cluster.typed_extension_protocol_options.insert(HTTP_PROTOCOL_OPTIONS.to_owned(), any(&http));
        }
        self.cluster
    }
}

/// Sets one upstream protocol, independent of the downstream protocol.
pub(super) fn explicit(protocol: ProtocolConfig) -> UpstreamProtocolOptions {
    UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig { protocol_config: Some(protocol) })
}
