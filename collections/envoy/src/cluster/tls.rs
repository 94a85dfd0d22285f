//! Upstream TLS: from the rule, or automatic mutual TLS (N12).

use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::data_source::Specifier;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::config::core::v3::{
    DataSource, ProxyProtocolConfig, TransportSocket, UpstreamHttpProtocolOptions,
};
use envoy_types::pb::envoy::extensions::clusters::dynamic_forward_proxy::v3::ClusterConfig;
use envoy_types::pb::envoy::extensions::transport_sockets::proxy_protocol::v3::ProxyProtocolUpstreamTransport;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::{
    CombinedCertificateValidationContext, ValidationContextType,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::tls_parameters::TlsProtocol;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, SdsSecretConfig, TlsParameters, UpstreamTlsContext,
};
use prost::Message;
use sluice_model::{ClientCredential, ClientTls, ClientTlsMode, CredentialKind, ProxyType, Text};

use super::draft::Draft;
use super::hbone::apply_hbone;
use super::transport_socket::{by_tls_mode, plain_match, raw_buffer};
use super::{ClusterProfile, ClusterSettings};
use crate::alpn::{ISTIO, PEER_EXCHANGE};
use crate::compliance::enforce;
use crate::sds::{
    MESH_ROOTS, ROOTS_SUFFIX, WORKLOAD_CERTIFICATE, agent_secret, credential, file_certificate, file_roots,
};
use crate::string_match::exact;
use crate::wire::any;

/// Inputs of the TLS of a cluster besides the rule.
pub(super) struct TlsInputs<'a> {
    pub(super) settings: &'a ClusterSettings,
    pub(super) profile: &'a ClusterProfile,
    /// Identities of the service's workloads.
    pub(super) identities: &'a [Text],
    /// Subject alternative names of a ServiceEntry, used if the rule has none.
    pub(super) declared_names: Option<&'a [Text]>,
    /// SNI of mutual TLS; empty for the host of the request.
    pub(super) sni: String,
    /// Whether the service is outside of the mesh, which disables automatic mutual TLS.
    pub(super) external: bool,
    /// Whether the service accepts mutual TLS.
    pub(super) takes_mtls: bool,
    /// Whether the rule applies to selected workloads only.
    pub(super) selected_clients: bool,
    /// Which Secrets the control plane serves.
    pub(super) is_served: IsServed<'a>,
}

/// Whether the control plane serves the Secret with this SDS resource name to the proxies of a cluster.
pub type IsServed<'a> = &'a dyn Fn(&str) -> bool;

/// All Secrets are served.
pub fn all_served(_: &str) -> bool {
    true
}

impl TlsInputs<'_> {
    /// Whether a proxy receives a Secret, from the control plane or from another SDS server.
    fn receives(&self, secret: &SdsSecretConfig) -> bool {
        let source = secret.sds_config.as_ref().and_then(|source| source.config_source_specifier.as_ref());
        let by_ads = matches!(source, Some(ConfigSourceSpecifier::Ads(_)));
        !by_ads || (!self.profile.anonymous && (self.is_served)(&secret.name))
    }
}

/// Applies the TLS settings of a rule, or automatic mutual TLS by endpoint metadata.
pub(super) fn apply_tls(draft: &mut Draft, inputs: &TlsInputs<'_>, declared: Option<&ClientTls>) {
    let baggage = inputs.settings.switches.tunnels.baggage;
    let (tls, automatic) = match (declared, automatic(inputs)) {
        (Some(tls), _) => (completed(inputs, tls), false),
        (None, Some(tls)) => (tls, true),
        (None, None) => {
            if inputs.settings.sends_hbone {
                apply_hbone(draft, None, false, baggage);
            }
            return;
        }
    };
    draft.cluster.transport_socket = context(draft, inputs, &tls).map(|context| tls_socket(&context));
    let mutual = automatic && tls.mode == ClientTlsMode::IstioMutual;
    if inputs.settings.sends_hbone {
        apply_hbone(draft, Some(tls.mode), mutual, baggage);
    } else if mutual
        && !draft.is(DiscoveryType::OriginalDst)
        && let Some(socket) = draft.cluster.transport_socket.take()
    {
        draft.cluster.transport_socket_matches = vec![by_tls_mode(socket), plain_match()];
    }
}

