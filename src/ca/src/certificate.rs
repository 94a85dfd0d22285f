//! Certificates: the fields that an authority reads, and new ones.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use der::asn1::{AnyRef, BitStringRef, OctetString, UintRef};
use der::oid::db::rfc4519::{COMMON_NAME, ORGANIZATION_NAME};
use der::oid::db::rfc5280::{ID_KP_CLIENT_AUTH, ID_KP_SERVER_AUTH};
use der::{DateTime, Decode, Encode, Error, ErrorKind, Sequence};
use rustls::pki_types::CertificateDer;
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages, SubjectKeyIdentifier,
};
use x509_cert::name::RdnSequence;
use x509_cert::spki::AlgorithmIdentifierRef;
use x509_cert::time::{Time, Validity};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate};

use crate::encoding::{alternative_names, extension, single_attribute_name};
use crate::{IssueError, MaterialError, PrivateKey, pem};

/// A certificate, with the fields that an authority reads.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Certificate {
    der: CertificateDer<'static>,
    /// First second of its validity, in seconds since the Unix epoch.
    pub not_before: i64,
    /// Last second of its validity.
    pub not_after: i64,
    /// Whether it may sign other certificates: it is a CA certificate.
    pub is_authority: bool,
    pub(crate) subject: Vec<u8>,
    pub(crate) public: Vec<u8>,
    pub(crate) key_id: Option<Vec<u8>>,
    uris: Vec<String>,
}

impl Certificate {
    /// Parses a certificate. `part` names it in errors.
    ///
    /// # Errors
    /// It is malformed.
    pub fn parse(part: &str, der: &[u8]) -> Result<Self, MaterialError> {
        let parsed = X509Certificate::from_der(der).ok().filter(|(rest, _)| rest.is_empty());
        let (_, parsed) = parsed.ok_or_else(|| MaterialError::new(part, "is not an X.509 certificate"))?;
        let may_sign = match parsed.key_usage() {
            Ok(None) => true,
            Ok(Some(usage)) => usage.value.key_cert_sign(),
            Err(_) => false,
        };
        let key_id = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        let names = parsed
            .subject_alternative_name()
            .map_err(|_| MaterialError::new(part, "has malformed alternative names"))?;
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

    /// Parses the first certificate of a PEM text.
    ///
    /// # Errors
    /// The text contains no certificate, or the first one is malformed.
    pub fn from_pem(part: &str, text: &str) -> Result<Self, MaterialError> {
        let all = pem::certificates(part, text)?;
        let first = all.first().ok_or_else(|| MaterialError::new(part, "contains no certificate"))?;
        Self::parse(part, first)
    }

    /// The URIs among its alternative names.
    #[must_use]
    pub fn uris(&self) -> &[String] {
        &self.uris
    }

    /// Whether it certifies this key.
    #[must_use]
    pub fn matches_key(&self, key: &PrivateKey) -> bool {
        key.public() == self.public
    }

    /// Its DER.
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

/// The subject of a certificate, besides its alternative names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum SubjectName {
    /// An empty name.
    Empty,
    /// A common name.
    CommonName(String),
    /// An organization.
    Organization(String),
    /// The DER of a name, copied from another certificate.
    Raw(Vec<u8>),
}

impl SubjectName {
    fn der(&self) -> Result<Vec<u8>, Error> {
        match self {
            Self::Empty => RdnSequence::default().to_der(),
            Self::CommonName(name) => single_attribute_name(COMMON_NAME, name)?.to_der(),
            Self::Organization(name) => single_attribute_name(ORGANIZATION_NAME, name)?.to_der(),
            Self::Raw(der) => Ok(der.clone()),
        }
    }
}

/// The content of a new certificate.
pub(crate) struct CertificateTemplate<'a> {
    pub(crate) subject: SubjectName,
    /// Alternative names: SPIFFE URIs, IP addresses or DNS names.
    pub(crate) names: &'a [String],
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
    /// The DER of the SubjectPublicKeyInfo.
    pub(crate) public: &'a [u8],
    pub(crate) is_authority: bool,
}

