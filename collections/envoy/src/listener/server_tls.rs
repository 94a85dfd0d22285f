//! TLS termination of Gateway servers (N22, P17).

use envoy_types::pb::envoy::config::core::v3::DataSource;
use envoy_types::pb::envoy::config::core::v3::data_source::Specifier;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::certificate_validation_context::TrustChainVerification;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::{
    CombinedCertificateValidationContext, ValidationContextType,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::tls_parameters::TlsProtocol as EnvoyTlsProtocol;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, SdsSecretConfig, TlsParameters,
};
use sluice_model::{ProviderKind, ServerTls, ServerTlsMode, Text, TlsProtocol, TlsVersion, is_cipher_suite};

use crate::compliance::enforce;
use crate::listener_settings::ListenerSettings;
use crate::proxy_metadata::CertificateFiles;
use crate::sds::{
    EXTERNAL, MESH_ROOTS, ROOTS_SUFFIX, WORKLOAD_CERTIFICATE, agent_secret, credential, external_secret,
    file_certificate, file_roots,
};
use crate::string_match::exact;
use crate::wire::boolean;

/// Protocol inside of TLS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TlsPayload {
    /// TCP.
    Bytes,
    /// HTTP.
    Http,
    /// HTTP/3 over QUIC.
    Http3,
}

/// The TLS context of a server.
pub(super) fn server_tls(settings: &ListenerSettings, tls: &ServerTls, carries: TlsPayload) -> DownstreamTlsContext {
    // Envoy does not support client certificates over QUIC.
    let requires =
        carries != TlsPayload::Http3 && matches!(tls.mode, ServerTlsMode::Mutual | ServerTlsMode::IstioMutual);
    let validates = requires || tls.mode == ServerTlsMode::OptionalMutual;
    let protocols: &[&str] = match carries {
        // Peers in the mesh may exchange metadata before the first byte.
        TlsPayload::Bytes if tls.mode == ServerTlsMode::IstioMutual => settings.switches.tcp_protocols(),
        TlsPayload::Bytes | TlsPayload::Http => &["h2", "http/1.1"],
        TlsPayload::Http3 => &["h3"],
    };
    let mut common = CommonTlsContext {
        alpn_protocols: protocols.iter().map(|name| (*name).to_owned()).collect(),
        ..CommonTlsContext::default()
    };
    if tls.mode == ServerTlsMode::IstioMutual {
        let files = settings.profile.server_certificates.clone().unwrap_or_default();
        by_file(settings, tls, &files, &[], validates, &mut common);
    } else if !tls.credential_names.is_empty() || !tls.credential_name.is_empty() {
        by_credential(settings, tls, &mut common);
    } else {
        let file = |chain: &Text, key: &Text| CertificateFiles {
            chain: chain.clone(),
            key: key.clone(),
            root: tls.ca_certificates.clone(),
        };
        let several: Vec<CertificateFiles> =
            tls.tls_certificates.iter().map(|files| file(&files.server_certificate, &files.private_key)).collect();
        by_file(settings, tls, &file(&tls.server_certificate, &tls.private_key), &several, validates, &mut common);
    }
    if tls.mode != ServerTlsMode::IstioMutual {
        common.tls_params = parameters(settings, tls);
    }
    enforce(settings.security.compliance, &mut common);
    DownstreamTlsContext {
        common_tls_context: Some(common),
        require_client_certificate: Some(boolean(requires)),
        ..DownstreamTlsContext::default()
    }
}

/// Certificate files of the proxy. The agent serves them over SDS and again when they change.
fn by_file(
    settings: &ListenerSettings,
    tls: &ServerTls,
    files: &CertificateFiles,
    several: &[CertificateFiles],
    validates: bool,
    common: &mut CommonTlsContext,
) {
    let all = if several.is_empty() { std::slice::from_ref(files) } else { several };
    common.tls_certificate_sds_secret_configs = all.iter().map(|files| certificate(settings, files)).collect();
    if !validates {
        return;
    }
    let crl = (!tls.ca_crl.is_empty())
        .then(|| DataSource { specifier: Some(Specifier::Filename(tls.ca_crl.to_string())), ..DataSource::default() });
    let context = CertificateValidationContext { crl, ..validation(tls) };
    common.validation_context_type = Some(combined(context, Some(roots(settings, files))));
}

/// The certificate of the proxy: that of the mesh unless files are configured.
pub(super) fn certificate(settings: &ListenerSettings, files: &CertificateFiles) -> SdsSecretConfig {
    if files.chain.is_empty() || files.key.is_empty() {
        return agent_secret(WORKLOAD_CERTIFICATE);
    }
    file_certificate(&files.chain, &files.key, settings.profile.file_credential_socket)
}

/// The root certificates for clients: those of the mesh unless a file is configured.
pub(super) fn roots(settings: &ListenerSettings, files: &CertificateFiles) -> SdsSecretConfig {
    if files.root.is_empty() {
        return agent_secret(MESH_ROOTS);
    }
    file_roots(&files.root, settings.profile.file_credential_socket)
}

