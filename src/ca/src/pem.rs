//! PEM, as it is written; reading is `rustls::pki_types::pem`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use zeroize::Zeroizing;

use crate::MaterialError;

/// A section with lines of 64 characters and a newline at the end.
pub(crate) fn write(label: &str, der: &[u8]) -> String {
    let text = Zeroizing::new(STANDARD.encode(der));
    let mut out = String::with_capacity(text.len() + text.len() / 64 + 2 * label.len() + 40);
    out.push_str("-----BEGIN ");
    out.push_str(label);
    out.push_str("-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = after;
    }
    out.push_str("-----END ");
    out.push_str(label);
    out.push_str("-----\n");
    out
}

pub(crate) fn certificate(der: &[u8]) -> String {
    write("CERTIFICATE", der)
}

/// All certificates of a text; what stands between them does not count.
pub(crate) fn certificates(part: &str, text: &str) -> Result<Vec<CertificateDer<'static>>, MaterialError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    all.map_err(|_| MaterialError::new(part, "is no PEM of certificates"))
}

/// Certificates as one PEM text.
#[must_use]
pub fn to_pem(certificates: &[CertificateDer<'_>]) -> String {
    certificates.iter().map(|certificate| self::certificate(certificate)).collect()
}
