//! Roots that sign themselves.
//!
//! Which key a new root has is said by who makes it: in a cluster RSA as istiod's, for whoever looks into the Secret or cannot
//! verify anything else; by itself, or on demand, EC, which signs many times as fast. Any root that is there is loaded,
//! signed with and renewed as it is.

use std::time::Duration;

use zeroize::Zeroizing;

use crate::certificate::Template;
use crate::{Authority, Material, MaterialError, NewKey, PrivateKey, SubjectName, pem};

/// Makes a key and a root of an organization, which is the trust domain.
///
/// # Errors
/// The system has no randomness.
pub fn create(organization: &str, key: NewKey, lifetime: Duration, now: i64) -> Result<Material, MaterialError> {
    let key = PrivateKey::generate(key)?;
    sign(&key, SubjectName::Organization(organization.to_owned()), lifetime, now)
}

/// A root with the same key and name that is valid from now on: what the old one signed verifies with it too.
///
/// # Errors
/// The key does not sign.
pub fn renew(authority: &Authority, lifetime: Duration, now: i64) -> Result<Material, MaterialError> {
    sign(&authority.key, SubjectName::Raw(authority.certificate.subject.clone()), lifetime, now)
}

/// Whether a root should be renewed: less than `grace_percent` of its life is left.
#[must_use]
pub fn is_due(authority: &Authority, grace_percent: u32, now: i64) -> bool {
    let certificate = authority.certificate();
    let life = i128::from(certificate.not_after) - i128::from(certificate.not_before);
    let left = i128::from(certificate.not_after) - i128::from(now);
    left * 100 < life * i128::from(grace_percent)
}

fn sign(key: &PrivateKey, subject: SubjectName, lifetime: Duration, now: i64) -> Result<Material, MaterialError> {
    let template = Template {
        subject,
        names: &[],
        not_before: now,
        not_after: now.saturating_add_unsigned(lifetime.as_secs()),
        public: key.public(),
        is_authority: true,
    };
    let root = template.sign(None, key).ok_or_else(|| MaterialError::new("private key", "does not sign"))?;
    let root = pem::certificate(&root);
    Ok(Material {
        certificate: root.clone(),
        key: Zeroizing::new(key.secret_pem().to_owned()),
        chain: String::new(),
        roots: root,
        revoked: String::new(),
    })
}

#[cfg(test)]
pub(crate) fn sign_for_tests(key: &PrivateKey, organization: &str, lifetime: Duration, now: i64) -> Material {
    sign(key, SubjectName::Organization(organization.to_owned()), lifetime, now).expect("a root")
}
