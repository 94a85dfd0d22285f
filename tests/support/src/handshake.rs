//! TLS handshakes in memory, between a client and a server with given options.

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{
    ALL_VERSIONS, CipherSuite, ClientConfig, ClientConnection, Error, NamedGroup, ProtocolVersion, RootCertStore,
    ServerConfig, ServerConnection, SupportedCipherSuite, SupportedProtocolVersion,
};

/// The name of the server.
pub const NAME: &str = "istiod";

/// The versions, cipher suites and key exchanges that one side accepts.
#[derive(Clone)]
pub struct TlsOptions {
    versions: Vec<&'static SupportedProtocolVersion>,
    suites: Vec<SupportedCipherSuite>,
    groups: Vec<&'static dyn SupportedKxGroup>,
}

impl Default for TlsOptions {
    /// Everything the library supports.
    fn default() -> Self {
        let CryptoProvider { cipher_suites, kx_groups, .. } = aws_lc_rs::default_provider();
        Self { versions: ALL_VERSIONS.to_vec(), suites: cipher_suites, groups: kx_groups }
    }
}

impl TlsOptions {
    /// Only these suites.
    #[must_use]
    pub fn suites(mut self, names: &[CipherSuite]) -> Self {
        self.suites.retain(|suite| names.contains(&suite.suite()));
        self
    }

    /// Only this exchange of keys.
    #[must_use]
    pub fn group(mut self, name: NamedGroup) -> Self {
        self.groups.retain(|group| group.name() == name);
        self
    }

    /// Only this version.
    #[must_use]
    pub fn version(mut self, version: &'static SupportedProtocolVersion) -> Self {
        self.versions = vec![version];
        self
    }

    fn provider(&self) -> Arc<CryptoProvider> {
        let (cipher_suites, kx_groups) = (self.suites.clone(), self.groups.clone());
        Arc::new(CryptoProvider { cipher_suites, kx_groups, ..aws_lc_rs::default_provider() })
    }

    /// A client with these options that trusts a root.
    ///
    /// # Errors
    /// The options are empty.
    pub fn client(&self, root: &CertificateDer<'static>) -> Result<ClientConfig, Error> {
        let builder = ClientConfig::builder_with_provider(self.provider()).with_protocol_versions(&self.versions)?;
        Ok(builder.with_root_certificates(roots_with(root)?).with_no_client_auth())
    }

    /// A server with these options and a certificate.
    ///
    /// # Errors
    /// The options are empty, or the key does not belong to the certificate.
    pub fn server(&self, (certificate, key): &KeyPairDer) -> Result<ServerConfig, Error> {
        let builder = ServerConfig::builder_with_provider(self.provider()).with_protocol_versions(&self.versions)?;
        builder.with_no_client_auth().with_single_cert(vec![certificate.clone()], key.clone_key())
    }
}

/// A certificate and its key.
pub type KeyPairDer = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// A self-signed certificate of the server.
///
/// # Errors
/// The system's random number generator fails.
pub fn self_signed_certificate() -> anyhow::Result<KeyPairDer> {
    let generated = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivateKeyDer::try_from(generated.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    Ok((generated.cert.der().clone(), key))
}

/// A store with one trusted root.
///
/// # Errors
/// The DER is not a certificate.
pub fn roots_with(root: &CertificateDer<'static>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone())?;
    Ok(roots)
}

/// The result of a handshake.
pub type NegotiatedTls = (ProtocolVersion, CipherSuite, NamedGroup);

/// Performs a handshake.
///
/// # Errors
/// One side rejects the other.
pub fn perform_handshake(client: ClientConfig, server: Arc<ServerConfig>) -> Result<NegotiatedTls, Error> {
    let name = NAME.try_into().map_err(|_| Error::General("the server name is invalid".to_owned()))?;
    let mut server = ServerConnection::new(server)?;
    let mut client = ClientConnection::new(Arc::new(client), name)?;
    let memory = |error: std::io::Error| Error::General(error.to_string());
    while server.is_handshaking() || client.is_handshaking() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).map_err(memory)?;
        }
        server.read_tls(&mut bytes.as_slice()).map_err(memory)?;
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).map_err(memory)?;
        }
        client.read_tls(&mut bytes.as_slice()).map_err(memory)?;
        client.process_new_packets()?;
    }
    let suite = server.negotiated_cipher_suite().map(|suite| suite.suite());
    let group = server.negotiated_key_exchange_group().map(|group| group.name());
    let agreed = || Some((server.protocol_version()?, suite?, group?));
    agreed().ok_or(Error::HandshakeNotComplete)
}
