//! TLS of the secure port (X01, P10): a server certificate that can be replaced without closing connections, and client
//! certificates that are verified with the current roots.

mod accept;
mod certificate;
mod files;
mod https;
mod verifier;
mod versions;
mod wall_clock;

pub use accept::{SecureIncoming, SecureStream, TlsConnection};
pub use certificate::ServerIdentity;
pub use files::{TlsFileError, TlsFiles};
pub use https::{HttpsServer, https_config};
pub use verifier::{ClientVerifier, RootsError};
pub use versions::TlsVersions;
pub use wall_clock::WallClockSleep;

use std::sync::Arc;

use rustls::ServerConfig;

/// An option of the command line that TLS does not accept.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{option}: {reason}")]
pub struct TlsOptionError {
    /// The flag.
    pub option: &'static str,
    /// What is wrong and what is accepted, a lower-case fragment.
    pub reason: String,
}

/// The chosen TLS versions and cipher suites make no TLS configuration.
#[derive(Debug, thiserror::Error)]
#[error("TLS with --tls-min-version, --tls-cipher-suites and COMPLIANCE_POLICY: {0}")]
pub struct TlsVersionsError(rustls::Error);

/// The TLS configuration of the secure port.
///
/// # Errors
/// No cipher suite is usable with the chosen versions.
pub fn server_config(
    versions: &TlsVersions,
    identity: Arc<ServerIdentity>,
    clients: Arc<ClientVerifier>,
) -> Result<Arc<ServerConfig>, TlsVersionsError> {
    let builder = ServerConfig::builder_with_provider(versions.provider());
    let builder = builder.with_protocol_versions(versions.protocols()).map_err(TlsVersionsError)?;
    let mut config = builder.with_client_cert_verifier(clients).with_cert_resolver(identity);
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests;
