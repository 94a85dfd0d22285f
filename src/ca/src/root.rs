//! Self-signed roots.
//!
//! The caller chooses the key of a new root. In a cluster it is RSA as in istiod, for clients that read the Secret or
//! verify RSA only. Without a cluster, or if configured, it is EC, which signs many times as fast. An existing root is
//! used and renewed with its key.

use std::time::Duration;

use zeroize::Zeroizing;

use crate::certificate::{CertificateTemplate, SubjectName};
use crate::{Authority, Material, MaterialError, NewKey, PrivateKey, pem};

/// Creates a key and a root. The organization of its subject is the trust domain.
///
/// # Errors
/// The system has no randomness.
pub fn create(organization: &str, key: NewKey, lifetime: Duration, now: i64) -> Result<Material, MaterialError> {
    let key = PrivateKey::generate(key)?;
    sign(&key, SubjectName::Organization(organization.to_owned()), lifetime, now)
}

/// A new root with the same key and name, valid from now. Certificates that the old root signed verify with the new one
/// too.
///
/// # Errors
/// The key does not sign.
pub fn renew(authority: &Authority, lifetime: Duration, now: i64) -> Result<Material, MaterialError> {
    sign(&authority.key, SubjectName::Raw(authority.certificate.subject.clone()), lifetime, now)
}

/// Whether a root should be renewed: less than `grace_percent` of its lifetime is left.
#[must_use]
pub fn is_due(authority: &Authority, grace_percent: u32, now: i64) -> bool {
    let certificate = authority.certificate();
    let lifetime = i128::from(certificate.not_after) - i128::from(certificate.not_before);
    let left = i128::from(certificate.not_after) - i128::from(now);
    left * 100 < lifetime * i128::from(grace_percent)
}

fn sign(key: &PrivateKey, subject: SubjectName, lifetime: Duration, now: i64) -> Result<Material, MaterialError> {
    let template = CertificateTemplate {
        subject,
        names: &[],
        not_before: now,
        not_after: now.saturating_add_unsigned(lifetime.as_secs()),
        public: key.public(),
        is_authority: true,
    };
    let root = template.sign(None, key).map_err(|error| MaterialError::new("root", error.to_string()))?;
    let root = pem::certificate(&root);
    Ok(Material {
        certificate: root.clone(),
        key: Zeroizing::new(key.secret_pem().to_owned()),
        chain: String::new(),
        roots: root,
        crl: String::new(),
    })
}

#[cfg(test)]
pub(crate) fn sign_for_tests(key: &PrivateKey, organization: &str, lifetime: Duration, now: i64) -> Material {
    sign(key, SubjectName::Organization(organization.to_owned()), lifetime, now).expect("a root")
}
