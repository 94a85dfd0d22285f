//! The material of an authority, checked as a whole.

use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};
use zeroize::Zeroizing;

use crate::certificate::{Issuer, Template};
use crate::{Certificate, MaterialError, PrivateKey, SubjectName, pem};

const SIGNING: &str = "signing certificate";
const CHAIN: &str = "certificate chain";
const ROOTS: &str = "root certificates";
const REVOKED: &str = "revocation lists";

/// What an authority is made of, as PEM texts.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Material {
    /// The signing certificate.
    pub certificate: String,
    /// Its private key.
    pub key: Zeroizing<String>,
    /// What is between it and the roots, itself included; empty if it is a root.
    pub chain: String,
    /// The roots.
    pub roots: String,
    /// Lists of revoked certificates, empty without any.
    pub revoked: String,
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material")
            .field("certificate", &self.certificate)
            .field("roots", &self.roots)
            .finish_non_exhaustive()
    }
}

/// An authority that can sign: what it issues verifies against its roots.
#[derive(Clone, Debug)]
pub struct Authority {
    pub(crate) key: PrivateKey,
    pub(crate) certificate: Certificate,
    chain: Vec<CertificateDer<'static>>,
    roots: Vec<CertificateDer<'static>>,
    roots_pem: String,
    revoked: String,
}

impl Authority {
    /// Checks the material: the key is that of the certificate, which may sign and is valid now, and what it signs is
    /// verified by the roots through the chain. With revocation lists, each certificate of the chain has one, or else
    /// proxies would refuse everybody.
    ///
    /// # Errors
    /// What is wrong with which part.
    pub fn new(material: &Material, now: i64) -> Result<Self, MaterialError> {
        let fail = |part: &str, reason: &str| Err(MaterialError::new(part, reason));
        let certificate = Certificate::from_pem(SIGNING, &material.certificate)?;
        let key = PrivateKey::from_pem(&material.key)?;
        if !certificate.is_of(&key) {
            return fail("private key", "is not that of the signing certificate");
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
            return fail(ROOTS, "hold no certificate");
        }
        let mut chain = pem::certificates(CHAIN, &material.chain)?;
        // Clients cannot find it anywhere else.
        if !chain.contains(certificate.der()) && !roots.contains(certificate.der()) {
            chain.insert(0, certificate.der().clone());
        }
        let roots_pem = pem::to_pem(&roots);
        let authority = Self { key, certificate, chain, roots, roots_pem, revoked: material.revoked.trim().to_owned() };
        authority.try_out(now)?;
        authority.check_revoked()?;
        Ok(authority)
    }

    /// Issues a certificate that nobody gets, and verifies it.
    fn try_out(&self, now: i64) -> Result<(), MaterialError> {
        let trial = Template {
            subject: SubjectName::Empty,
            names: &["spiffe://trial/ns/trial/sa/trial".to_owned()],
            not_before: now,
            not_after: self.certificate.not_after,
            public: self.key.public(),
            is_authority: false,
        };
        let trial = trial.sign(Some(&self.issuer()), &self.key);
        let trial = trial.ok_or_else(|| MaterialError::new("private key", "does not sign"))?;
        let wrong = |error: webpki::Error| {
            MaterialError::new(CHAIN, format!("what is signed does not verify against the roots: {error}"))
        };
        let seconds = u64::try_from(now).unwrap_or_default();
        let anchors: Vec<_> = self.roots.iter().filter_map(|root| anchor_from_trusted_cert(root).ok()).collect();
        let trial = CertificateDer::from(trial);
        EndEntityCert::try_from(&trial)
            .and_then(|leaf| {
                leaf.verify_for_usage(
                    rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.all,
                    &anchors,
                    &self.chain,
                    UnixTime::since_unix_epoch(Duration::from_secs(seconds)),
                    KeyUsage::client_auth(),
                    None,
                    None,
                )
                .map(|_| ())
            })
            .map_err(wrong)
    }

    fn check_revoked(&self) -> Result<(), MaterialError> {
        if self.revoked.is_empty() {
            return Ok(());
        }
        let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(self.revoked.as_bytes()).collect();
        let lists = lists.map_err(|_| MaterialError::new(REVOKED, "are no PEM of revocation lists"))?;
        let mut parsed = Vec::new();
        for list in &lists {
            match CertificateRevocationList::from_der(list) {
                Ok(([], list)) => parsed.push(list),
                _ => return Err(MaterialError::new(REVOKED, "hold what is no revocation list")),
            }
        }
        for signer in &self.chain {
            let Ok((_, signer)) = X509Certificate::from_der(signer) else {
                return Err(MaterialError::new(CHAIN, "holds what is no X.509 certificate"));
            };
            if !parsed.iter().any(|list| list.verify_signature(signer.public_key()).is_ok()) {
                return Err(MaterialError::new(REVOKED, format!("have none that is signed by {}", signer.subject())));
            }
        }
        Ok(())
    }

    pub(crate) fn issuer(&self) -> Issuer<'_> {
        Issuer { subject: &self.certificate.subject, key_id: self.certificate.key_id.as_deref() }
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

    /// What is between what it issues and the roots; empty if it is a root itself.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The roots.
    #[must_use]
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// The roots as one text.
    #[must_use]
    pub fn roots_pem(&self) -> &str {
        &self.roots_pem
    }

    /// Lists of revoked certificates, empty without any.
    #[must_use]
    pub fn revoked(&self) -> &str {
        &self.revoked
    }

    /// What it is made of.
    #[must_use]
    pub fn material(&self) -> Material {
        Material {
            certificate: self.certificate.pem(),
            key: Zeroizing::new(self.key.secret_pem().to_owned()),
            chain: pem::to_pem(&self.chain),
            roots: self.roots_pem.clone(),
            revoked: self.revoked.clone(),
        }
    }
}