/// Wraps the transport sockets in the PROXY protocol.
pub(super) fn apply_proxy_protocol(draft: &mut Draft, version: Option<u8>) {
    let Some(version) = version else { return };
    let wrap = |name: &str, inner: TransportSocket| {
        let transport = ProxyProtocolUpstreamTransport {
            config: Some(ProxyProtocolConfig {
                version: i32::from(version.saturating_sub(1)),
                ..ProxyProtocolConfig::default()
            }),
            transport_socket: Some(inner),
            ..ProxyProtocolUpstreamTransport::default()
        };
        TransportSocket { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(any(&transport))) }
    };
    const NAME: &str = "envoy.transport_sockets.upstream_proxy_protocol";
    let cluster = &mut draft.cluster;
    if cluster.transport_socket_matches.is_empty() {
        let inner = cluster.transport_socket.take().unwrap_or_else(|| raw_buffer("raw_buffer"));
        cluster.transport_socket = Some(wrap(NAME, inner));
    }
    for candidate in &mut cluster.transport_socket_matches {
        candidate.transport_socket = candidate.transport_socket.take().map(|inner| wrap(NAME, inner));
    }
}

/// A TLS transport socket; `None` if the settings disable TLS or are not usable.
pub(super) fn socket(draft: &mut Draft, inputs: &TlsInputs<'_>, tls: &ClientTls) -> Option<TransportSocket> {
    context(draft, inputs, tls).map(|context| tls_socket(&context))
}

/// Mutual TLS with the mesh certificate or with the certificates of the proxy's metadata.
fn automatic(inputs: &TlsInputs<'_>) -> Option<ClientTls> {
    if inputs.external || !inputs.settings.auto_mtls || !inputs.takes_mtls {
        return None;
    }
    let names = inputs.identities.to_vec();
    let sni = Text::from(inputs.sni.as_str());
    Some(match &inputs.profile.certificates {
        Some(_) => with_metadata_certificates(inputs, names, sni, None),
        None => ClientTls { mode: ClientTlsMode::IstioMutual, subject_alt_names: names, sni, ..ClientTls::default() },
    })
}

/// The declared settings, completed with the values of the mesh.
fn completed(inputs: &TlsInputs<'_>, tls: &ClientTls) -> ClientTls {
    if matches!(tls.mode, ClientTlsMode::Disable | ClientTlsMode::Simple) {
        return tls.clone();
    }
    if inputs.profile.certificates.is_some() {
        // Certificates of the metadata are for the mesh. A server outside of the mesh may require others.
        if inputs.external {
            return tls.clone();
        }
        return with_metadata_certificates(
            inputs,
            tls.subject_alt_names.clone(),
            tls.sni.clone(),
            tls.insecure_skip_verify,
        );
    }
    if tls.mode != ClientTlsMode::IstioMutual {
        return tls.clone();
    }
    let names =
        if tls.subject_alt_names.is_empty() { inputs.identities.to_vec() } else { tls.subject_alt_names.clone() };
    ClientTls {
        mode: ClientTlsMode::IstioMutual,
        subject_alt_names: names,
        sni: if tls.sni.is_empty() { Text::from(inputs.sni.as_str()) } else { tls.sni.clone() },
        insecure_skip_verify: tls.insecure_skip_verify,
        ..ClientTls::default()
    }
}

fn with_metadata_certificates(
    inputs: &TlsInputs<'_>,
    subject_alt_names: Vec<Text>,
    sni: Text,
    insecure_skip_verify: Option<bool>,
) -> ClientTls {
    let files = inputs.profile.certificates.clone().unwrap_or_default();
    ClientTls {
        mode: ClientTlsMode::Mutual,
        ca_certificates: files.root,
        client_certificate: files.chain,
        private_key: files.key,
        subject_alt_names,
        sni,
        insecure_skip_verify,
        ..ClientTls::default()
    }
}

