//! Mutual TLS of inbound listeners (P14).

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::core::v3::{TransportSocket, transport_socket::ConfigType};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, TlsParameters,
    common_tls_context::{CombinedCertificateValidationContext, ValidationContextType},
    tls_parameters::TlsProtocol,
};
use serde::Serialize;
use sluice_model::{MeshConfig, Text, TlsVersion};

use super::server_tls::{certificate, roots};
use crate::compliance::enforce;
use crate::listener_settings::ListenerSettings;
use crate::string_match::in_trust_domain;
use crate::wire::{any, boolean};

/// Mutual TLS mode of a port.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum MtlsMode {
    /// Plain text only. TLS is handled by the application.
    Disable,
    /// Plain text and mutual TLS.
    #[default]
    Permissive,
    /// Mutual TLS only.
    Strict,
}

/// The merged PeerAuthentications of a workload.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct PeerPolicy {
    /// Mode of ports that are not listed.
    pub mode: MtlsMode,
    /// Modes by port of the workload.
    pub ports: BTreeMap<u32, MtlsMode>,
}

impl PeerPolicy {
    /// The mode of a port.
    #[must_use]
    pub fn mode(&self, port: u32) -> MtlsMode {
        self.ports.get(&port).copied().unwrap_or(self.mode)
    }
}

/// Cipher suites of mesh mTLS.
const CIPHER_SUITES: [&str; 6] = [
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-GCM-SHA256",
];

/// TLS context that requires a certificate of the mesh, for HTTP or TCP.
pub(super) fn mesh_tls(settings: &ListenerSettings, http: bool) -> TransportSocket {
    let protocols: &[&str] = if http { &["h2", "http/1.1"] } else { settings.switches.tcp_protocols() };
    let mesh_mtls = settings.mesh.mesh_mtls.clone().unwrap_or_default();
    let cipher_suites = if mesh_mtls.cipher_suites.is_empty() {
        CIPHER_SUITES.map(str::to_owned).to_vec()
    } else {
        mesh_mtls.cipher_suites.iter().map(Text::to_string).collect()
    };
    let lowest = match mesh_mtls.min_protocol_version {
        TlsVersion::V1_3 => TlsProtocol::TlSv13,
        TlsVersion::Auto | TlsVersion::V1_2 => TlsProtocol::TlSv12,
    };
    let domains = if settings.security.any_trust_domain { Vec::new() } else { trust_domains(&settings.mesh) };
    let identities = domains.into_iter().map(|domain| in_trust_domain(domain));
    #[expect(deprecated, reason = "the field proxies of every supported version read")]
    let validation = CertificateValidationContext {
        match_subject_alt_names: identities.collect(),
        ..CertificateValidationContext::default()
    };
    let files = settings.profile.server_certificates.clone().unwrap_or_default();
    let mut common = CommonTlsContext {
        tls_params: Some(TlsParameters {
            tls_minimum_protocol_version: lowest as i32,
            tls_maximum_protocol_version: TlsProtocol::TlSv13 as i32,
            cipher_suites,
            ..TlsParameters::default()
        }),
        tls_certificate_sds_secret_configs: vec![certificate(settings, &files)],
        alpn_protocols: protocols.iter().map(|name| (*name).to_owned()).collect(),
        validation_context_type: Some(ValidationContextType::CombinedValidationContext(
            CombinedCertificateValidationContext {
                default_validation_context: Some(validation),
                validation_context_sds_secret_config: Some(roots(settings, &files)),
                ..CombinedCertificateValidationContext::default()
            },
        )),
        ..CommonTlsContext::default()
    };
    enforce(settings.security.compliance, &mut common);
    let context = DownstreamTlsContext {
        common_tls_context: Some(common),
        require_client_certificate: Some(boolean(true)),
        ..DownstreamTlsContext::default()
    };
    socket(&context)
}

pub(super) fn socket(context: &DownstreamTlsContext) -> TransportSocket {
    TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(ConfigType::TypedConfig(any(context))),
    }
}

/// Trust domains of the mesh without duplicates, its own first.
fn trust_domains(mesh: &MeshConfig) -> Vec<&Text> {
    let more = mesh.ca_certificates.iter().flat_map(|certificate| &certificate.trust_domains);
    let all = std::iter::once(&mesh.trust_domain).chain(&mesh.trust_domain_aliases).chain(more);
    let mut known: Vec<&Text> = Vec::new();
    for domain in all.filter(|domain| !domain.is_empty()) {
        if !known.contains(&domain) {
            known.push(domain);
        }
    }
    known
}
