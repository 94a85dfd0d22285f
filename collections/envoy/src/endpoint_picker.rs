//! The endpoint picker of an InferencePool (N31): an external processor that names the endpoint of each request in dynamic metadata,
//! and the load balancer that follows it.

use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::LoadBalancingPolicy;
use envoy_types::pb::envoy::config::cluster::v3::load_balancing_policy::Policy;
use envoy_types::pb::envoy::config::core::v3::grpc_service::{EnvoyGrpc, TargetSpecifier};
use envoy_types::pb::envoy::config::core::v3::{GrpcService, TypedExtensionConfig};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::ext_proc_per_route::Override;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::metadata_options::MetadataNamespaces;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::{BodySendMode, HeaderSendMode};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::{
    ExtProcOverrides, ExtProcPerRoute, ExternalProcessor, MetadataOptions, ProcessingMode,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use envoy_types::pb::envoy::extensions::load_balancing_policies::override_host::v3::OverrideHost;
use envoy_types::pb::envoy::extensions::load_balancing_policies::override_host::v3::override_host::OverrideHostSource;
use envoy_types::pb::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use envoy_types::pb::envoy::r#type::metadata::v3::MetadataKey;
use envoy_types::pb::envoy::r#type::metadata::v3::metadata_key::{PathSegment, path_segment::Segment};
use envoy_types::pb::google::protobuf::Any;
use sluice_model::EndpointPicker;

use crate::filter_config::http_filter;
use crate::name::outbound_cluster;
use crate::wire::{any, boolean, duration};

/// Name of the external processing filter, and of its configuration in routes.
pub(crate) const EXT_PROC: &str = "envoy.filters.http.ext_proc";
/// Namespace of the dynamic metadata that the filter and the load balancer exchange.
const METADATA: &str = "envoy.lb";
/// Key of the address that the picker has chosen.
const PICKED_ENDPOINT: &str = "x-gateway-destination-endpoint";
/// Key of the address that has served the request.
const SERVED_ENDPOINT: &str = "x-gateway-destination-endpoint-served";
/// Cluster of the filter, which each route that uses it replaces.
const NO_CLUSTER: &str = "dummy";
/// Time limit of the stream to the picker, unless a route replaces the service.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of an answer of the picker. It may hold a request back until an endpoint is free.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(1000);

/// The load balancing policy of a cluster whose endpoints are picked; without a picked endpoint, it is round robin.
pub(crate) fn override_host_policy() -> LoadBalancingPolicy {
    let config = OverrideHost {
        override_host_sources: vec![OverrideHostSource {
            metadata: Some(metadata_key(PICKED_ENDPOINT)),
            ..OverrideHostSource::default()
        }],
        selected_host_key: Some(metadata_key(SERVED_ENDPOINT)),
        fallback_policy: Some(policy("round_robin", any(&RoundRobin::default()))),
    };
    policy("override_host", any(&config))
}

fn policy(name: &str, config: Any) -> LoadBalancingPolicy {
    let extension =
        TypedExtensionConfig { name: format!("envoy.load_balancing_policies.{name}"), typed_config: Some(config) };
    LoadBalancingPolicy { policies: vec![Policy { typed_extension_config: Some(extension) }] }
}

fn metadata_key(name: &str) -> MetadataKey {
    let path = vec![PathSegment { segment: Some(Segment::Key(name.to_owned())) }];
    MetadataKey { key: METADATA.to_owned(), path }
}

/// The filter that calls pickers. It does nothing unless the route has a picker.
pub(crate) fn picker_filter() -> HttpFilter {
    let namespaces =
        || Some(MetadataNamespaces { untyped: vec![METADATA.to_owned()], ..MetadataNamespaces::default() });
    let config = ExternalProcessor {
        grpc_service: Some(GrpcService { timeout: Some(duration(STREAM_TIMEOUT)), ..grpc_service(NO_CLUSTER) }),
        failure_mode_allow: true,
        processing_mode: Some(ProcessingMode {
            request_header_mode: HeaderSendMode::Skip as i32,
            response_header_mode: HeaderSendMode::Skip as i32,
            ..ProcessingMode::default()
        }),
        message_timeout: Some(duration(MESSAGE_TIMEOUT)),
        metadata_options: Some(MetadataOptions {
            forwarding_namespaces: namespaces(),
            receiving_namespaces: namespaces(),
            ..MetadataOptions::default()
        }),
        ..ExternalProcessor::default()
    };
    http_filter(EXT_PROC, any(&config))
}

/// The configuration of the filter for a route: the picker reads and may change the whole request and response.
pub(crate) fn route_picker(picker: &EndpointPicker) -> Any {
    let cluster = outbound_cluster(picker.port.into(), "", picker.host.as_str());
    let overrides = ExtProcOverrides {
        failure_mode_allow: Some(boolean(picker.fails_open)),
        grpc_service: Some(grpc_service(&cluster)),
        processing_mode: Some(ProcessingMode {
            request_header_mode: HeaderSendMode::Send as i32,
            request_body_mode: BodySendMode::FullDuplexStreamed as i32,
            // Envoy requires trailers with this mode of bodies.
            request_trailer_mode: HeaderSendMode::Send as i32,
            response_header_mode: HeaderSendMode::Send as i32,
            response_body_mode: BodySendMode::FullDuplexStreamed as i32,
            response_trailer_mode: HeaderSendMode::Send as i32,
        }),
        ..ExtProcOverrides::default()
    };
    any(&ExtProcPerRoute { r#override: Some(Override::Overrides(overrides)) })
}

fn grpc_service(cluster: &str) -> GrpcService {
    let target = EnvoyGrpc { cluster_name: cluster.to_owned(), ..EnvoyGrpc::default() };
    GrpcService { target_specifier: Some(TargetSpecifier::EnvoyGrpc(target)), ..GrpcService::default() }
}
