//! The server certificate from an external signer (P10).

use der::Encode;
use der::asn1::BitString;
use webpki::KeyUsage;
use x509_cert::attr::{Attribute, Attributes};
use x509_cert::name::Name;
use x509_cert::request::{CertReq, CertReqInfo, ExtensionReq, Version};
use x509_cert::spki::SubjectPublicKeyInfoOwned;
use x509_parser::extensions::GeneralName;

use crate::certificate::encode_error;
use crate::encoding::alternative_names;
use crate::external::verify_signed;
use crate::{IssueError, NewKey, PrivateKey, ServerCertificate, pem};

/// A request for a server certificate, with its key.
#[derive(Clone, Debug)]
pub struct ServerRequest {
    key: PrivateKey,
    names: Vec<String>,
    pem: String,
}

impl ServerRequest {
    /// A request for these DNS names and IP addresses, with a new key.
    ///
    /// # Errors
    /// The system has no randomness, or a name is not ASCII.
    pub fn new(names: &[String]) -> Result<Self, IssueError> {
        let key = PrivateKey::generate(NewKey::EcdsaP256).map_err(|error| IssueError::Sign(error.to_string()))?;
        let request = encode_request(names, &key).map_err(encode_error)?;
        Ok(Self { key, names: names.to_vec(), pem: pem::encode("CERTIFICATE REQUEST", &request) })
    }

    /// The request, PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Verifies the signer's response: a PEM text with the certificate and its chain to one of these roots.
    ///
    /// # Errors
    /// The certificate is for another key, lacks one of the names, or does not verify.
    pub fn accept(self, signed: &str, roots: &str, now: i64) -> Result<ServerCertificate, IssueError> {
        let has_all = |certificate_names: &[GeneralName<'_>]| {
            self.names.iter().all(|name| certificate_names.iter().any(|it| names_equal(it, name)))
        };
        let names = self.names.join(", ");
        let signed =
            verify_signed(signed, self.key.public(), (&names, &has_all), Some(roots), KeyUsage::server_auth(), now)?;
        let mut chain = vec![signed.leaf];
        chain.extend(signed.intermediates);
        let (not_before, not_after) = (signed.certificate.not_before, signed.certificate.not_after);
        Ok(ServerCertificate { chain, key: self.key, not_before, not_after })
    }
}

/// The DER of a signed PKCS #10 request with alternative names only.
fn encode_request(names: &[String], key: &PrivateKey) -> Result<Vec<u8>, der::Error> {
    let mut attributes = Attributes::new();
    attributes.insert(Attribute::try_from(ExtensionReq(vec![alternative_names(names)?]))?)?;
    let info = CertReqInfo {
        version: Version::V1,
        subject: Name::default(),
        public_key: SubjectPublicKeyInfoOwned::try_from(key.public()).map_err(|_| der::ErrorKind::Failed)?,
        attributes,
    };
    let signature = key.sign(&info.to_der()?).ok_or(der::ErrorKind::Failed)?;
    let signature = BitString::from_bytes(&signature)?;
    CertReq { info, algorithm: key.algorithm().identifier().into(), signature }.to_der()
}

/// Whether a name of a certificate equals a DNS name or IP address.
fn names_equal(certificate_name: &GeneralName<'_>, name: &str) -> bool {
    match certificate_name {
        GeneralName::DNSName(certificate_name) => certificate_name.eq_ignore_ascii_case(name),
        GeneralName::IPAddress(bytes) => {
            name.parse::<std::net::IpAddr>().is_ok_and(|address| match address.to_canonical() {
                std::net::IpAddr::V4(address) => address.octets() == *bytes,
                std::net::IpAddr::V6(address) => address.octets() == *bytes,
            })
        }
        _ => false,
    }
}
