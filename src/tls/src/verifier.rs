//! Verification of client certificates.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use sluice_auth::{CertificateCheck, TrustDomain};
use sluice_ca::Certificate;
use sluice_model::Identity;
use tokio::sync::watch;

/// Verifies client certificates with the current roots, and their trust domain. A client may connect without a
/// certificate; it is then authenticated by other credentials.
pub struct ClientVerifier {
    provider: Arc<CryptoProvider>,
    /// Without roots, every certificate is rejected.
    current: ArcSwapOption<Roots>,
    /// Notifies of other roots or revocation lists.
    changes: watch::Sender<()>,
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

struct Roots {
    roots: Vec<CertificateDer<'static>>,
    revoked: Vec<CertificateRevocationListDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientVerifier {
    /// Without roots.
    #[must_use]
    pub fn new(trust_domain: TrustDomain) -> Self {
        let provider = sluice_crypto::provider(None);
        Self { provider, current: ArcSwapOption::empty(), changes: watch::Sender::default(), trust_domain }
    }

    /// Replaces the roots and the revocation lists. A certificate of an issuer without a list is not revoked.
    ///
    /// # Errors
    /// No usable root is among them, or a list is malformed. The previous ones stay in use.
    pub fn set_roots(
        &self,
        roots: &[CertificateDer<'static>],
        revoked: &[CertificateRevocationListDer<'static>],
    ) -> Result<(), RootsError> {
        if self.current.load().as_ref().is_some_and(|current| current.roots == roots && current.revoked == revoked) {
            return Ok(());
        }
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(roots.iter().cloned());
        if added == 0 {
            return Err(RootsError::NoRoot);
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), self.provider.clone())
            .with_crls(revoked.iter().cloned())
            .allow_unknown_revocation_status()
            .build()?;
        let current = Roots { roots: roots.to_vec(), revoked: revoked.to_vec(), verifier };
        self.current.store(Some(Arc::new(current)));
        self.changes.send_replace(());
        Ok(())
    }

    /// Approximate number of connections that follow the changes.
    pub(crate) fn connections(&self) -> u32 {
        u32::try_from(self.changes.receiver_count()).unwrap_or(u32::MAX)
    }

    /// Notifies of other roots or revocation lists.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
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

impl CertificateCheck for ClientVerifier {
    fn check(&self, chain: &[CertificateDer<'static>]) -> Result<(), String> {
        let Some((certificate, intermediates)) = chain.split_first() else { return Ok(()) };
        match self.verify_client_cert(certificate, intermediates, UnixTime::now()) {
            Ok(_) => Ok(()),
            Err(Error::InvalidCertificate(reason)) => Err(format!("the client certificate is not valid: {reason}")),
            Err(error) => Err(format!("the client certificate is not valid: {error}")),
        }
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
        let verified = roots.verifier.verify_client_cert(certificate, intermediates, now)?;
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

#[cfg(test)]
mod tests;