/// The name and the key identifier of the issuer.
pub(crate) struct CertificateIssuer<'a> {
    /// The DER of its subject.
    pub(crate) subject: &'a [u8],
    pub(crate) key_id: Option<&'a [u8]>,
}

/// `TBSCertificate` of RFC 5280. Names are copied as DER, because `x509_cert`'s own type would encode them again: the
/// issuer must be byte for byte the subject of its certificate, or chains do not verify.
#[derive(Sequence)]
struct CertificateBody<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    version: u8,
    serial_number: UintRef<'a>,
    signature: AlgorithmIdentifierRef<'a>,
    issuer: AnyRef<'a>,
    validity: Validity,
    subject: AnyRef<'a>,
    subject_public_key_info: AnyRef<'a>,
    #[asn1(context_specific = "3", tag_mode = "EXPLICIT")]
    extensions: Vec<Extension>,
}

/// `Certificate` of RFC 5280.
#[derive(Sequence)]
struct SignedBody<'a> {
    body: AnyRef<'a>,
    signature_algorithm: AlgorithmIdentifierRef<'a>,
    signature: BitStringRef<'a>,
}

const VERSION_3: u8 = 2;

impl CertificateTemplate<'_> {
    /// The DER of the signed certificate. Without an issuer it is self-signed.
    ///
    /// # Errors
    /// The system has no randomness, a name is not ASCII, or the key does not sign.
    pub(crate) fn sign(&self, issuer: Option<&CertificateIssuer<'_>>, key: &PrivateKey) -> Result<Vec<u8>, IssueError> {
        let mut serial = [0; 16];
        SystemRandom::new()
            .fill(&mut serial)
            .map_err(|_| IssueError::Sign("the system provides no randomness".to_owned()))?;
        // Positive and never zero.
        serial[0] = serial[0] & 0x7f | 0x40;
        let body = self.body(issuer, key, &serial).map_err(encode_error)?;
        let signature = key.sign(&body).ok_or_else(|| IssueError::Sign("the key does not sign".to_owned()))?;
        signed(&body, key, &signature).map_err(encode_error)
    }

    fn body(&self, issuer: Option<&CertificateIssuer<'_>>, key: &PrivateKey, serial: &[u8]) -> Result<Vec<u8>, Error> {
        let subject = self.subject.der()?;
        let (issuer_name, issuer_key_id) = match issuer {
            Some(issuer) => (issuer.subject, issuer.key_id),
            None => (subject.as_slice(), None),
        };
        let body = CertificateBody {
            version: VERSION_3,
            serial_number: UintRef::new(serial)?,
            signature: key.algorithm().identifier(),
            issuer: AnyRef::from_der(issuer_name)?,
            validity: Validity::new(time(self.not_before)?, time(self.not_after)?),
            subject: AnyRef::from_der(&subject)?,
            subject_public_key_info: AnyRef::from_der(self.public)?,
            extensions: self.extensions(issuer_key_id)?,
        };
        body.to_der()
    }

    fn extensions(&self, issuer_key_id: Option<&[u8]>) -> Result<Vec<Extension>, Error> {
        let mut extensions = Vec::new();
        let usages = match self.is_authority {
            true => KeyUsages::KeyCertSign | KeyUsages::CRLSign,
            false => KeyUsages::DigitalSignature | KeyUsages::KeyEncipherment,
        };
        extensions.push(extension(true, &KeyUsage(usages))?);
        if !self.is_authority {
            extensions.push(extension(false, &ExtendedKeyUsage(vec![ID_KP_SERVER_AUTH, ID_KP_CLIENT_AUTH]))?);
        }
        extensions.push(extension(true, &BasicConstraints { ca: self.is_authority, path_len_constraint: None })?);
        if self.is_authority {
            let id = OctetString::new(key_id(self.public))?;
            extensions.push(extension(false, &SubjectKeyIdentifier(id))?);
        }
        if let Some(id) = issuer_key_id {
            let id = AuthorityKeyIdentifier { key_identifier: Some(OctetString::new(id)?), ..Default::default() };
            extensions.push(extension(false, &id)?);
        }
        if !self.names.is_empty() {
            extensions.push(alternative_names(self.names)?);
        }
        Ok(extensions)
    }
}

