//! Certificates of clients.

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

/// Verifies certificates of clients that show one: against the roots of the moment, and that they are of the own trust
/// domain. Who shows none is let in, and has to say otherwise who he is.
pub struct ClientVerifier {
    provider: Arc<CryptoProvider>,
    /// Without roots nobody is verified.
    current: ArcSwapOption<Roots>,
    trust_domain: TrustDomain,
}

struct Roots(Arc<dyn ClientCertVerifier>);

impl ClientVerifier {
    /// Without roots yet.
    #[must_use]
    pub fn new(trust_domain: TrustDomain) -> Self {
        let provider = sluice_crypto::provider(None);
        Self { provider, current: ArcSwapOption::empty(), trust_domain }
    }

    /// Trusts these roots from now on, and no others.
    ///
    /// # Errors
    /// None of them is one.
    pub fn set_roots(&self, roots: &[CertificateDer<'static>]) -> Result<(), String> {
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(roots.iter().cloned());
        if added == 0 {
            return Err("there is no root certificate to verify clients with".to_owned());
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), self.provider.clone())
            .build()
            .map_err(|error| error.to_string())?;
        self.current.store(Some(Arc::new(Roots(verifier))));
        Ok(())
    }

    /// Whether a verified certificate is of the trust domain.
    fn check_identity(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let names =
            Certificate::parse("client certificate", certificate).map(|certificate| certificate.uris().to_vec());
        let names = names.map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        match names.as_slice() {
            [name] if name.parse::<Identity>().is_ok_and(|identity| self.trust_domain.has(&identity)) => Ok(()),
            _ => {
                tracing::debug!(target: "tls", ?names, "a client certificate is not of the trust domain");
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
        // They change, and clients of a mesh have one certificate to show.
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let Some(roots) = self.current.load_full() else {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        };
        let verified = roots.0.verify_client_cert(certificate, between, now)?;
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
