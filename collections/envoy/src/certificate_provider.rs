//! TLS of gRPC clients and servers without an Envoy: certificates come from a plugin of the gRPC library (X28).

use envoy_types::pb::envoy::config::core::v3::{TransportSocket, transport_socket::ConfigType};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateProviderPluginInstance, CertificateValidationContext, CommonTlsContext, DownstreamTlsContext,
    UpstreamTlsContext,
    common_tls_context::{CertificateProviderInstance, CombinedCertificateValidationContext, ValidationContextType},
};
use sluice_model::Text;

use crate::string_match::exact;
use crate::wire::{any, boolean};

/// The only name of a transport socket that gRPC libraries accept for TLS.
const TLS_SOCKET: &str = "envoy.transport_sockets.tls";
/// The plugin in the bootstrap file of the agent, and the name of the certificate of the workload.
const DEFAULT: &str = "default";
/// Name of the root certificates.
const ROOTS: &str = "ROOTCA";

/// Mutual TLS of a client with the certificate of the workload. `identities` are the accepted identities of servers;
/// without any, each identity of the mesh is accepted.
pub(crate) fn upstream_tls(identities: &[Text]) -> TransportSocket {
    let context = UpstreamTlsContext { common_tls_context: Some(common(identities)), ..UpstreamTlsContext::default() };
    TransportSocket { name: TLS_SOCKET.to_owned(), config_type: Some(ConfigType::TypedConfig(any(&context))) }
}

/// Mutual TLS of a server with the certificate of the workload. gRPC libraries reject accepted identities of clients here.
pub(crate) fn downstream_tls() -> TransportSocket {
    let context = DownstreamTlsContext {
        common_tls_context: Some(common(&[])),
        require_client_certificate: Some(boolean(true)),
        ..DownstreamTlsContext::default()
    };
    TransportSocket { name: TLS_SOCKET.to_owned(), config_type: Some(ConfigType::TypedConfig(any(&context))) }
}

/// Certificate and roots, in the current fields and in the deprecated ones, which libraries before gRPC 1.66 read.
#[expect(deprecated, reason = "older gRPC libraries read only the deprecated fields")]
fn common(identities: &[Text]) -> CommonTlsContext {
    let current = |name: &str| CertificateProviderPluginInstance {
        instance_name: DEFAULT.to_owned(),
        certificate_name: name.to_owned(),
    };
    let deprecated = |name: &str| CertificateProviderInstance {
        instance_name: DEFAULT.to_owned(),
        certificate_name: name.to_owned(),
    };
    let validation = CertificateValidationContext {
        match_subject_alt_names: identities.iter().map(|identity| exact(identity)).collect(),
        ca_certificate_provider_instance: Some(current(ROOTS)),
        ..CertificateValidationContext::default()
    };
    CommonTlsContext {
        tls_certificate_provider_instance: Some(current(DEFAULT)),
        tls_certificate_certificate_provider_instance: Some(deprecated(DEFAULT)),
        validation_context_type: Some(ValidationContextType::CombinedValidationContext(
            CombinedCertificateValidationContext {
                default_validation_context: Some(validation),
                validation_context_certificate_provider_instance: Some(deprecated(ROOTS)),
                ..CombinedCertificateValidationContext::default()
            },
        )),
        ..CommonTlsContext::default()
    }
}
