//! Workload certificates from an external signer (P09).
//!
//! The signer grants the names that a request contains. So a forwarded request may contain only names of the caller,
//! and the signer's response is verified before the caller receives it. The signer may read a text differently, such as one
//! with two requests. So the forwarded text is encoded anew from the key, the names and the signature that were checked.

use der::{Decode, Encode};
use rustls::pki_types::CertificateDer;
use webpki::KeyUsage;
use x509_cert::attr::{Attribute, Attributes};
use x509_cert::ext::Extension;
use x509_cert::request::{CertReq, CertReqInfo, ExtensionReq, Version};
use x509_cert::spki::{AlgorithmIdentifierOwned, SubjectPublicKeyInfoOwned};
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::encoding::alternative_names;
use crate::request::{SigningRequest, decode_request, parse_request};
use crate::verify::verify_chain;
use crate::{Certificate, IssueError, Issued, pem};

const CHAIN: &str = "certificates of the signer";

/// A request that may be forwarded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ForwardedRequest {
    /// The DER of the SubjectPublicKeyInfo of its key.
    public: Vec<u8>,
    /// The names it may contain.
    identities: Vec<String>,
    /// The request as it is forwarded, PEM.
    pem: String,
}

impl ForwardedRequest {
    /// Parses the request of a caller that is authenticated as `identities`.
    ///
    /// # Errors
    /// The request is not signed by its key, the key is too weak, or it contains anything other than some of these names.
    pub fn parse(text: &str, identities: &[String]) -> Result<Self, IssueError> {
        let fail = |reason: &str| Err(IssueError::Request(reason.to_owned()));
        let request = SigningRequest::parse(text)?;
        let der = decode_request(text)?;
        let parsed = parse_request(&der)?;
        let info = &parsed.certification_request_info;
        if info.subject.iter_attributes().any(|attribute| !attribute.as_slice().is_empty()) {
            return fail("certificate signing request has a subject, which the signer would grant");
        }
        let mut requested_names = None;
        for attribute in info.iter_attributes() {
            let ParsedCriAttribute::ExtensionRequest(requested) = attribute.parsed_attribute() else {
                return fail("certificate signing request has unknown attributes");
            };
            for extension in &requested.extensions {
                match extension.parsed_extension() {
                    ParsedExtension::SubjectAlternativeName(names) if requested_names.is_none() => {
                        requested_names = Some((extension.critical, uris(&names.general_names)));
                        if names.general_names.is_empty() || !are_identities(&names.general_names, identities) {
                            return fail("certificate signing request has names that are not the caller's");
                        }
                    }
                    _ => return fail("certificate signing request has extensions other than names"),
                }
            }
        }
        let Some((critical, names)) = requested_names else {
            return fail("certificate signing request has no name");
        };
        let rebuilt = rebuild(&der, &request.public, critical, &names);
        // The signature is about the encoding of the checked part, which has one form.
        let Some((_, rebuilt)) = rebuilt.ok().filter(|(checked, _)| *checked == info.raw) else {
            return fail("certificate signing request has parts that are not known or not encoded as DER");
        };
        Ok(Self {
            public: request.public,
            identities: identities.to_vec(),
            pem: pem::encode("CERTIFICATE REQUEST", &rebuilt),
        })
    }

