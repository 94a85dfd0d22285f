//! The analyzers.

mod annotations;
mod authorization;
mod conditions;
mod control_plane;
mod deployment;
mod deprecation;
mod destination_rule;
mod destinations;
mod envoy_filter;
mod gateway;
mod gateway_api;
mod hosts;
mod injection;
mod mesh_networks;
mod multicluster;
mod proxy_image;
mod schema;
mod service;
mod service_entry;
mod sidecar;
mod telemetry;
mod virtual_service;
mod webhook;

use std::collections::BTreeSet;

use crate::resource::{MUTATING_WEBHOOKS, NAMESPACE, POD, SECRET, SERVICE};
use crate::value::text;
use crate::{AnalyzedObject, GroupKind, MeshObjects, MessageList};

/// An analyzer.
pub struct Analyzer {
    /// Name, as `istioctl analyze --list-analyzers` prints it.
    pub name: &'static str,
    /// What it checks.
    pub description: &'static str,
    /// Codes of its messages.
    pub codes: &'static [&'static str],
    /// Kinds that its messages are about the absence of. Files rarely have all objects of these kinds that a cluster has.
    pub needs: &'static [GroupKind<'static>],
    pub(crate) run: for<'m> fn(&'m MeshObjects<'m>, &mut MessageList<'m>),
}

impl Analyzer {
    /// Whether a set of files has objects of all kinds that the analyzer looks up. As `istioctl` without a cluster, an analysis of
    /// files leaves it out otherwise: what is missing is in the cluster.
    #[must_use]
    pub fn is_complete_with(&self, objects: &[AnalyzedObject]) -> bool {
        self.needs.iter().all(|kind| objects.iter().any(|object| object.kind() == *kind))
    }
}

impl std::fmt::Debug for Analyzer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Analyzer").field("name", &self.name).finish_non_exhaustive()
    }
}