fn context(draft: &mut Draft, inputs: &TlsInputs<'_>, tls: &ClientTls) -> Option<UpstreamTlsContext> {
    // With a rule for all workloads, every sidecar would wait for a Secret that most of them must not read.
    let secret = tls.credential.name().is_some_and(|name| !name.starts_with(CredentialKind::ConfigMap.prefix()));
    let sidecar = inputs.profile.proxy_type == ProxyType::Sidecar;
    if secret
        && sidecar
        && !inputs.selected_clients
        && matches!(tls.mode, ClientTlsMode::Simple | ClientTlsMode::Mutual)
    {
        return None;
    }
    let mut context = match tls.mode {
        ClientTlsMode::Disable => None,
        ClientTlsMode::IstioMutual => Some(istio_mutual(draft, inputs.settings, tls)),
        ClientTlsMode::Simple => Some(user_tls(draft, inputs, tls, false)),
        ClientTlsMode::Mutual => Some(user_tls(draft, inputs, tls, true)),
    };
    if let Some(common) = context.as_mut().and_then(|context| context.common_tls_context.as_mut()) {
        enforce(inputs.settings.compliance, common);
    }
    context
}

fn istio_mutual(draft: &mut Draft, settings: &ClusterSettings, tls: &ClientTls) -> UpstreamTlsContext {
    let mut common = common_context();
    common.tls_certificate_sds_secret_configs.push(agent_secret(WORKLOAD_CERTIFICATE));
    common.validation_context_type = Some(verified_by(agent_secret(MESH_ROOTS), &tls.subject_alt_names, ""));
    let exchange = settings.switches.peer_exchange.then_some(PEER_EXCHANGE);
    let http2 = draft.speaks_http2().then_some("h2");
    common.alpn_protocols = exchange.into_iter().chain([ISTIO]).chain(http2).map(str::to_owned).collect();
    let sni = if tls.sni.is_empty() && !draft.dynamic_dns { draft.cluster.name.clone() } else { tls.sni.to_string() };
    if draft.dynamic_dns {
        set_auto_sni(draft, tls);
    }
    UpstreamTlsContext { common_tls_context: Some(common), sni, ..UpstreamTlsContext::default() }
}

/// The TLS context of modes SIMPLE and MUTUAL.
fn user_tls(draft: &mut Draft, inputs: &TlsInputs<'_>, tls: &ClientTls, mutual: bool) -> UpstreamTlsContext {
    set_auto_sni(draft, tls);
    let mut common = common_context();
    match user_certificates(inputs, tls, mutual) {
        Some((certificate, validation)) => {
            common.tls_certificate_sds_secret_configs.extend(certificate);
            common.validation_context_type = validation;
        }
        None => common.validation_context_type = Some(never_verified()),
    }
    if let (Some(defaults), Some(params)) = (&inputs.settings.tls_defaults, common.tls_params.as_mut()) {
        params.ecdh_curves = defaults.ecdh_curves.iter().map(Text::to_string).collect();
        params.cipher_suites = defaults.cipher_suites.iter().map(Text::to_string).collect();
    }
    if draft.speaks_http2() {
        common.alpn_protocols = vec!["h2".to_owned()];
    }
    UpstreamTlsContext { common_tls_context: Some(common), sni: tls.sni.to_string(), ..UpstreamTlsContext::default() }
}

