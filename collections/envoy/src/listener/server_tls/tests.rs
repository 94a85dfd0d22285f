use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::grpc_service::TargetSpecifier;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use prost::Message;
use sluice_model::{
    CompliancePolicy, ExtensionProvider, MeshConfig, ProviderService, TlsCertificateFiles, TlsSettings,
};

use super::*;
use crate::listener_settings::Collector;

fn of(mode: ServerTlsMode, more: impl FnOnce(&mut ServerTls)) -> ServerTls {
    let mut tls = ServerTls { mode, ..ServerTls::default() };
    more(&mut tls);
    tls
}

fn common(settings: &ListenerSettings, tls: &ServerTls) -> CommonTlsContext {
    server_tls(settings, tls, TlsPayload::Http).common_tls_context.unwrap()
}

/// Names of the certificates, and of the roots.
fn secrets(settings: &ListenerSettings, tls: &ServerTls) -> (Vec<String>, Option<String>) {
    let common = common(settings, tls);
    let roots = match common.validation_context_type {
        Some(ValidationContextType::CombinedValidationContext(combined)) => {
            combined.validation_context_sds_secret_config.map(|secret| secret.name)
        }
        _ => None,
    };
    (common.tls_certificate_sds_secret_configs.into_iter().map(|secret| secret.name).collect(), roots)
}