/// The DER of a body with its signature: a certificate or a request.
pub(crate) fn signed(body: &[u8], key: &PrivateKey, signature: &[u8]) -> Result<Vec<u8>, Error> {
    let signature_algorithm = key.algorithm().identifier();
    let signature = BitStringRef::from_bytes(signature)?;
    SignedBody { body: AnyRef::from_der(body)?, signature_algorithm, signature }.to_der()
}

pub(crate) fn encode_error(error: Error) -> IssueError {
    let reason = match error.kind() {
        ErrorKind::Value { .. } => "a name is not ASCII".to_owned(),
        _ => error.to_string(),
    };
    IssueError::Sign(format!("the certificate cannot be encoded: {reason}"))
}

/// Converts seconds since the Unix epoch. A value out of range becomes the first or the last moment that a certificate
/// can state.
fn time(second: i64) -> Result<Time, Error> {
    let second = u64::try_from(second).unwrap_or_default();
    let time = DateTime::from_unix_duration(std::time::Duration::from_secs(second));
    // UTCTime up to 2049, GeneralizedTime after it.
    Ok(Time::from(time.unwrap_or(DateTime::INFINITY)))
}

/// The identifier of a key: the first 20 bytes of the SHA-256 of its SubjectPublicKeyInfo.
fn key_id(public: &[u8]) -> Vec<u8> {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, public).as_ref()[..20].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_utc_time_until_2049() {
        let der = |second: i64| time(second).expect("a time").to_der().expect("its DER");
        assert_eq!(der(0), [&[0x17, 13], &b"700101000000Z"[..]].concat());
        assert_eq!(der(2_524_607_999), [&[0x17, 13], &b"491231235959Z"[..]].concat());
        assert_eq!(der(2_524_608_000), [&[0x18, 15], &b"20500101000000Z"[..]].concat());
        assert_eq!(der(i64::MAX), [&[0x18, 15], &b"99991231235959Z"[..]].concat());
    }

    /// The expected bytes were written by another encoder.
    #[test]
    fn encoded_body_is_stable() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let key = PrivateKey::from_pem(include_str!("tests/ec-sec1.key")).expect("a key");
        let names = ["spiffe://td/ns/a/sa/b", "istiod.svc", "10.0.0.1", "::1"].map(str::to_owned);
        let leaf = CertificateTemplate {
            subject: SubjectName::CommonName("spiffe://td/ns/a/sa/b".to_owned()),
            names: &names,
            not_before: 1_795_000_000,
            not_after: 2_600_000_000,
            public: key.public(),
            is_authority: false,
        };
        let issuer_name = SubjectName::Organization("org".to_owned()).der().expect("a name");
        let issuer = CertificateIssuer { subject: &issuer_name, key_id: Some(&[7; 20]) };
        let serial = [0x42; 16];
        let body = leaf.body(Some(&issuer), &key, &serial).expect("a body");
        assert_eq!(hex(&body), include_str!("tests/leaf-body.hex").trim());
        let root = CertificateTemplate {
            subject: SubjectName::Organization("org".to_owned()),
            names: &[],
            not_before: 1_795_000_000,
            not_after: 1_895_000_000,
            public: key.public(),
            is_authority: true,
        };
        assert_eq!(hex(&root.body(None, &key, &serial).expect("a body")), include_str!("tests/root-body.hex").trim());
    }
}
