//! Certificates of the control plane as a client of others.

use std::time::Duration;

use sluice_ca::{IssueError, to_pem};
use sluice_model::{CertificateKeyPair, Identity, Redacted, RootCertificates, Secret, Text};
use sluice_telemetry::unix_time;

use crate::Signer;

/// Lifetime of such a certificate. It is issued for one connection.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

impl Signer {
    /// A new certificate of an identity of the control plane, with its key and the roots of the authority.
    ///
    /// # Errors
    /// The signing certificate has expired, or no key can be generated.
    pub fn own_certificate(&self, identity: &Identity) -> Result<Secret, IssueError> {
        let authority = self.current();
        let now = i64::try_from(unix_time().as_secs()).unwrap_or(i64::MAX);
        let issued = authority.server_certificate(&[identity.to_string()], LIFETIME, now)?;
        let chain = Redacted(to_pem(&issued.chain).into());
        let key = Redacted(issued.key.secret_pem().to_owned().into());
        let certificates = Redacted(authority.roots_pem().to_owned().into());
        Ok(Secret {
            certificate: Some(CertificateKeyPair { chain, key, ocsp_staple: None, problem: Text::default() }),
            roots: Some(RootCertificates { certificates, revoked: None }),
            docker_config: None,
            keys: Text::default(),
        })
    }
}