/// The SDS source of a secret: `ads`, or cluster and authority.
fn source_of(secret: &SdsSecretConfig) -> String {
    match secret.sds_config.as_ref().and_then(|config| config.config_source_specifier.as_ref()) {
        Some(ConfigSourceSpecifier::Ads(_)) => "ads".to_owned(),
        Some(ConfigSourceSpecifier::ApiConfigSource(api)) => match &api.grpc_services[0].target_specifier {
            Some(TargetSpecifier::EnvoyGrpc(grpc)) => format!("{}/{}", grpc.cluster_name, grpc.authority),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn server_certificates_come_from_the_declared_source() {
    let settings = ListenerSettings::default();
    let named = of(ServerTlsMode::Mutual, |tls| tls.credential_name = "web".into());
    let one = |name: &str| vec![name.to_owned()];
    assert_eq!(secrets(&settings, &named), (one("kubernetes://web"), Some("kubernetes://web-cacert".into())));
    let own_roots = ServerTls { ca_cert_credential_name: "configmap://edge/roots".into(), ..named };
    assert_eq!(secrets(&settings, &own_roots).1.as_deref(), Some("configmap://edge/roots"));
    let two = of(ServerTlsMode::OptionalMutual, |tls| tls.credential_names = vec!["rsa".into(), "ecdsa".into()]);
    let both = vec!["kubernetes://rsa".to_owned(), "kubernetes://ecdsa".to_owned()];
    assert_eq!(secrets(&settings, &two), (both, Some("kubernetes://rsa-cacert".into())));
    let simple = of(ServerTlsMode::Simple, |tls| tls.credential_name = "web".into());
    assert_eq!(secrets(&settings, &simple), (one("kubernetes://web"), None));
    let files = of(ServerTlsMode::Mutual, |tls| {
        tls.ca_certificates = "/ca".into();
        let pair = |n: u8| TlsCertificateFiles {
            server_certificate: format!("/c{n}").into(),
            private_key: format!("/k{n}").into(),
            ..TlsCertificateFiles::default()
        };
        tls.tls_certificates = vec![pair(1), pair(2)];
    });
    let pairs = vec!["file-cert:/c1~/k1".to_owned(), "file-cert:/c2~/k2".to_owned()];
    assert_eq!(secrets(&settings, &files), (pairs, Some("file-root:/ca".into())));
    let mesh = of(ServerTlsMode::IstioMutual, |_| {});
    assert_eq!(secrets(&settings, &mesh), (one("default"), Some("ROOTCA".into())));
    let mut with_files = ListenerSettings::default();
    with_files.profile.server_certificates =
        Some(CertificateFiles { chain: "/c".into(), key: "/k".into(), root: "/r".into() });
    assert_eq!(secrets(&with_files, &mesh), (one("file-cert:/c~/k"), Some("file-root:/r".into())));
}

#[test]
fn external_secret_uses_socket_then_provider_then_ads() {
    let tls = of(ServerTlsMode::Simple, |tls| tls.credential_name = "sds://web".into());
    let sources = |settings: &ListenerSettings| {
        let secrets = common(settings, &tls).tls_certificate_sds_secret_configs;
        secrets.iter().map(|secret| format!("{} of {}", secret.name, source_of(secret))).collect::<Vec<_>>()
    };
    let mut settings = ListenerSettings::default();
    assert_eq!(sources(&settings), ["kubernetes://web of ads"]);
    let service = ProviderService { service: "sds.ops.svc.cluster.local".into(), port: 8080 };
    let kind = ProviderKind::Sds { name: "s".into(), service: service.clone() };
    let extension_providers = vec![ExtensionProvider { name: "sds".into(), kind }];
    settings.mesh = Arc::new(MeshConfig { extension_providers, ..MeshConfig::default() });
    assert_eq!(sources(&settings), [""; 0], "no SDS server provides it");
    let found = Collector { host: service.service.clone(), cluster: "outbound|8080||sds".into() };
    settings.collectors.insert(service, found);
    assert_eq!(sources(&settings), ["web of outbound|8080||sds/sds.ops.svc.cluster.local"]);
    settings.profile.credential_socket = true;
    assert_eq!(sources(&settings), ["sds://web of sds-external/"]);
}

#[test]
fn tls_parameters_of_the_server_override_the_mesh() {
    let params = |settings: &ListenerSettings, tls: &ServerTls| {
        common(settings, tls).tls_params.map(|params| {
            (params.tls_minimum_protocol_version, params.tls_maximum_protocol_version, params.cipher_suites)
        })
    };
    let mut settings = ListenerSettings::default();
    let silent = of(ServerTlsMode::Simple, |tls| tls.credential_name = "web".into());
    assert_eq!(params(&settings, &silent), None);
    let strict = ServerTls {
        min_protocol_version: TlsProtocol::V1_1,
        max_protocol_version: TlsProtocol::V1_3,
        cipher_suites: ["AES128-SHA", "NO-SUCH", "AES128-SHA", "-ALL"].map(Text::from).to_vec(),
        ..silent.clone()
    };
    let suites = vec!["AES128-SHA".to_owned(), "-ALL".to_owned()];
    assert_eq!(params(&settings, &strict), Some((2, 4, suites)));
    let defaults =
        TlsSettings { min_protocol_version: TlsVersion::V1_3, cipher_suites: vec!["X".into()], ..Default::default() };
    settings.mesh = Arc::new(MeshConfig { tls_defaults: Some(defaults), ..MeshConfig::default() });
    assert_eq!(params(&settings, &silent), Some((4, 0, vec!["X".to_owned()])));
    assert_eq!(params(&settings, &of(ServerTlsMode::IstioMutual, |_| {})), None);
}

#[test]
fn client_verification_follows_the_mode() {
    let settings = ListenerSettings::default();
    let required = |mode| {
        let tls = of(mode, |tls| tls.credential_name = "web".into());
        server_tls(&settings, &tls, TlsPayload::Http).require_client_certificate.unwrap().value
    };
    use ServerTlsMode::{IstioMutual, Mutual, OptionalMutual, Simple};
    assert_eq!([Simple, OptionalMutual, Mutual, IstioMutual].map(required), [false, false, true, true]);
    let protocols = |mode, carries| {
        let context = server_tls(&settings, &of(mode, |_| {}), carries);
        context.common_tls_context.unwrap().alpn_protocols.len()
    };
    let of_mesh =
        [TlsPayload::Bytes, TlsPayload::Http, TlsPayload::Http3].map(|carries| protocols(IstioMutual, carries));
    assert_eq!(of_mesh, [3, 2, 1]);
    assert_eq!(protocols(Simple, TlsPayload::Bytes), 2);
    let over_quic = of(Mutual, |tls| tls.credential_name = "web".into());
    assert!(!server_tls(&settings, &over_quic, TlsPayload::Http3).require_client_certificate.unwrap().value);
}

#[test]
fn compliance_policy_limits_server_tls_and_mutual_tls() {
    let mut settings = ListenerSettings::default();
    settings.security.compliance = Some(CompliancePolicy::Fips140V2);
    let versions = |context: CommonTlsContext| {
        let params = context.tls_params.unwrap();
        (params.tls_minimum_protocol_version, params.tls_maximum_protocol_version, params.cipher_suites.len())
    };
    let only_12 = (EnvoyTlsProtocol::TlSv12 as i32, EnvoyTlsProtocol::TlSv12 as i32);
    for mode in [ServerTlsMode::Simple, ServerTlsMode::Mutual, ServerTlsMode::IstioMutual] {
        let tls = of(mode, |tls| {
            tls.credential_name = "web".into();
            tls.min_protocol_version = TlsProtocol::V1_3;
        });
        assert_eq!(versions(common(&settings, &tls)), (only_12.0, only_12.1, 0), "{mode:?}");
    }
    let socket = super::super::mtls::mesh_tls(&settings, true);
    let Some(ConfigType::TypedConfig(config)) = socket.config_type else { panic!("no configuration") };
    let mesh = DownstreamTlsContext::decode(config.value.as_slice()).unwrap().common_tls_context.unwrap();
    assert_eq!(versions(mesh), (only_12.0, only_12.1, 4), "two of the usual suites are none of the policy's");
}
