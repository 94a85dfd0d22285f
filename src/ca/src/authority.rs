//! An authority, and the checks of its material.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use webpki::KeyUsage;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};
use zeroize::Zeroizing;

use crate::certificate::{CertificateIssuer, CertificateTemplate, SubjectName};
use crate::verify::verify_chain;
use crate::{Certificate, MaterialError, PrivateKey, pem};

const SIGNING: &str = "signing certificate";
const CHAIN: &str = "certificate chain";
const ROOTS: &str = "root certificates";
const CRL: &str = "revocation lists";

/// The certificates and the key of an authority, as PEM texts.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Material {
    /// The signing certificate.
    pub certificate: String,
    /// Its private key.
    pub key: Zeroizing<String>,
    /// The signing certificate and the intermediates up to the roots; empty if it is a root.
    pub chain: String,
    /// The roots.
    pub roots: String,
    /// Certificate revocation lists; may be empty.
    pub crl: String,
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material")
            .field("certificate", &self.certificate)
            .field("roots", &self.roots)
            .finish_non_exhaustive()
    }
}

/// An authority that can sign. The certificates that it issues verify against its roots.
#[derive(Clone, Debug)]
pub struct Authority {
    pub(crate) key: PrivateKey,
    pub(crate) certificate: Certificate,
    chain: Vec<CertificateDer<'static>>,
    roots: Vec<CertificateDer<'static>>,
    roots_pem: String,
    crl: String,
}

impl Authority {
    /// Checks the material. The key must match the signing certificate, which may sign and is valid now. A certificate
    /// that it signs must verify against the roots through the chain. With revocation lists, each certificate of the
    /// chain needs one, because proxies would otherwise reject all peers.
    ///
    /// # Errors
    /// The invalid part, and the reason.
    pub fn new(material: &Material, now: i64) -> Result<Self, MaterialError> {
        let fail = |part: &str, reason: &str| Err(MaterialError::new(part, reason));
        let certificate = Certificate::from_pem(SIGNING, &material.certificate)?;
        let key = PrivateKey::from_pem(&material.key)?;
        if !certificate.matches_key(&key) {
            return fail("private key", "does not match the signing certificate");
        }
        if !certificate.is_authority {
            return fail(SIGNING, "is not authorized to sign other certificates");
        }
        if now > certificate.not_after {
            return fail(SIGNING, "has expired");
        }
        if now < certificate.not_before {
            return fail(SIGNING, "is not valid yet");
        }
        let mut roots: Vec<CertificateDer<'static>> = Vec::new();
        for root in pem::certificates(ROOTS, &material.roots)? {
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        if roots.is_empty() {
            return fail(ROOTS, "contain no certificate");
        }
        let mut chain = pem::certificates(CHAIN, &material.chain)?;
        // Clients receive the signing certificate only in the chain.
        if !chain.contains(certificate.der()) && !roots.contains(certificate.der()) {
            chain.insert(0, certificate.der().clone());
        }
        let roots_pem = pem::to_pem(&roots);
        let authority = Self { key, certificate, chain, roots, roots_pem, crl: material.crl.trim().to_owned() };
        authority.verify_trial_certificate(now)?;
        authority.check_crl()?;
        Ok(authority)
    }

    /// Issues a test certificate, and verifies it.
    fn verify_trial_certificate(&self, now: i64) -> Result<(), MaterialError> {
        let trial = CertificateTemplate {
            subject: SubjectName::Empty,
            names: &["spiffe://trial/ns/trial/sa/trial".to_owned()],
            not_before: now,
            not_after: self.certificate.not_after,
            public: self.key.public(),
            is_authority: false,
        };
        let trial = trial.sign(Some(&self.issuer()), &self.key);
        let trial = trial.map_err(|error| MaterialError::new("private key", error.to_string()))?;
        let trial = CertificateDer::from(trial);
        verify_chain(&trial, &self.chain, &self.roots, KeyUsage::client_auth(), now).map_err(|error| {
            MaterialError::new(CHAIN, format!("a certificate that it signs does not verify against the roots: {error}"))
        })
    }

    fn check_crl(&self) -> Result<(), MaterialError> {
        if self.crl.is_empty() {
            return Ok(());
        }
        let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(self.crl.as_bytes()).collect();
        let lists = lists.map_err(|_| MaterialError::new(CRL, "are not a PEM text of revocation lists"))?;
        let mut parsed = Vec::new();
        for list in &lists {
            match CertificateRevocationList::from_der(list) {
                Ok(([], list)) => parsed.push(list),
                _ => return Err(MaterialError::new(CRL, "contain a section that is not a revocation list")),
            }
        }
        for signer in &self.chain {
            let Ok((_, signer)) = X509Certificate::from_der(signer) else {
                return Err(MaterialError::new(CHAIN, "contains a section that is not an X.509 certificate"));
            };
            if !parsed.iter().any(|list| list.verify_signature(signer.public_key()).is_ok()) {
                return Err(MaterialError::new(CRL, format!("contain no list that is signed by {}", signer.subject())));
            }
        }
        Ok(())
    }

    pub(crate) fn issuer(&self) -> CertificateIssuer<'_> {
        CertificateIssuer { subject: &self.certificate.subject, key_id: self.certificate.key_id.as_deref() }
    }

    /// The signing certificate.
    #[must_use]
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The signing key.
    #[must_use]
    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// The certificates between those it issues and the roots; empty if the signing certificate is a root.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The roots.
    #[must_use]
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// The roots as one PEM text.
    #[must_use]
    pub fn roots_pem(&self) -> &str {
        &self.roots_pem
    }

    /// Certificate revocation lists as PEM; may be empty.
    #[must_use]
    pub fn crl(&self) -> &str {
        &self.crl
    }

    /// Its certificates and key.
    #[must_use]
    pub fn material(&self) -> Material {
        Material {
            certificate: self.certificate.pem(),
            key: Zeroizing::new(self.key.secret_pem().to_owned()),
            chain: pem::to_pem(&self.chain),
            roots: self.roots_pem.clone(),
            crl: self.crl.clone(),
        }
    }
}
