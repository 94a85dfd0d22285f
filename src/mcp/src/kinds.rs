//! The kinds that are exchanged, and their types.

use sluice_parse::KindInfo;
use sluice_sources::configuration::configuration_kinds;

/// The type of the mesh config.
pub(crate) const MESH_CONFIG_TYPE: &str = "core/v1alpha1/MeshConfig";
/// The message of a resource.
pub(crate) const RESOURCE_MESSAGE: &str = "istio.mcp.v1alpha1.Resource";
/// What precedes the name of a message in the type URL of an `Any`.
pub(crate) const TYPE_URL_PREFIX: &str = "type.googleapis.com/";

/// The type of a kind with its preferred version.
pub(crate) fn type_url(info: &KindInfo) -> String {
    format!("{}/{}", info.api_version(), info.name)
}

/// The kind with that type. As in istiod, other versions than the preferred one are not known.
pub(crate) fn kind_of_type(url: &str) -> Option<&'static KindInfo> {
    let (api_version, name) = url.rsplit_once('/')?;
    configuration_kinds().find(|info| info.name == name && info.api_version() == api_version)
}

/// The full name of the message of a kind's `spec`. All versions of a kind have the same message.
pub(crate) fn message_name(info: &KindInfo) -> String {
    let package = match info.group {
        "security.istio.io" => "istio.security.v1beta1",
        "telemetry.istio.io" => "istio.telemetry.v1alpha1",
        "extensions.istio.io" => "istio.extensions.v1alpha1",
        _ if info.versions == ["v1beta1"] => "istio.networking.v1beta1",
        _ => "istio.networking.v1alpha3",
    };
    format!("{package}.{}", info.name)
}

/// Whether objects of the kind are security policies: AuthorizationPolicies, PeerAuthentications, RequestAuthentications.
pub(crate) fn is_security_policy(info: &KindInfo) -> bool {
    info.group == "security.istio.io"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_istio_has_a_type_and_a_message() {
        let types: Vec<String> = configuration_kinds().map(type_url).collect();
        assert_eq!(types.len(), 15, "{types:?}");
        for info in configuration_kinds() {
            assert!(sluice_proto::pool().get_message_by_name(&message_name(info)).is_some(), "{}", message_name(info));
            assert_eq!(kind_of_type(&type_url(info)).map(|found| found.kind), Some(info.kind));
        }
        for known in [
            "networking.istio.io/v1/VirtualService",
            "networking.istio.io/v1alpha3/EnvoyFilter",
            "networking.istio.io/v1beta1/ProxyConfig",
            "security.istio.io/v1/AuthorizationPolicy",
            "telemetry.istio.io/v1/Telemetry",
            "extensions.istio.io/v1alpha1/WasmPlugin",
        ] {
            assert!(types.iter().any(|url| url == known), "{known} is not in {types:?}");
        }
        for unknown in
            ["networking.istio.io/v1alpha3/VirtualService", "v1/Secret", "VirtualService", "gateways/v1/Gateway"]
        {
            assert!(kind_of_type(unknown).is_none(), "{unknown}");
        }
    }
}
