//! PEM texts.

use der::pem::{LineEnding, encode_string};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::MaterialError;

/// A PEM section with lines of 64 characters and a newline at the end.
pub(crate) fn encode(label: &str, der: &[u8]) -> String {
    // It fails only if the label or the length is out of range.
    encode_string(label, LineEnding::LF, der).unwrap_or_default()
}

pub(crate) fn certificate(der: &[u8]) -> String {
    encode("CERTIFICATE", der)
}

/// All certificates of a text; text between them is ignored. `part` names the text in errors.
pub(crate) fn certificates(part: &str, text: &str) -> Result<Vec<CertificateDer<'static>>, MaterialError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    all.map_err(|_| MaterialError::new(part, "is not a PEM text of certificates"))
}

/// Certificates as one PEM text.
#[must_use]
pub fn to_pem(certificates: &[CertificateDer<'_>]) -> String {
    certificates.iter().map(|certificate| self::certificate(certificate)).collect()
}
