//! Verification of client certificates.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use sluice_auth::TrustDomain;
use sluice_ca::Certificate;
use sluice_model::Identity;

/// Verifies client certificates with the current roots, and their trust domain. A client may connect without a
/// certificate; it is then authenticated by other credentials.
pub struct ClientVerifier {
    provider: Arc<CryptoProvider>,
    /// Without roots, every certificate is rejected.
    current: ArcSwapOption<Roots>,
    trust_domain: TrustDomain,
}

/// Roots that cannot verify client certificates. A retry succeeds only with other roots.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// There is no parsable root certificate.
    #[error("no root certificate for the verification of clients")]
    NoRoot,
    /// The TLS library rejects the roots.
    #[error(transparent)]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

struct Roots(Arc<dyn ClientCertVerifier>);

impl ClientVerifier {
    /// Without roots.
    #[must_use]
    pub fn new(trust_domain: TrustDomain) -> Self {
        let provider = sluice_crypto::provider(None);
        Self { provider, current: ArcSwapOption::empty(), trust_domain }
    }

    /// Replaces the roots.
    ///
    /// # Errors
    /// No usable root is among them.
    pub fn set_roots(&self, roots: &[CertificateDer<'static>]) -> Result<(), RootsError> {
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(roots.iter().cloned());
        if added == 0 {
            return Err(RootsError::NoRoot);
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), self.provider.clone()).build()?;
        self.current.store(Some(Arc::new(Roots(verifier))));
        Ok(())
    }

    /// Checks that a verified certificate has one identity, of the trust domain.
    fn check_identity(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let names =
            Certificate::parse("client certificate", certificate).map(|certificate| certificate.uris().to_vec());
        let names = names.map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        match names.as_slice() {
            [name] if name.parse::<Identity>().is_ok_and(|identity| self.trust_domain.has(&identity)) => Ok(()),
            _ => {
                tracing::debug!(target: "tls", ?names, "client certificate has no identity of the trust domain");
                Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
        }
    }
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientVerifier").field("trust_domain", &self.trust_domain).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Without hints, clients offer their only certificate, whichever roots are current.
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let Some(roots) = self.current.load_full() else {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        };
        let verified = roots.0.verify_client_cert(certificate, intermediates, now)?;
        self.check_identity(certificate)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
