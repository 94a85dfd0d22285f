//! Issues certificates.

use std::time::Duration;

use rustls::pki_types::CertificateDer;

use crate::certificate::{CertificateTemplate, SubjectName};
use crate::request::SigningRequest;
use crate::{Authority, Certificate, IssueError, PrivateKey, pem};

/// Certificates are valid from this time before their issue, because clocks differ.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(120);
/// Size limit of a common name (RFC 5280).
const MAX_COMMON_NAME_BYTES: usize = 64;

/// Lifetimes of workload certificates.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LifetimeLimits {
    /// The lifetime if the request states none.
    pub default: Duration,
    /// The longest lifetime; a request for a longer one is rejected.
    pub max: Duration,
}

impl Default for LifetimeLimits {
    fn default() -> Self {
        Self { default: Duration::from_secs(24 * 3600), max: Duration::from_secs(90 * 24 * 3600) }
    }
}

impl LifetimeLimits {
    /// The lifetime in seconds for a requested one; 0 or less requests the default.
    ///
    /// # Errors
    /// The requested lifetime exceeds the limit.
    pub fn lifetime(&self, requested: i64) -> Result<u64, IssueError> {
        match u64::try_from(requested) {
            Err(_) | Ok(0) => Ok(self.default.as_secs()),
            Ok(seconds) if seconds > self.max.as_secs() => {
                Err(IssueError::Lifetime { requested, max: self.max.as_secs() })
            }
            Ok(seconds) => Ok(seconds),
        }
    }
}

/// A workload certificate.
#[derive(Clone, Debug)]
pub struct Issued {
    /// PEM texts in the order of the CA protocol: the certificate, each intermediate, and all roots in the last text.
    pub chain: Vec<String>,
    /// Last second of its validity.
    pub not_after: i64,
}

/// A certificate with the server's names, and its key.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    /// The certificate and the intermediates.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKey,
    /// First second of its validity.
    pub not_before: i64,
    /// Last second of its validity.
    pub not_after: i64,
}

impl Authority {
    /// Issues a certificate to an authenticated workload. Its names are `identities`; the names in the request are
    /// ignored. It is valid for `seconds`, or for the default if `seconds` is not positive, and never longer than the
    /// signing certificate.
    ///
    /// # Errors
    /// The request is rejected, or the signing certificate has expired.
    pub fn issue(
        &self,
        request: &str,
        identities: &[String],
        seconds: i64,
        limits: LifetimeLimits,
        now: i64,
    ) -> Result<Issued, IssueError> {
        let request = SigningRequest::parse(request)?;
        if identities.is_empty() {
            return Err(IssueError::Request("the caller has no identity to issue a certificate for".to_owned()));
        }
        let seconds = limits.lifetime(seconds)?;
        // Some clients read the common name only. If they request one, it is the identity, if it fits.
        let subject = match identities.first() {
            Some(name) if request.has_common_name && name.len() <= MAX_COMMON_NAME_BYTES => {
                SubjectName::CommonName(name.clone())
            }
            _ => SubjectName::Empty,
        };
        let (leaf, not_after) = self.leaf(subject, identities, &request.public, seconds, now)?;
        let mut chain = Vec::with_capacity(2 + self.chain().len());
        chain.push(pem::certificate(&leaf));
        chain.extend(self.chain().iter().map(|certificate| pem::certificate(certificate)));
        chain.push(self.roots_pem().to_owned());
        Ok(Issued { chain, not_after })
    }

    /// Generates a key and issues a certificate for DNS names and IP addresses. It is valid for `lifetime`, but no longer
    /// than the signing certificate.
    ///
    /// # Errors
    /// The signing certificate has expired, or a name is not ASCII.
    pub fn server_certificate(
        &self,
        names: &[String],
        lifetime: Duration,
        now: i64,
    ) -> Result<ServerCertificate, IssueError> {
        let fail = |error: crate::MaterialError| IssueError::Sign(error.to_string());
        let key = PrivateKey::generate(self.key.algorithm().server_key()).map_err(fail)?;
        let (leaf, not_after) = self.leaf(SubjectName::Empty, names, key.public(), lifetime.as_secs(), now)?;
        let parsed = Certificate::parse("certificate", &leaf).map_err(fail)?;
        let mut chain = vec![CertificateDer::from(leaf)];
        chain.extend(self.chain().iter().cloned());
        Ok(ServerCertificate { chain, key, not_before: parsed.not_before, not_after })
    }

    fn leaf(
        &self,
        subject: SubjectName,
        names: &[String],
        public: &[u8],
        seconds: u64,
        now: i64,
    ) -> Result<(Vec<u8>, i64), IssueError> {
        let last = self.certificate.not_after;
        if now >= last {
            return Err(IssueError::Sign("the signing certificate has expired".to_owned()));
        }
        let skew = i64::try_from(CLOCK_SKEW.as_secs()).unwrap_or_default();
        let not_after = now.saturating_add_unsigned(seconds).min(last);
        let template =
            CertificateTemplate { subject, names, not_before: now - skew, not_after, public, is_authority: false };
        Ok((template.sign(Some(&self.issuer()), &self.key)?, not_after))
    }
}
