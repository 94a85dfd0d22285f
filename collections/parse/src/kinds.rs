//! The table of kinds (C01 to C03). Only `object.rs` and `validate.rs` import it; no parser does.

use sluice_model::gateway_api::{EXPERIMENTAL_GROUP, GROUP, INFERENCE_GROUP};
use sluice_model::{Kind, MULTI_CLUSTER_GROUP, NETWORKING_GROUP, Object};

use crate::{
    KindInfo, Parse, authorization_policy, destination_rule, endpoint_slice, envoy_filter, gateway_api, ingress,
    mesh_settings, multi_cluster, namespace, node, parse_gateway, parse_virtual_service, peer_authentication, pod,
    proxy_config_resource, request_authentication, secret, service, service_entry, sidecar, telemetry,
    traffic_extension, webhook_configuration, workload_entry, workload_group,
};

/// Kinds for which a cluster creates pods. Sluice reads the pods and not these objects.
pub const WORKLOAD_KINDS: [&str; 6] = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"];

const WEBHOOKS: &str = "admissionregistration.k8s.io";
const SECURITY: &str = "security.istio.io";
const BETA: &[&str] = &["v1", "v1beta1"];
const ALPHA: &[&str] = &["v1", "v1alpha3", "v1alpha2"];
const STABLE: &[&str] = &["v1", "v1beta1", "v1alpha3"];

const fn core(kind: Kind, name: &'static str, plural: &'static str, parse: Option<Parse>) -> KindInfo {
    KindInfo { kind, group: "", versions: &["v1"], name, plural, namespaced: true, parse }
}

const fn cluster_scoped(info: KindInfo) -> KindInfo {
    KindInfo { namespaced: false, ..info }
}

const fn custom(
    kind: Kind,
    group: &'static str,
    versions: &'static [&'static str],
    name: &'static str,
    plural: &'static str,
    parse: Option<Parse>,
) -> KindInfo {
    KindInfo { kind, group, versions, name, plural, namespaced: true, parse }
}