/// The client certificate in mode MUTUAL, and how the server is verified. `None` if the proxy does not receive one of both: while
/// Envoy waits for a Secret, it uses the previous cluster, which may send in plaintext.
fn user_certificates(
    inputs: &TlsInputs<'_>,
    tls: &ClientTls,
    mutual: bool,
) -> Option<(Option<SdsSecretConfig>, Option<ValidationContextType>)> {
    let names = match inputs.declared_names {
        Some(declared) if tls.subject_alt_names.is_empty() => declared,
        _ => &tls.subject_alt_names,
    };
    let unverified = tls.insecure_skip_verify == Some(true);
    match &tls.credential {
        ClientCredential::Unusable => None,
        ClientCredential::Named(name) => {
            let socket = inputs.profile.credential_socket;
            let certificate = mutual.then(|| credential(name, socket));
            let roots = (!unverified).then(|| credential(&format!("{name}{ROOTS_SUFFIX}"), socket));
            let received = certificate.iter().chain(&roots).all(|secret| inputs.receives(secret));
            received.then(|| (certificate, roots.map(|roots| verified_by(roots, names, ""))))
        }
        ClientCredential::None => {
            let custom = inputs.profile.file_credential_socket;
            if mutual && (tls.client_certificate.is_empty() || tls.private_key.is_empty()) {
                return None;
            }
            let certificate = mutual.then(|| file_certificate(&tls.client_certificate, &tls.private_key, custom));
            let validation = if unverified {
                ValidationContextType::ValidationContext(CertificateValidationContext::default())
            } else {
                let roots = if tls.ca_certificates.is_empty() { "system" } else { tls.ca_certificates.as_str() };
                verified_by(file_roots(roots, custom), names, &tls.ca_crl)
            };
            Some((certificate, Some(validation)))
        }
    }
}

/// Without a declared SNI, uses the host of the request and verifies the certificate against it.
fn set_auto_sni(draft: &mut Draft, tls: &ClientTls) {
    let unverified = tls.insecure_skip_verify == Some(true);
    let auto_sni = tls.sni.is_empty();
    let auto_names = !unverified && (draft.dynamic_dns || (auto_sni && tls.subject_alt_names.is_empty()));
    if draft.dynamic_dns && (unverified || !auto_sni || !auto_names) {
        allow_insecure(draft);
    }
    if auto_sni || auto_names {
        let options =
            draft.http().upstream_http_protocol_options.get_or_insert_with(UpstreamHttpProtocolOptions::default);
        options.auto_sni |= auto_sni;
        options.auto_san_validation |= auto_names;
    }
}

/// Disables the name checks of a cluster that resolves hosts itself.
fn allow_insecure(draft: &mut Draft) {
    if let Some(ClusterDiscoveryType::ClusterType(custom)) = &mut draft.cluster.cluster_discovery_type
        && let Some(config) = &mut custom.typed_config
        && let Ok(mut cluster) = ClusterConfig::decode(config.value.as_slice())
    {
        cluster.allow_insecure_cluster_options = true;
        *config = any(&cluster);
    }
}

#[expect(deprecated, reason = "the reference uses the untyped matchers, which match every kind of name")]
fn verified_by(roots: SdsSecretConfig, names: &[Text], crl: &str) -> ValidationContextType {
    let context = CertificateValidationContext {
        match_subject_alt_names: names.iter().map(|name| exact(name)).collect(),
        crl: (!crl.is_empty())
            .then(|| DataSource { specifier: Some(Specifier::Filename(crl.to_owned())), ..DataSource::default() }),
        ..CertificateValidationContext::default()
    };
    ValidationContextType::CombinedValidationContext(CombinedCertificateValidationContext {
        default_validation_context: Some(context),
        validation_context_sds_secret_config: Some(roots),
        ..CombinedCertificateValidationContext::default()
    })
}

/// Accepts no certificate, so that every handshake fails. The reference names a Secret that is not served instead. Envoy
/// waits 15 s for it, and until then a cluster that had no TLS before sends in plaintext.
fn never_verified() -> ValidationContextType {
    const SHA256_HEX_DIGITS: usize = 64;
    ValidationContextType::ValidationContext(CertificateValidationContext {
        verify_certificate_hash: vec!["0".repeat(SHA256_HEX_DIGITS)],
        ..CertificateValidationContext::default()
    })
}

fn common_context() -> CommonTlsContext {
    CommonTlsContext {
        tls_params: Some(TlsParameters {
            tls_minimum_protocol_version: TlsProtocol::TlSv12 as i32,
            tls_maximum_protocol_version: TlsProtocol::TlSv13 as i32,
            ..TlsParameters::default()
        }),
        ..CommonTlsContext::default()
    }
}

fn tls_socket(context: &UpstreamTlsContext) -> TransportSocket {
    TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(ConfigType::TypedConfig(any(context))),
    }
}
