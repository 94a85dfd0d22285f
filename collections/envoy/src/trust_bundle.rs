//! Trust bundle: root certificates for workloads (X23).

use sluice_model::Text;
use sluice_proto::istio::mesh::v1alpha1::ProxyConfig;

/// The `ProxyConfig` for agents with the root certificates, each a PEM text, and no other field.
#[must_use]
pub fn build_trust_bundle(roots: &[Text]) -> ProxyConfig {
    ProxyConfig { ca_certificates_pem: roots.iter().map(ToString::to_string).collect(), ..ProxyConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_bundle_contains_only_root_certificates() {
        let bundle = build_trust_bundle(&["one".into(), "two".into()]);
        let json = sluice_proto::json::encode(&bundle).expect("JSON");
        assert_eq!(json, serde_json::json!({"caCertificatesPem": ["one", "two"]}));
    }
}