/// All kinds that are read, in the order of [`Kind`]. To support one more kind, add its parser to its line.
#[rustfmt::skip]
pub static KINDS: &[KindInfo] = &[
    custom(Kind::AuthorizationPolicy, SECURITY, &["v1", "v1beta1"], "AuthorizationPolicy", "authorizationpolicies", Some(authorization_policy::parse)),
    custom(Kind::BackendTLSPolicy, GROUP, &["v1", "v1alpha3"], "BackendTLSPolicy", "backendtlspolicies", Some(gateway_api::backend_tls_policy::parse)),
    core(Kind::ConfigMap, "ConfigMap", "configmaps", Some(mesh_settings::parse)),
    custom(Kind::DestinationRule, NETWORKING_GROUP, STABLE, "DestinationRule", "destinationrules", Some(destination_rule::parse)),
    KindInfo { group: "discovery.k8s.io", ..core(Kind::EndpointSlice, "EndpointSlice", "endpointslices", Some(endpoint_slice::parse)) },
    custom(Kind::EnvoyFilter, NETWORKING_GROUP, &["v1alpha3"], "EnvoyFilter", "envoyfilters", Some(envoy_filter::parse)),
    custom(Kind::GRPCRoute, GROUP, &["v1", "v1alpha2"], "GRPCRoute", "grpcroutes", Some(gateway_api::grpc_route::parse)),
    custom(Kind::Gateway, NETWORKING_GROUP, STABLE, "Gateway", "gateways", Some(|item, findings| {
        parse_gateway(&item.meta(findings), item.spec(), findings).map(Object::Gateway)
    })),
    cluster_scoped(custom(Kind::GatewayClass, GROUP, BETA, "GatewayClass", "gatewayclasses", Some(gateway_api::gateway_class::parse))),
    custom(Kind::HTTPRoute, GROUP, BETA, "HTTPRoute", "httproutes", Some(gateway_api::http_route::parse)),
    custom(Kind::InferencePool, INFERENCE_GROUP, &["v1"], "InferencePool", "inferencepools", Some(gateway_api::inference_pool::parse)),
    KindInfo { group: "networking.k8s.io", ..core(Kind::Ingress, "Ingress", "ingresses", Some(ingress::parse)) },
    KindInfo { group: "networking.k8s.io", ..cluster_scoped(core(Kind::IngressClass, "IngressClass", "ingressclasses", Some(ingress::parse_class))) },
    custom(Kind::KubernetesGateway, GROUP, BETA, "Gateway", "gateways", Some(gateway_api::gateway::parse)),
    custom(Kind::ListenerSet, GROUP, &["v1"], "ListenerSet", "listenersets", Some(gateway_api::listener_set::parse)),
    KindInfo { group: WEBHOOKS, ..cluster_scoped(core(Kind::MutatingWebhookConfiguration, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", Some(webhook_configuration::parse_mutating))) },
    cluster_scoped(core(Kind::Namespace, "Namespace", "namespaces", Some(namespace::parse))),
    cluster_scoped(core(Kind::Node, "Node", "nodes", Some(node::parse))),
    custom(Kind::PeerAuthentication, SECURITY, &["v1", "v1beta1"], "PeerAuthentication", "peerauthentications", Some(peer_authentication::parse)),
    core(Kind::Pod, "Pod", "pods", Some(pod::parse)),
    custom(Kind::ProxyConfig, NETWORKING_GROUP, &["v1beta1"], "ProxyConfig", "proxyconfigs", Some(proxy_config_resource::parse)),
    custom(Kind::ReferenceGrant, GROUP, &["v1beta1", "v1"], "ReferenceGrant", "referencegrants", Some(gateway_api::reference_grant::parse)),
    custom(Kind::RequestAuthentication, SECURITY, &["v1", "v1beta1"], "RequestAuthentication", "requestauthentications", Some(request_authentication::parse)),
    core(Kind::Secret, "Secret", "secrets", Some(secret::parse)),
    core(Kind::Service, "Service", "services", Some(service::parse)),
    core(Kind::ServiceAccount, "ServiceAccount", "serviceaccounts", None),
    custom(Kind::ServiceEntry, NETWORKING_GROUP, STABLE, "ServiceEntry", "serviceentries", Some(service_entry::parse)),
    custom(Kind::ServiceExport, MULTI_CLUSTER_GROUP, &["v1alpha1"], "ServiceExport", "serviceexports", Some(multi_cluster::parse_export)),
    custom(Kind::ServiceImport, MULTI_CLUSTER_GROUP, &["v1alpha1"], "ServiceImport", "serviceimports", Some(multi_cluster::parse_import)),
    custom(Kind::Sidecar, NETWORKING_GROUP, STABLE, "Sidecar", "sidecars", Some(sidecar::parse)),
    custom(Kind::TCPRoute, GROUP, ALPHA, "TCPRoute", "tcproutes", Some(gateway_api::tcp_route::parse)),
    custom(Kind::TLSRoute, GROUP, ALPHA, "TLSRoute", "tlsroutes", Some(gateway_api::tls_route::parse)),
    custom(Kind::Telemetry, "telemetry.istio.io", &["v1", "v1alpha1"], "Telemetry", "telemetries", Some(telemetry::parse)),
    custom(Kind::TrafficExtension, "extensions.istio.io", &["v1alpha1"], "TrafficExtension", "trafficextensions", Some(traffic_extension::parse)),
    custom(Kind::UDPRoute, GROUP, ALPHA, "UDPRoute", "udproutes", Some(gateway_api::udp_route::parse)),
    KindInfo { group: WEBHOOKS, ..cluster_scoped(core(Kind::ValidatingWebhookConfiguration, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", Some(webhook_configuration::parse_validating))) },
    custom(Kind::VirtualService, NETWORKING_GROUP, STABLE, "VirtualService", "virtualservices", Some(|item, findings| {
        parse_virtual_service(&item.meta(findings), item.spec(), item.domain, findings).map(Object::VirtualService)
    })),
    custom(Kind::WasmPlugin, "extensions.istio.io", &["v1alpha1"], "WasmPlugin", "wasmplugins", Some(traffic_extension::parse_wasm_plugin)),
    custom(Kind::WorkloadEntry, NETWORKING_GROUP, STABLE, "WorkloadEntry", "workloadentries", Some(workload_entry::parse)),
    custom(Kind::WorkloadGroup, NETWORKING_GROUP, STABLE, "WorkloadGroup", "workloadgroups", Some(workload_group::parse)),
    custom(Kind::XBackend, EXPERIMENTAL_GROUP, &["v1alpha1"], "XBackend", "xbackends", Some(gateway_api::backend::parse)),
    custom(Kind::XBackendTrafficPolicy, EXPERIMENTAL_GROUP, &["v1alpha1"], "XBackendTrafficPolicy", "xbackendtrafficpolicies", Some(gateway_api::backend_traffic_policy::parse)),
];

/// The entry for the `apiVersion` and `kind` of an object, for any supported version.
#[must_use]
pub(crate) fn find_kind(api_version: &str, kind: &str) -> Option<&'static KindInfo> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    KINDS.iter().find(|info| info.name == kind && info.group == group && info.versions.contains(&version))
}

/// The entry of a kind.
#[must_use]
pub fn kind_info(kind: Kind) -> Option<&'static KindInfo> {
    KINDS.iter().find(|info| info.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_versions_of_a_kind_are_found() {
        for version in STABLE {
            let info = find_kind(&format!("networking.istio.io/{version}"), "Gateway").expect("known");
            assert_eq!(info.kind, Kind::Gateway);
        }
        let other = find_kind("gateway.networking.k8s.io/v1", "Gateway").expect("known");
        assert_eq!(other.kind, Kind::KubernetesGateway);
        assert!(find_kind("v1", "Endpoints").is_none());
        assert!(find_kind("v2", "Service").is_none());
    }

    #[test]
    fn table_is_sorted_by_kind_without_duplicates() {
        assert!(KINDS.is_sorted_by(|a, b| a.kind < b.kind));
    }
}
