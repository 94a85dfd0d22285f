//! Requests for certificates (PKCS #10).

use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION, OID_PKCS1_SHA1WITHRSA,
    OID_SHA1_WITH_RSA, OID_SIG_ED25519,
};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::IssueError;
use crate::der::{SEQUENCE, bits, list};

/// Longest text of a request; one with an RSA key of 8192 bits is a third of that.
const MOST_BYTES: usize = 16 << 10;
/// Fewest bits of an RSA key.
const LEAST_RSA_BITS: usize = 2048;

/// A request whose key has signed it.
pub(crate) struct Request {
    /// The DER of the SubjectPublicKeyInfo.
    pub(crate) public: Vec<u8>,
    /// It asks for a common name.
    pub(crate) has_common_name: bool,
}

impl Request {
    /// Reads a PEM text and verifies its signature. Of what it asks for, only the key counts.
    pub(crate) fn parse(text: &str) -> Result<Self, IssueError> {
        let fail = |reason: &str| Err(IssueError::Request(reason.to_owned()));
        if text.len() > MOST_BYTES {
            return fail("certificate signing request is too long");
        }
        let Ok(der) = CertificateSigningRequestDer::from_pem_slice(text.as_bytes()) else {
            return fail("certificate signing request is not properly encoded");
        };
        let Some((_, request)) = X509CertificationRequest::from_der(&der).ok().filter(|(rest, _)| rest.is_empty())
        else {
            return fail("failed to parse X.509 certificate signing request");
        };
        let public = public_key(&request.certification_request_info.subject_pki)?;
        let algorithm = &request.signature_algorithm.algorithm;
        if *algorithm == OID_PKCS1_SHA1WITHRSA || *algorithm == OID_SHA1_WITH_RSA {
            return fail("certificate signing request is signed with SHA-1");
        }
        if request.verify_signature().is_err() {
            return fail("certificate signing request is not signed by its key");
        }
        let subject = &request.certification_request_info.subject;
        let has_common_name = subject.iter_common_name().any(|name| !name.as_slice().is_empty());
        Ok(Self { public, has_common_name })
    }
}

/// The key, written anew: nothing else of the request gets into a certificate.
fn public_key(info: &SubjectPublicKeyInfo<'_>) -> Result<Vec<u8>, IssueError> {
    const RSA: &[u8] = &[0x30, 0x0d, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0];
    const P256: &[u8] =
        &[0x30, 0x13, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
    const P384: &[u8] = &[0x30, 0x10, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 5, 0x2b, 0x81, 4, 0, 34];
    const ED25519: &[u8] = &[0x30, 5, 6, 3, 0x2b, 0x65, 0x70];
    let fail = |reason: String| Err(IssueError::Request(reason));
    let kind = &info.algorithm.algorithm;
    let algorithm = if *kind == OID_PKCS1_RSAENCRYPTION {
        match info.parsed() {
            Ok(PublicKey::RSA(key)) if key.key_size() < LEAST_RSA_BITS => {
                return fail(format!("RSA key of {} bits is too weak, {LEAST_RSA_BITS} are needed", key.key_size()));
            }
            Ok(PublicKey::RSA(_)) => RSA,
            _ => return fail("RSA key is malformed".to_owned()),
        }
    } else if *kind == OID_KEY_TYPE_EC_PUBLIC_KEY {
        match info.algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok()) {
            Some(curve) if curve == OID_EC_P256 => P256,
            Some(curve) if curve == OID_NIST_EC_P384 => P384,
            _ => return fail("EC key is on another curve than P-256 and P-384".to_owned()),
        }
    } else if *kind == OID_SIG_ED25519 {
        ED25519
    } else {
        return fail("key is neither RSA nor EC nor Ed25519".to_owned());
    };
    Ok(list(SEQUENCE, &[algorithm, &bits(&info.subject_public_key.data)]))
}