    /// The request for the signer, PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Verifies the signer's response: a PEM text with the certificate and its chain. Without `roots`, the root in the
    /// response is used.
    ///
    /// # Errors
    /// The certificate is for another key, has other names, or does not verify.
    pub fn accept(&self, signed: &str, roots: Option<&str>, now: i64) -> Result<Issued, IssueError> {
        let identities = self.identities.join(", ");
        let are_expected = |names: &[GeneralName<'_>]| !names.is_empty() && are_identities(names, &self.identities);
        let usage = KeyUsage::client_auth();
        let signed = verify_signed(signed, &self.public, (&identities, &are_expected), roots, usage, now)?;
        let mut chain = vec![pem::certificate(&signed.leaf)];
        chain.extend(signed.intermediates.iter().map(|certificate| pem::certificate(certificate)));
        chain.push(pem::to_pem(&signed.roots));
        Ok(Issued { chain, not_after: signed.certificate.not_after })
    }
}

/// Encodes a request with this key, these names and its own signature. Returns the signed part and the whole.
fn rebuild(der: &[u8], public: &[u8], critical: bool, names: &[String]) -> Result<(Vec<u8>, Vec<u8>), der::Error> {
    let request = CertReq::from_der(der)?;
    let mut attributes = Attributes::new();
    let names = Extension { critical, ..alternative_names(names)? };
    attributes.insert(Attribute::try_from(ExtensionReq(vec![names]))?)?;
    let info = CertReqInfo {
        version: Version::V1,
        subject: request.info.subject,
        public_key: SubjectPublicKeyInfoOwned::try_from(public).map_err(|_| der::ErrorKind::Failed)?,
        attributes,
    };
    let AlgorithmIdentifierOwned { oid, parameters } = request.algorithm;
    if parameters.as_ref().is_some_and(|parameters| !parameters.is_null()) {
        return Err(der::ErrorKind::Failed.into());
    }
    let checked = info.to_der()?;
    let algorithm = AlgorithmIdentifierOwned { oid, parameters };
    Ok((checked, CertReq { info, algorithm, signature: request.signature }.to_der()?))
}

fn uris(names: &[GeneralName<'_>]) -> Vec<String> {
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    };
    names.iter().filter_map(uri).collect()
}

/// The verified response of a signer.
pub(crate) struct SignedChain {
    pub(crate) leaf: CertificateDer<'static>,
    pub(crate) certificate: Certificate,
    pub(crate) intermediates: Vec<CertificateDer<'static>>,
    pub(crate) roots: Vec<CertificateDer<'static>>,
}

/// Whether the names of a certificate are the expected ones.
type NamesCheck<'a> = &'a dyn Fn(&[GeneralName<'_>]) -> bool;

/// Verifies a signer's response for a key: a PEM text with a certificate and its chain. Without `roots`, the root in
/// the response is used. The expected names are passed as text for errors, and as a check.
pub(crate) fn verify_signed(
    signed: &str,
    public: &[u8],
    (expected_names, names_match): (&str, NamesCheck<'_>),
    roots: Option<&str>,
    usage: KeyUsage,
    now: i64,
) -> Result<SignedChain, IssueError> {
    let fail = |reason: String| Err(IssueError::Sign(format!("the signer's certificate {reason}")));
    let material = |error: crate::MaterialError| IssueError::Sign(error.to_string());
    let all = pem::certificates(CHAIN, signed).map_err(material)?;
    let Some((leaf, rest)) = all.split_first() else { return fail("is missing in its response".to_owned()) };
    let certificate = Certificate::parse(CHAIN, leaf).map_err(material)?;
    if certificate.public != public {
        return fail("is for another key".to_owned());
    }
    let Ok((_, parsed)) = X509Certificate::from_der(leaf) else { return fail("is malformed".to_owned()) };
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.clone()).unwrap_or_default();
    if !names_match(&names) {
        return fail(format!("names {names:?}, expected {expected_names}"));
    }
    if parsed.is_ca() {
        return fail("may sign other certificates".to_owned());
    }
    // Roots are not part of the chain of intermediates.
    let is_root = |der: &CertificateDer<'_>| {
        X509Certificate::from_der(der).is_ok_and(|(_, it)| it.is_ca() && it.issuer().as_raw() == it.subject().as_raw())
    };
    let (own_roots, intermediates): (Vec<_>, Vec<_>) = rest.iter().cloned().partition(is_root);
    let roots = match roots {
        Some(text) => pem::certificates("roots of the signer", text).map_err(material)?,
        None => own_roots,
    };
    if roots.is_empty() {
        return fail(
            "has no root: neither the response nor caCertificates of the mesh config contains one for the signer"
                .to_owned(),
        );
    }
    if let Err(error) = verify_chain(leaf, &intermediates, &roots, usage, now) {
        return fail(format!("does not verify against the roots: {error}"));
    }
    Ok(SignedChain { leaf: leaf.clone(), certificate, intermediates, roots })
}

/// Whether all names are URIs of these identities.
fn are_identities(names: &[GeneralName<'_>], identities: &[String]) -> bool {
    names.iter().all(|name| matches!(name, GeneralName::URI(uri) if identities.iter().any(|identity| identity == uri)))
}
