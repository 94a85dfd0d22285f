//! When a certificate expires.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// When the first certificate of a chain expires.
///
/// # Errors
/// The chain is empty, or its first section is not a certificate.
pub(crate) fn certificate_expiry(chain: &[u8]) -> Result<SystemTime> {
    let leaf = CertificateDer::from_pem_slice(chain).ok().context("the chain contains no certificate")?;
    let (_, leaf) = X509Certificate::from_der(&leaf).ok().context("the certificate is malformed")?;
    let seconds =
        u64::try_from(leaf.validity().not_after.timestamp()).context("the certificate expired before 1970")?;
    Ok(UNIX_EPOCH + Duration::from_secs(seconds))
}
