//! Certificate signing requests (PKCS #10).

use der::Encode;
use der::asn1::{AnyRef, BitStringRef};
use der::oid::db::{rfc5912, rfc8410};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use x509_cert::spki::{self, AlgorithmIdentifierRef};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION, OID_PKCS1_SHA1WITHRSA,
    OID_SHA1_WITH_RSA, OID_SIG_ED25519,
};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::IssueError;

/// Size limit of a request. A request with an RSA key of 8192 bits has a third of this size.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Smallest RSA key.
const MIN_RSA_BITS: usize = 2048;

/// A certificate signing request, signed by its own key.
pub(crate) struct SigningRequest {
    /// The DER of the SubjectPublicKeyInfo.
    pub(crate) public: Vec<u8>,
    /// Whether it has a common name.
    pub(crate) has_common_name: bool,
}

impl SigningRequest {
    /// Parses a PEM text and verifies its signature. Only the key of the request is used; its names are ignored.
    pub(crate) fn parse(text: &str) -> Result<Self, IssueError> {
        let fail = |reason: &str| Err(IssueError::Request(reason.to_owned()));
        if text.len() > MAX_REQUEST_BYTES {
            return fail("certificate signing request is too long");
        }
        let der = decode_request(text)?;
        let request = parse_request(&der)?;
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

/// The DER in a PEM text.
pub(crate) fn decode_request(text: &str) -> Result<CertificateSigningRequestDer<'static>, IssueError> {
    CertificateSigningRequestDer::from_pem_slice(text.as_bytes())
        .map_err(|_| IssueError::Request("certificate signing request is not properly encoded".to_owned()))
}

/// The fields of a request in DER.
pub(crate) fn parse_request(der: &[u8]) -> Result<X509CertificationRequest<'_>, IssueError> {
    let parsed = X509CertificationRequest::from_der(der).ok().filter(|(rest, _)| rest.is_empty());
    let (_, request) =
        parsed.ok_or_else(|| IssueError::Request("failed to parse X.509 certificate signing request".to_owned()))?;
    Ok(request)
}

/// The SubjectPublicKeyInfo, encoded again, so that no other byte of the request is copied into a certificate.
fn public_key(info: &SubjectPublicKeyInfo<'_>) -> Result<Vec<u8>, IssueError> {
    let fail = |reason: String| Err(IssueError::Request(reason));
    let kind = &info.algorithm.algorithm;
    let (oid, parameters) = if *kind == OID_PKCS1_RSAENCRYPTION {
        match info.parsed() {
            Ok(PublicKey::RSA(key)) if key.key_size() < MIN_RSA_BITS => {
                return fail(format!("RSA key of {} bits is too weak, {MIN_RSA_BITS} are needed", key.key_size()));
            }
            Ok(PublicKey::RSA(_)) => (rfc5912::RSA_ENCRYPTION, Some(AnyRef::NULL)),
            _ => return fail("RSA key is malformed".to_owned()),
        }
    } else if *kind == OID_KEY_TYPE_EC_PUBLIC_KEY {
        let curve = match info.algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok()) {
            Some(curve) if curve == OID_EC_P256 => &rfc5912::SECP_256_R_1,
            Some(curve) if curve == OID_NIST_EC_P384 => &rfc5912::SECP_384_R_1,
            _ => return fail("EC key is on another curve than P-256 and P-384".to_owned()),
        };
        (rfc5912::ID_EC_PUBLIC_KEY, Some(AnyRef::from(curve)))
    } else if *kind == OID_SIG_ED25519 {
        (rfc8410::ID_ED_25519, None)
    } else {
        return fail("key is neither RSA nor EC nor Ed25519".to_owned());
    };
    let algorithm = AlgorithmIdentifierRef { oid, parameters };
    let encoded = BitStringRef::from_bytes(&info.subject_public_key.data)
        .and_then(|subject_public_key| spki::SubjectPublicKeyInfo { algorithm, subject_public_key }.to_der());
    encoded.map_err(|_| IssueError::Request("public key is malformed".to_owned()))
}
