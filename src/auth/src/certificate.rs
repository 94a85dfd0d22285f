//! Client certificates, verified by TLS (P07).

use std::sync::Arc;

use futures::future::BoxFuture;
use rustls::pki_types::CertificateDer;
use sluice_ca::Certificate;

use crate::{Authenticator, Call, Verdict};

/// Checks that a certificate chain, which TLS verified when the connection began, is still valid.
pub trait CertificateCheck: Send + Sync + 'static {
    /// Checks the chain with the current roots, revocation lists and time.
    ///
    /// # Errors
    /// The reason why the chain is not valid, a lower-case fragment.
    fn check(&self, chain: &[CertificateDer<'static>]) -> Result<(), String>;
}

/// Authenticates a caller by the URI names of its client certificate.
#[derive(Clone, Default)]
pub struct ClientCertificates {
    check: Option<Arc<dyn CertificateCheck>>,
}

impl ClientCertificates {
    /// Checks the certificate of each call, because a connection can outlive it.
    #[must_use]
    pub fn checked_by(check: Arc<dyn CertificateCheck>) -> Self {
        Self { check: Some(check) }
    }

    fn verdict(&self, call: &Call<'_>) -> Verdict {
        let Some(certificate) = call.certificates.first() else { return Verdict::NoCredentials };
        if let Some(Err(reason)) = self.check.as_ref().map(|check| check.check(call.certificates)) {
            return Verdict::Rejected(reason);
        }
        match Certificate::parse("client certificate", certificate) {
            Ok(certificate) => {
                Verdict::Identified(certificate.uris().iter().filter_map(|uri| uri.parse().ok()).collect())
            }
            Err(error) => Verdict::Rejected(error.to_string()),
        }
    }
}

impl Authenticator for ClientCertificates {
    fn name(&self) -> &'static str {
        "client certificate"
    }

    fn authenticate<'a>(&'a self, call: &'a Call<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(std::future::ready(self.verdict(call)))
    }
}