macro_rules! analyzers {
    ($(#[$doc:meta])* $table:ident: $($name:literal [$($code:literal),+] ($($need:ident)*) $run:path, $description:literal;)*) => {
        $(#[$doc])*
        pub static $table: &[Analyzer] = &[
            $(Analyzer {
                name: $name,
                description: $description,
                codes: &[$($code),+],
                needs: &[$($need),*],
                run: $run,
            }),*
        ];
    };
}

analyzers! {
    /// Analyzers that run only if they are named.
    OPTIONAL_ANALYZERS:
    "annotations.AlphaAnalyzer" ["IST0136"] () annotations::alpha,
        "Annotations of features in the alpha stage";
}

analyzers! {
    /// All analyzers that run by default, by name.
    ANALYZERS:
    "annotations.K8sAnalyzer" ["IST0107", "IST0108", "IST0125", "IST0135"] () annotations::run,
        "Annotations of Istio that are misplaced, unknown, invalid or deprecated";
    "applicationUID.Analyzer" ["IST0144"] () deployment::application_uid,
        "Containers that run with the user ID of the sidecar";
    "auth.AuthorizationPoliciesAnalyzer" ["IST0101", "IST0127"] (NAMESPACE POD) authorization::run,
        "Workloads and namespaces of AuthorizationPolicies";
    "authn.BlockedCIDRsAnalyzer" ["IST0175"] () control_plane::blocked_addresses,
        "Restriction of the addresses that keys of token issuers are read from";
    "conditions.ConditionAnalyzer" ["IST0171"] () conditions::run,
        "Negative conditions in the statuses of objects";
    "deployment.MultiServiceAnalyzer" ["IST0116", "IST0137"] () deployment::services,
        "Services of one Deployment with conflicting ports";
    "deprecation.DeprecationAnalyzer" ["IST0002"] () deprecation::run,
        "Fields and kinds that are deprecated";
    "destinationrule.CaCertificateAnalyzer" ["IST0128", "IST0129"] () destination_rule::ca_certificates,
        "TLS settings of DestinationRules that do not verify servers";
    "destinationrule.SubsetSelectPodAnalyzer" ["IST0173", "IST0174"] (POD SERVICE) destination_rule::subsets,
        "Hosts of DestinationRules that do not exist, and subsets without pods";
    "envoyfilter.EnvoyPatchAnalyzer" ["IST0151", "IST0152", "IST0153", "IST0154", "IST0155"] () envoy_filter::run,
        "Patch operations of EnvoyFilters that depend on the order or have no effect";
    "externalcontrolplane.ExternalControlPlaneAnalyzer" ["IST0163", "IST0164"] () control_plane::external_address,
        "Addresses of an external control plane in webhooks";
    "gateway.CertificateAnalyzer" ["IST0138"] () gateway::certificates,
        "Certificates that several Gateways have in common";
    "gateway.ConflictingGatewayAnalyzer" ["IST0145"] () gateway::conflicts,
        "Gateways with the same workloads, port and host";
    "gateway.IngressGatewayPortAnalyzer" ["IST0101", "IST0162"] (POD SERVICE) gateway::ports,
        "Workloads of Gateways, and ports that no Service has";
    "gateway.SecretAnalyzer" ["IST0101", "IST0161"] (POD SECRET) gateway::credentials,
        "Secrets of Gateways";
    "injection.Analyzer" ["IST0102", "IST0103", "IST0123", "IST0148"] () injection::run,
        "Namespaces without injection, and pods without a sidecar";
    "injection.ImageAnalyzer" ["IST0158"] () proxy_image::mismatches,
        "Pods whose proxy image is not the one of injection";
    "injection.ImageAutoAnalyzer" ["IST0146", "IST0147"] (MUTATING_WEBHOOKS NAMESPACE) proxy_image::image_auto,
        "Pods with image auto that are not injected";
    "k8sgateway.CRDVersionAnalyzer" ["IST0176"] () gateway_api::crd_version,
        "Versions of the CRDs of the Gateway API";
    "k8sgateway.SelectorAnalyzer" ["IST0166"] () gateway_api::selectors,
        "Policies that select the pods of a Gateway of the Gateway API by labels";
    "meshnetworks.MeshNetworksAnalyzer" ["IST0126"] (SECRET) mesh_networks::run,
        "Clusters that the networks of the mesh refer to";
    "schema.ValidationAnalyzer.AuthorizationPolicy" ["IST0106", "IST0133"] () schema::authorization_policies,
        "Validation of each AuthorizationPolicy";
    "schema.ValidationAnalyzer.DestinationRule" ["IST0106", "IST0133"] () schema::destination_rules,
        "Validation of each DestinationRule";
    "schema.ValidationAnalyzer.EnvoyFilter" ["IST0106", "IST0133"] () schema::envoy_filters,
        "Validation of each EnvoyFilter";
    "schema.ValidationAnalyzer.Gateway" ["IST0106", "IST0133"] () schema::gateways,
        "Validation of each Gateway";
    "schema.ValidationAnalyzer.MeshConfig" ["IST0106", "IST0133"] () schema::mesh_config,
        "Validation of the mesh config";
    "schema.ValidationAnalyzer.MeshNetworks" ["IST0106", "IST0133"] () schema::mesh_networks,
        "Validation of the networks of the mesh";
    "schema.ValidationAnalyzer.PeerAuthentication" ["IST0106", "IST0133"] () schema::peer_authentications,
        "Validation of each PeerAuthentication";
    "schema.ValidationAnalyzer.ProxyConfig" ["IST0106", "IST0133"] () schema::proxy_configs,
        "Validation of each ProxyConfig";
    "schema.ValidationAnalyzer.RequestAuthentication" ["IST0106", "IST0133"] () schema::request_authentications,
        "Validation of each RequestAuthentication";
    "schema.ValidationAnalyzer.ServiceEntry" ["IST0106", "IST0133"] () schema::service_entries,
        "Validation of each ServiceEntry";
    "schema.ValidationAnalyzer.Sidecar" ["IST0106", "IST0133"] () schema::sidecars,
        "Validation of each Sidecar";
    "schema.ValidationAnalyzer.Telemetry" ["IST0106", "IST0133"] () schema::telemetries,
        "Validation of each Telemetry";
    "schema.ValidationAnalyzer.TrafficExtension" ["IST0106", "IST0133"] () schema::traffic_extensions,
        "Validation of each TrafficExtension";
    "schema.ValidationAnalyzer.VirtualService" ["IST0106", "IST0130", "IST0131", "IST0133"] () schema::virtual_services,
        "Validation of each VirtualService";
    "schema.ValidationAnalyzer.WasmPlugin" ["IST0106", "IST0133"] () schema::wasm_plugins,
        "Validation of each WasmPlugin";
    "schema.ValidationAnalyzer.WorkloadEntry" ["IST0106", "IST0133"] () schema::workload_entries,
        "Validation of each WorkloadEntry";
    "schema.ValidationAnalyzer.WorkloadGroup" ["IST0106", "IST0133"] () schema::workload_groups,
        "Validation of each WorkloadGroup";
    "service.PortNameAnalyzer" ["IST0118", "IST0150"] () service::port_names,
        "Names of ports that tell no protocol";
    "serviceentry.Analyzer" ["IST0134"] () service_entry::addresses,
        "ServiceEntries with TCP ports and without addresses";
    "serviceentry.ConflictingServiceEntryProtocolAnalyzer" ["IST0177"] () service_entry::protocols,
        "ServiceEntries with the same host and port and different protocols";
    "services.MultiClusterServiceAnalyzer" ["IST0170"] () multicluster::services,
        "Services that differ between clusters";
    "sidecar.SelectorAnalyzer" ["IST0101", "IST0110", "IST0111", "IST0167"] (POD) sidecar::run,
        "Workloads of Sidecars, and Sidecars with the same workloads";
    "telemetry.DefaultSelectorAnalyzer" ["IST0160"] () telemetry::defaults,
        "Several Telemetry objects for a whole namespace";
    "telemetry.LightstepAnalyzer" ["IST0002"] () telemetry::lightstep,
        "Use of the deprecated provider Lightstep";
    "telemetry.ProviderAnalyzer" ["IST0157"] () telemetry::providers,
        "Access logs without a provider";
    "telemetry.SelectorAnalyzer" ["IST0101", "IST0159"] (POD) telemetry::selectors,
        "Workloads of Telemetry objects, and Telemetry objects with the same workloads";
    "virtualservice.ConflictingMeshGatewayHostsAnalyzer" ["IST0109"] () virtual_service::conflicting_hosts,
        "VirtualServices for sidecars with the same host";
    "virtualservice.DestinationHostAnalyzer" ["IST0101", "IST0112", "IST0140"] (SERVICE) destinations::run,
        "Hosts and ports that VirtualServices route to, and subsets that have no effect on requests through gateways";
    "virtualservice.DestinationRuleAnalyzer" ["IST0101"] () destinations::subsets,
        "Subsets that VirtualServices route to";
    "virtualservice.GatewayAnalyzer" ["IST0101", "IST0132", "IST0165"] () virtual_service::gateways,
        "Gateways of VirtualServices, and their hosts";
    "virtualservice.JWTClaimRouteAnalyzer" ["IST0149"] () virtual_service::claims,
        "Routes by claims of tokens that are not authenticated";
    "webhook.Analyzer" ["IST0139"] (SERVICE) webhook::run,
        "Webhooks of injection that overlap or whose Service does not exist";
}

fn not_found(what: &str, reference: &str) -> String {
    format!("{what} {reference:?} does not exist")
}

fn join(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The namespace whose policies apply to the whole mesh.
fn root_namespace<'m>(mesh: &'m MeshObjects<'_>) -> &'m str {
    match text(&mesh.mesh_config, "rootNamespace") {
        "" => &mesh.settings.istio_namespace,
        namespace => namespace,
    }
}

/// Whether an object is a part of a control plane.
fn is_control_plane(resource: &AnalyzedObject) -> bool {
    resource.label("istio").is_some() || resource.label("release") == Some("istio")
}
