//! Verification of certificates, as TLS does it.

use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage, anchor_from_trusted_cert};

/// Verifies a certificate through `intermediates` against one of `roots`.
pub(crate) fn verify_chain(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &[CertificateDer<'_>],
    usage: KeyUsage,
    now: i64,
) -> Result<(), Error> {
    let anchors: Vec<_> = roots.iter().filter_map(|root| anchor_from_trusted_cert(root).ok()).collect();
    let at = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now).unwrap_or_default()));
    let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.all;
    let leaf = EndEntityCert::try_from(leaf)?;
    leaf.verify_for_usage(algorithms, &anchors, intermediates, at, usage, None, None)?;
    Ok(())
}
