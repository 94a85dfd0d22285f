//! Certificates that somebody else signs (P09).
//!
//! Such a signer does what a request asks for. So a request that is forwarded to it may ask for nothing but its sender's
//! names, and what comes back is looked at before anybody gets it.

use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::request::Request;
use crate::{Certificate, IssueError, Issued, pem};

const CHAIN: &str = "certificates of the signer";

/// A request that may be forwarded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ForwardedRequest {
    /// The DER of the key it is for.
    public: Vec<u8>,
    /// Whom it may name.
    identities: Vec<String>,
}

impl ForwardedRequest {
    /// Reads a request of somebody who is proven to be these.
    ///
    /// # Errors
    /// It is not signed by its key, the key is too weak, or it asks for anything but some of these names.
    pub fn parse(text: &str, identities: &[String]) -> Result<Self, IssueError> {
        let fail = |reason: &str| Err(IssueError::Request(reason.to_owned()));
        let request = Request::parse(text)?;
        let Ok(der) = CertificateSigningRequestDer::from_pem_slice(text.as_bytes()) else {
            return fail("certificate signing request is not properly encoded");
        };
        let Ok((_, parsed)) = X509CertificationRequest::from_der(&der) else {
            return fail("failed to parse X.509 certificate signing request");
        };
        let info = &parsed.certification_request_info;
        if info.subject.iter_attributes().any(|attribute| !attribute.as_slice().is_empty()) {
            return fail("certificate signing request asks for a subject, which the signer would believe");
        }
        let mut named = false;
        for attribute in info.iter_attributes() {
            let ParsedCriAttribute::ExtensionRequest(asked) = attribute.parsed_attribute() else {
                return fail("certificate signing request has attributes that are not understood");
            };
            for extension in &asked.extensions {
                match extension.parsed_extension() {
                    ParsedExtension::SubjectAlternativeName(names) if !named => {
                        named = true;
                        if names.general_names.is_empty() || !are_of(&names.general_names, identities) {
                            return fail("certificate signing request asks for names that are not the caller's");
                        }
                    }
                    _ => return fail("certificate signing request asks for more than names"),
                }
            }
        }
        if !named {
            return fail("certificate signing request asks for no name");
        }
        Ok(Self { public: request.public, identities: identities.to_vec() })
    }

    /// Looks at what was signed, a PEM text with the certificate and what leads to a root. Roots are these; without any, the
    /// one that comes with it.
    ///
    /// # Errors
    /// It is not for this key, names somebody else, or does not verify.
    pub fn accept(&self, signed: &str, roots: Option<&str>, now: i64) -> Result<Issued, IssueError> {
        let identities = self.identities.join(", ");
        let are_his = |names: &[GeneralName<'_>]| !names.is_empty() && are_of(names, &self.identities);
        let usage = KeyUsage::client_auth();
        let signed = look_at(signed, &self.public, (&identities, &are_his), roots, usage, now)?;
        let mut chain = vec![pem::certificate(&signed.leaf)];
        chain.extend(signed.between.iter().map(|certificate| pem::certificate(certificate)));
        chain.push(pem::to_pem(&signed.roots));
        Ok(Issued { chain, not_after: signed.certificate.not_after })
    }
}

/// What a signer has sent, as far as it is good.
pub(crate) struct Signed {
    pub(crate) leaf: CertificateDer<'static>,
    pub(crate) certificate: Certificate,
    /// What is between it and the roots.
    pub(crate) between: Vec<CertificateDer<'static>>,
    pub(crate) roots: Vec<CertificateDer<'static>>,
}

/// Whether names are those that a certificate has to have.
type AreRight<'a> = &'a dyn Fn(&[GeneralName<'_>]) -> bool;

/// Looks at what a signer has sent for a key: a PEM text with a certificate and what leads to a root. Roots are these; without
/// any, the one that comes with it. The names that it has to have are given as text, and by whether names are those.
pub(crate) fn look_at(
    signed: &str,
    public: &[u8],
    (wanted, are_right): (&str, AreRight<'_>),
    roots: Option<&str>,
    usage: KeyUsage,
    now: i64,
) -> Result<Signed, IssueError> {
    let fail = |reason: String| Err(IssueError::Sign(format!("the signer's certificate {reason}")));
    let material = |error: crate::MaterialError| IssueError::Sign(error.to_string());
    let all = pem::certificates(CHAIN, signed).map_err(material)?;
    let Some((leaf, rest)) = all.split_first() else { return fail("is not there".to_owned()) };
    let certificate = Certificate::parse(CHAIN, leaf).map_err(material)?;
    if certificate.public != public {
        return fail("is for another key".to_owned());
    }
    let Ok((_, parsed)) = X509Certificate::from_der(leaf) else { return fail("is malformed".to_owned()) };
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.clone()).unwrap_or_default();
    if !are_right(&names) {
        return fail(format!("names {names:?}, not {wanted}"));
    }
    if parsed.is_ca() {
        return fail("may sign others".to_owned());
    }
    // A root is no part of what leads to it.
    let is_root = |der: &CertificateDer<'_>| {
        X509Certificate::from_der(der).is_ok_and(|(_, it)| it.is_ca() && it.issuer().as_raw() == it.subject().as_raw())
    };
    let (own_roots, between): (Vec<_>, Vec<_>) = rest.iter().cloned().partition(is_root);
    let roots = match roots {
        Some(text) => pem::certificates("roots of the signer", text).map_err(material)?,
        None => own_roots,
    };
    if roots.is_empty() {
        return fail("comes without a root, and mesh config has none for the signer".to_owned());
    }
    let anchors: Vec<_> = roots.iter().filter_map(|root| anchor_from_trusted_cert(root).ok()).collect();
    let at = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now).unwrap_or_default()));
    let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.all;
    let verified = EndEntityCert::try_from(leaf)
        .and_then(|it| it.verify_for_usage(algorithms, &anchors, &between, at, usage, None, None).map(|_| ()));
    if let Err(error) = verified {
        return fail(format!("does not verify against the roots: {error}"));
    }
    Ok(Signed { leaf: leaf.clone(), certificate, between, roots })
}

/// Whether all names are URIs of these.
fn are_of(names: &[GeneralName<'_>], identities: &[String]) -> bool {
    names.iter().all(|name| matches!(name, GeneralName::URI(uri) if identities.iter().any(|identity| identity == uri)))
}
