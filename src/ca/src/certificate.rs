//! Certificates as far as an authority looks into them, and the writing of new ones.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate};

use crate::der::{self, SEQUENCE, extension, list, named_bits, value};
use crate::{MaterialError, PrivateKey, pem};

const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 14];
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
pub(crate) const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 17];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 35];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATION: &[u8] = &[0x55, 4, 10];

/// digitalSignature and keyEncipherment.
const LEAF_USAGE: u8 = 0b1010_0000;
/// keyCertSign and cRLSign.
const AUTHORITY_USAGE: u8 = 0b0000_0110;

/// A certificate and what matters of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Certificate {
    der: CertificateDer<'static>,
    /// First second of its validity, since the Unix epoch.
    pub not_before: i64,
    /// Last second.
    pub not_after: i64,
    /// It may sign others.
    pub is_authority: bool,
    pub(crate) subject: Vec<u8>,
    pub(crate) public: Vec<u8>,
    pub(crate) key_id: Option<Vec<u8>>,
    uris: Vec<String>,
}

impl Certificate {
    /// Reads one.
    ///
    /// # Errors
    /// It is malformed.
    pub fn parse(part: &str, der: &[u8]) -> Result<Self, MaterialError> {
        let parsed = X509Certificate::from_der(der).ok().filter(|(rest, _)| rest.is_empty());
        let (_, parsed) = parsed.ok_or_else(|| MaterialError::new(part, "is no X.509 certificate"))?;
        let may_sign = match parsed.key_usage() {
            Ok(None) => true,
            Ok(Some(usage)) => usage.value.key_cert_sign(),
            Err(_) => false,
        };
        let key_id = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        let names = parsed.subject_alternative_name().map_err(|_| MaterialError::new(part, "has malformed names"))?;
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let uris = names.filter_map(|name| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        });
        Ok(Self {
            uris: uris.collect(),
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
            is_authority: parsed.is_ca() && may_sign,
            subject: parsed.subject().as_raw().to_vec(),
            public: parsed.public_key().raw.to_vec(),
            key_id,
            der: CertificateDer::from(der.to_vec()),
        })
    }

    /// The first of a PEM text.
    ///
    /// # Errors
    /// There is none, or it is malformed.
    pub fn from_pem(part: &str, text: &str) -> Result<Self, MaterialError> {
        let all = pem::certificates(part, text)?;
        let first = all.first().ok_or_else(|| MaterialError::new(part, "holds no certificate"))?;
        Self::parse(part, first)
    }

    /// The URIs among its alternative names.
    #[must_use]
    pub fn uris(&self) -> &[String] {
        &self.uris
    }

    /// Whether it is that of a key.
    #[must_use]
    pub fn is_of(&self, key: &PrivateKey) -> bool {
        key.public() == self.public
    }

    /// Its bytes.
    #[must_use]
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// Its PEM text.
    #[must_use]
    pub fn pem(&self) -> String {
        pem::certificate(&self.der)
    }
}

/// Who a certificate is for, beside its alternative names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SubjectName {
    /// Nobody by name.
    Empty,
    /// A common name.
    CommonName(String),
    /// An organization.
    Organization(String),
    /// A name as another certificate writes it.
    Raw(Vec<u8>),
}

impl SubjectName {
    fn der(&self) -> Vec<u8> {
        let one = |kind: &[u8], text: &str| {
            let text = value(der::UTF8_STRING, text.as_bytes());
            let attribute = list(SEQUENCE, &[&value(der::OID, kind), &text]);
            value(SEQUENCE, &value(der::SET, &attribute))
        };
        match self {
            Self::Empty => value(SEQUENCE, &[]),
            Self::CommonName(name) => one(COMMON_NAME, name),
            Self::Organization(name) => one(ORGANIZATION, name),
            Self::Raw(der) => der.clone(),
        }
    }
}