/// Certificates from Secrets of the cluster or from an external SDS server.
fn by_credential(settings: &ListenerSettings, tls: &ServerTls, common: &mut CommonTlsContext) {
    let single = std::slice::from_ref(&tls.credential_name);
    let names = if tls.credential_names.is_empty() { single } else { &tls.credential_names };
    let certificates = names.iter().filter_map(|name| server_credential(settings, name));
    common.tls_certificate_sds_secret_configs = certificates.collect();
    if matches!(tls.mode, ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual) {
        // Envoy supports one set of roots, so those of the first credential are used.
        let beside = || names.first().map(|name| format!("{name}{ROOTS_SUFFIX}")).unwrap_or_default();
        let named = &tls.ca_cert_credential_name;
        let roots = if named.is_empty() { beside() } else { named.to_string() };
        let context = CertificateValidationContext {
            verify_certificate_spki: tls.verify_certificate_spki.iter().map(Text::to_string).collect(),
            verify_certificate_hash: tls.verify_certificate_hash.iter().map(Text::to_string).collect(),
            ..validation(tls)
        };
        common.validation_context_type = Some(combined(context, server_credential(settings, &roots)));
    } else if !tls.subject_alt_names.is_empty() {
        let context = CertificateValidationContext { trust_chain_verification: 0, ..validation(tls) };
        common.validation_context_type = Some(ValidationContextType::ValidationContext(context));
    }
}

/// The SDS configuration of a server's credential. It may refer to an SDS provider of `MeshConfig`, unlike in rules.
fn server_credential(settings: &ListenerSettings, name: &str) -> Option<SdsSecretConfig> {
    if let Some(resource) = name.strip_prefix(EXTERNAL).filter(|_| !settings.profile.credential_socket) {
        let declared = settings.mesh.extension_providers.iter().find_map(|provider| match &provider.kind {
            ProviderKind::Sds { service, .. } => Some(service),
            _ => None,
        });
        if let Some(service) = declared {
            // The provider's service does not exist.
            let found = settings.collectors.get(service)?;
            return Some(external_secret(resource, &found.cluster, &found.host));
        }
    }
    Some(credential(name, settings.profile.credential_socket))
}

#[expect(deprecated, reason = "the reference uses the untyped matchers, which match every kind of name")]
fn validation(tls: &ServerTls) -> CertificateValidationContext {
    let trust = if tls.insecure_skip_verify == Some(true) {
        TrustChainVerification::AcceptUntrusted
    } else {
        TrustChainVerification::VerifyTrustChain
    };
    CertificateValidationContext {
        match_subject_alt_names: tls.subject_alt_names.iter().map(|name| exact(name)).collect(),
        trust_chain_verification: trust as i32,
        ..CertificateValidationContext::default()
    }
}

fn combined(context: CertificateValidationContext, roots: Option<SdsSecretConfig>) -> ValidationContextType {
    ValidationContextType::CombinedValidationContext(CombinedCertificateValidationContext {
        default_validation_context: Some(context),
        validation_context_sds_secret_config: roots,
        ..CombinedCertificateValidationContext::default()
    })
}

/// TLS versions, cipher suites and curves of the server or else of the mesh; `None` if neither sets any.
fn parameters(settings: &ListenerSettings, tls: &ServerTls) -> Option<TlsParameters> {
    let texts = |list: &[Text]| list.iter().map(Text::to_string).collect::<Vec<_>>();
    let mut params = TlsParameters::default();
    if let Some(defaults) = &settings.mesh.tls_defaults {
        params.ecdh_curves = texts(&defaults.ecdh_curves);
        params.cipher_suites = texts(&defaults.cipher_suites);
        params.tls_minimum_protocol_version = match defaults.min_protocol_version {
            TlsVersion::Auto => EnvoyTlsProtocol::TlsAuto,
            TlsVersion::V1_2 => EnvoyTlsProtocol::TlSv12,
            TlsVersion::V1_3 => EnvoyTlsProtocol::TlSv13,
        } as i32;
    }
    if !tls.ecdh_curves.is_empty() {
        params.ecdh_curves = texts(&tls.ecdh_curves);
    }
    let suites = usable_suites(&tls.cipher_suites);
    if !suites.is_empty() {
        params.cipher_suites = suites;
    }
    for (version, field) in [
        (tls.min_protocol_version, &mut params.tls_minimum_protocol_version),
        (tls.max_protocol_version, &mut params.tls_maximum_protocol_version),
    ] {
        match version {
            TlsProtocol::Auto => {}
            TlsProtocol::V1_0 => *field = EnvoyTlsProtocol::TlSv10 as i32,
            TlsProtocol::V1_1 => *field = EnvoyTlsProtocol::TlSv11 as i32,
            TlsProtocol::V1_2 => *field = EnvoyTlsProtocol::TlSv12 as i32,
            TlsProtocol::V1_3 => *field = EnvoyTlsProtocol::TlSv13 as i32,
        }
    }
    (params != TlsParameters::default()).then_some(params)
}

/// Supported cipher suites, without duplicates.
fn usable_suites(written: &[Text]) -> Vec<String> {
    let mut suites: Vec<String> = Vec::new();
    for suite in written {
        if is_cipher_suite(suite) && !suites.iter().any(|taken| *taken == **suite) {
            suites.push(suite.to_string());
        }
    }
    suites
}

#[cfg(test)]
mod tests;
