//! SDS configurations: the sources of certificates (N12, P17).

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::api_config_source::ApiType;
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::grpc_service::{EnvoyGrpc, TargetSpecifier};
use envoy_types::pb::envoy::config::core::v3::{
    AggregatedConfigSource, ApiConfigSource, ApiVersion, ConfigSource, GrpcService,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::SdsSecretConfig;

pub use sluice_model::ROOTS_SUFFIX;
use sluice_model::{BUILTIN_CREDENTIAL, CredentialKind, INVALID_CREDENTIAL};

use crate::name::SDS_EXTERNAL_CLUSTER;
use crate::wire::duration;

/// Resource name of the workload certificate.
pub(crate) const WORKLOAD_CERTIFICATE: &str = "default";
/// Resource name of the root certificates of the mesh.
pub(crate) const MESH_ROOTS: &str = "ROOTCA";

/// Cluster of the agent's SDS server, which the bootstrap declares.
const AGENT_CLUSTER: &str = "sds-grpc";
/// Cluster of a custom SDS server for files, which the bootstrap declares.
const FILES_CLUSTER: &str = "sds-files-grpc";
/// Prefix of a credential from an external SDS server.
pub(crate) const EXTERNAL: &str = "sds://";
/// Prefixes of credentials that are resource names already.
const TYPED: [&str; 3] =
    [CredentialKind::ConfigMap.prefix(), CredentialKind::Secret.prefix(), CredentialKind::GatewaySecret.prefix()];

/// The SDS configuration of a secret from the agent.
#[must_use]
pub(crate) fn agent_secret(name: &str) -> SdsSecretConfig {
    let mut secret = grpc_secret(name, AGENT_CLUSTER);
    // The agent always delivers the mesh certificate, so the proxy waits without a timeout.
    if let (WORKLOAD_CERTIFICATE | MESH_ROOTS, Some(source)) = (name, secret.sds_config.as_mut()) {
        source.initial_fetch_timeout = Some(duration(Duration::ZERO));
    }
    secret
}

/// The SDS configuration of a certificate from files.
#[must_use]
pub(crate) fn file_certificate(chain: &str, key: &str, custom_server: bool) -> SdsSecretConfig {
    file_secret(&format!("file-cert:{chain}~{key}"), custom_server)
}

/// The SDS configuration of root certificates from a file; the file `system` is that of the operating system.
#[must_use]
pub(crate) fn file_roots(file: &str, custom_server: bool) -> SdsSecretConfig {
    file_secret(&format!("file-root:{file}"), custom_server)
}

/// The SDS configuration of a secret from files, served by the agent or by a custom server.
fn file_secret(name: &str, custom_server: bool) -> SdsSecretConfig {
    if custom_server { grpc_secret(name, FILES_CLUSTER) } else { agent_secret(name) }
}

/// The SDS configuration of the credential of a rule.
#[must_use]
pub fn credential(name: &str, credential_socket: bool) -> SdsSecretConfig {
    if name == BUILTIN_CREDENTIAL {
        return agent_secret(WORKLOAD_CERTIFICATE);
    }
    if name.strip_prefix(BUILTIN_CREDENTIAL) == Some(ROOTS_SUFFIX) {
        return agent_secret(MESH_ROOTS);
    }
    let name = match name.strip_prefix(EXTERNAL) {
        Some(_) if credential_socket => return grpc_secret(name, SDS_EXTERNAL_CLUSTER),
        Some(resource) => resource,
        None => name,
    };
    SdsSecretConfig {
        name: credential_resource(name),
        sds_config: Some(ConfigSource {
            resource_api_version: ApiVersion::V3 as i32,
            config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource::default())),
            ..ConfigSource::default()
        }),
    }
}

/// The SDS configuration of a secret from an SDS provider of `MeshConfig`.
pub(crate) fn external_secret(name: &str, cluster: &str, host: &str) -> SdsSecretConfig {
    sds_secret(name, EnvoyGrpc { cluster_name: cluster.to_owned(), authority: host.to_owned(), ..EnvoyGrpc::default() })
}

/// The SDS resource name of a credential.
#[must_use]
pub fn credential_resource(name: &str) -> String {
    if name.starts_with(BUILTIN_CREDENTIAL) {
        WORKLOAD_CERTIFICATE.to_owned()
    } else if name.starts_with(INVALID_CREDENTIAL) {
        INVALID_CREDENTIAL.to_owned()
    } else if TYPED.iter().any(|prefix| name.starts_with(prefix)) {
        name.to_owned()
    } else {
        format!("{}{name}", CredentialKind::Secret.prefix())
    }
}

fn grpc_secret(name: &str, cluster: &str) -> SdsSecretConfig {
    sds_secret(name, EnvoyGrpc { cluster_name: cluster.to_owned(), ..EnvoyGrpc::default() })
}

fn sds_secret(name: &str, server: EnvoyGrpc) -> SdsSecretConfig {
    let api = ApiConfigSource {
        api_type: ApiType::Grpc as i32,
        transport_api_version: ApiVersion::V3 as i32,
        set_node_on_first_message_only: true,
        grpc_services: vec![GrpcService {
            target_specifier: Some(TargetSpecifier::EnvoyGrpc(server)),
            ..GrpcService::default()
        }],
        ..ApiConfigSource::default()
    };
    SdsSecretConfig {
        name: name.to_owned(),
        sds_config: Some(ConfigSource {
            resource_api_version: ApiVersion::V3 as i32,
            config_source_specifier: Some(ConfigSourceSpecifier::ApiConfigSource(api)),
            ..ConfigSource::default()
        }),
    }
}