/// What a new certificate says.
pub(crate) struct Template<'a> {
    pub(crate) subject: SubjectName,
    /// URI of SPIFFE, IP address or DNS name.
    pub(crate) names: &'a [String],
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
    /// The DER of the SubjectPublicKeyInfo.
    pub(crate) public: &'a [u8],
    pub(crate) is_authority: bool,
}

/// Who signs it: the name and key identifier of the issuer. Without one it signs itself.
pub(crate) struct Issuer<'a> {
    pub(crate) subject: &'a [u8],
    pub(crate) key_id: Option<&'a [u8]>,
}

impl Template<'_> {
    /// The signed certificate; nothing if the system has no randomness or the key does not sign.
    pub(crate) fn sign(&self, issuer: Option<&Issuer<'_>>, key: &PrivateKey) -> Option<Vec<u8>> {
        let subject = self.subject.der();
        let own_id = key_id(self.public);
        let (issuer_name, issuer_id) = match issuer {
            Some(issuer) => (issuer.subject, issuer.key_id),
            None => (subject.as_slice(), None),
        };
        let mut extensions = Vec::new();
        let usage = if self.is_authority { AUTHORITY_USAGE } else { LEAF_USAGE };
        extensions.push(extension(KEY_USAGE, true, &named_bits(usage)));
        if !self.is_authority {
            let usages = [value(der::OID, SERVER_AUTH), value(der::OID, CLIENT_AUTH)].concat();
            extensions.push(extension(EXTENDED_KEY_USAGE, false, &value(SEQUENCE, &usages)));
        }
        // TRUE of cA, or nothing: FALSE is the default, which DER leaves out.
        let constraints: &[u8] = if self.is_authority { &[1, 1, 0xff] } else { &[] };
        extensions.push(extension(BASIC_CONSTRAINTS, true, &value(SEQUENCE, constraints)));
        if self.is_authority {
            extensions.push(extension(SUBJECT_KEY_ID, false, &value(der::OCTET_STRING, &own_id)));
        }
        if let Some(id) = issuer_id {
            extensions.push(extension(AUTHORITY_KEY_ID, false, &value(SEQUENCE, &value(0x80, id))));
        }
        if !self.names.is_empty() {
            extensions.push(extension(ALTERNATIVE_NAMES, true, &alternative_names(self.names)));
        }
        let mut serial = [0; 16];
        SystemRandom::new().fill(&mut serial).ok()?;
        // Positive, and never zero.
        serial[0] = serial[0] & 0x7f | 0x40;
        let body = list(
            SEQUENCE,
            &[
                // Version 3.
                &[0xa0, 3, 2, 1, 2],
                &der::unsigned(&serial),
                key.algorithm().identifier(),
                issuer_name,
                &list(SEQUENCE, &[&der::time(self.not_before), &der::time(self.not_after)]),
                &subject,
                self.public,
                &value(0xa3, &value(SEQUENCE, &extensions.concat())),
            ],
        );
        let signature = key.sign(&body)?;
        Some(list(SEQUENCE, &[&body, key.algorithm().identifier(), &der::bits(&signature)]))
    }
}

/// The identifier of a key: the first 20 bytes of a hash.
fn key_id(public: &[u8]) -> Vec<u8> {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, public).as_ref()[..20].to_vec()
}

/// DNS names, IP addresses and URIs of SPIFFE.
pub(crate) fn alternative_names(names: &[String]) -> Vec<u8> {
    let mut out = Vec::new();
    for name in names {
        out.extend(match name.parse::<std::net::IpAddr>().map(|address| address.to_canonical()) {
            Ok(std::net::IpAddr::V4(address)) => value(0x87, &address.octets()),
            Ok(std::net::IpAddr::V6(address)) => value(0x87, &address.octets()),
            Err(_) if name.starts_with("spiffe://") => value(0x86, name.as_bytes()),
            Err(_) => value(0x82, name.as_bytes()),
        });
    }
    value(SEQUENCE, &out)
}
