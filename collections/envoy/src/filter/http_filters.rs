//! HTTP filters and their order (N07).

use envoy_types::pb::envoy::extensions::filters::http::{
    cors::v3::Cors,
    fault::v3::HttpFault,
    grpc_stats::v3::{FilterConfig as GrpcStats, filter_config::PerMethodStatSpecifier},
    grpc_web::v3::GrpcWeb,
    router::v3::Router,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpFilter, http_filter::ConfigType,
};
use envoy_types::pb::google::protobuf::Any;
use sluice_model::{ExtensionPhase, Protocol};

use super::extension::Extensions;
use super::http::{Class, HttpChain};
use super::{istio, stats};
use crate::listener::Settings;
use crate::wire::{any, boolean};

pub(super) fn http_filter(name: &str, config: Any) -> HttpFilter {
    HttpFilter { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)), ..HttpFilter::default() }
}

/// The filters of an HTTP connection manager, the router last.
pub(super) fn http_filters(settings: &Settings, chain: &HttpChain) -> Vec<HttpFilter> {
    let facts = &settings.facts;
    let headers = settings.config().proxy_headers.as_ref();
    let mut filters = Vec::new();
    if facts.has("istio.metadata_exchange.http") {
        // Only what leaves a sidecar can be told to keep headers within the mesh; the proxy listener never is.
        let skip = chain.mesh_headers_only_in_mesh && headers.is_some_and(|headers| headers.metadata_exchange_in_mesh);
        let config = istio::peer_metadata(chain.class == Class::Inbound, skip);
        filters.push(http_filter("istio.metadata_exchange", config));
    }
    let extensions = Extensions::on(settings, chain.class, chain.port);
    filters.extend(chain.policies.custom.iter().cloned());
    filters.extend(extensions.http(ExtensionPhase::Authn));
    filters.extend(chain.policies.authentication.iter().cloned());
    filters.extend(extensions.http(ExtensionPhase::Authz));
    filters.extend(chain.policies.authorization.iter().cloned());
    filters.extend(extensions.http(ExtensionPhase::Stats));
    filters.extend(extensions.http(ExtensionPhase::Unspecified));
    if chain.protocol == Protocol::GrpcWeb {
        filters.push(http_filter("envoy.filters.http.grpc_web", any(&GrpcWeb::default())));
    }
    filters.push(grpc_stats());
    if chain.class != Class::Inbound && facts.has("istio.alpn") {
        filters.push(http_filter("istio.alpn", istio::alpn()));
    }
    filters.push(http_filter("envoy.filters.http.fault", any(&HttpFault::default())));
    filters.push(http_filter("envoy.filters.http.cors", any(&Cors::default())));
    filters.extend(stats::http_stats(settings, chain.class));
    filters.extend(chain.forward_filters.iter().cloned());
    let router = Router {
        suppress_envoy_headers: headers.is_some_and(|headers| headers.envoy_debug_headers_disabled == Some(true)),
        ..Router::default()
    };
    filters.push(http_filter("envoy.filters.http.router", any(&router)));
    filters
}

fn grpc_stats() -> HttpFilter {
    let config = GrpcStats {
        emit_filter_state: true,
        per_method_stat_specifier: Some(PerMethodStatSpecifier::StatsForAllMethods(boolean(false))),
        ..GrpcStats::default()
    };
    http_filter("envoy.filters.http.grpc_stats", any(&config))
}
