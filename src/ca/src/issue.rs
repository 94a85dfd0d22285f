//! Issuing.

use std::time::Duration;

use rustls::pki_types::CertificateDer;

use crate::certificate::Template;
use crate::request::Request;
use crate::{Authority, Certificate, IssueError, PrivateKey, SubjectName, pem};

/// How long before it is issued a certificate begins to be valid: clocks differ.
pub const CLOCK_SKEW: Duration = Duration::from_secs(120);
/// Longest common name (RFC 5280).
const MOST_COMMON_NAME: usize = 64;

/// How long certificates of workloads live.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terms {
    /// Unless the caller asks for a time.
    pub default: Duration,
    /// More is refused.
    pub most: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self { default: Duration::from_secs(24 * 3600), most: Duration::from_secs(90 * 24 * 3600) }
    }
}

impl Terms {
    /// How many seconds a certificate lives that is asked to live so many, or nothing in particular.
    ///
    /// # Errors
    /// More is asked for than is allowed.
    pub fn lifetime(&self, requested: i64) -> Result<u64, IssueError> {
        match u64::try_from(requested) {
            Err(_) | Ok(0) => Ok(self.default.as_secs()),
            Ok(asked) if asked > self.most.as_secs() => {
                Err(IssueError::Lifetime { requested, most: self.most.as_secs() })
            }
            Ok(asked) => Ok(asked),
        }
    }
}

/// A certificate of a workload.
#[derive(Clone, Debug)]
pub struct Issued {
    /// As callers get it: the certificate, what is between it and the roots, one a text, and all roots as the last.
    pub chain: Vec<String>,
    /// Last second of its validity.
    pub not_after: i64,
}

/// A certificate of the server's own names, with its key.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    /// The certificate and what is between it and the roots.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKey,
    /// First second of its validity.
    pub not_before: i64,
    /// Last second of its validity.
    pub not_after: i64,
}

impl Authority {
    /// Issues a certificate to a workload that is who it says: whatever the request asks for, its names are `identities`.
    /// It lives `seconds`, or the default if that is not positive, and never longer than the signing certificate.
    ///
    /// # Errors
    /// The request is not acceptable, or the signing certificate has expired.
    pub fn issue(
        &self,
        request: &str,
        identities: &[String],
        seconds: i64,
        terms: Terms,
        now: i64,
    ) -> Result<Issued, IssueError> {
        let request = Request::parse(request)?;
        if identities.is_empty() {
            return Err(IssueError::Request("there is nobody to issue a certificate to".to_owned()));
        }
        let seconds = terms.lifetime(seconds)?;
        // Who asks for a common name gets the identity, if it fits: some look nowhere else.
        let subject = match identities.first() {
            Some(name) if request.has_common_name && name.len() <= MOST_COMMON_NAME => {
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

    /// Makes a key and issues it a certificate for DNS names and addresses, for `lifetime` or as long as the signing
    /// certificate is valid.
    ///
    /// # Errors
    /// The signing certificate has expired.
    pub fn server_certificate(
        &self,
        names: &[String],
        lifetime: Duration,
        now: i64,
    ) -> Result<ServerCertificate, IssueError> {
        let fail = |error: crate::MaterialError| IssueError::Sign(error.to_string());
        let key = PrivateKey::generate(self.key.algorithm().beside()).map_err(fail)?;
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
        let template = Template { subject, names, not_before: now - skew, not_after, public, is_authority: false };
        let leaf = template.sign(Some(&self.issuer()), &self.key);
        leaf.map(|leaf| (leaf, not_after)).ok_or_else(|| IssueError::Sign("the key does not sign".to_owned()))
    }
}
