//! The server's own certificate, where somebody else signs it (P10).

use webpki::KeyUsage;
use x509_parser::extensions::GeneralName;

use crate::certificate::{ALTERNATIVE_NAMES, alternative_names};
use crate::der::{self, SEQUENCE, bits, extension, list, value};
use crate::external::look_at;
use crate::{IssueError, NewKey, PrivateKey, ServerCertificate, pem};

/// PKCS #9 `extensionRequest`.
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14];

/// A request for a certificate of the server's names, with the key it is for.
#[derive(Clone, Debug)]
pub struct ServerRequest {
    key: PrivateKey,
    names: Vec<String>,
    pem: String,
}

impl ServerRequest {
    /// One for these DNS names and addresses, with a new key.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new(names: &[String]) -> Result<Self, IssueError> {
        let fail = |error: crate::MaterialError| IssueError::Sign(error.to_string());
        let key = PrivateKey::generate(NewKey::EcdsaP256).map_err(fail)?;
        // Nobody is named but by these, so they are critical.
        let names_asked = value(SEQUENCE, &extension(ALTERNATIVE_NAMES, true, &alternative_names(names)));
        let asked = list(SEQUENCE, &[&value(der::OID, EXTENSION_REQUEST), &value(der::SET, &names_asked)]);
        let body = list(SEQUENCE, &[&der::unsigned(&[]), &value(SEQUENCE, &[]), key.public(), &value(0xa0, &asked)]);
        let signature = key.sign(&body).ok_or_else(|| IssueError::Sign("the key does not sign".to_owned()))?;
        let request = list(SEQUENCE, &[&body, key.algorithm().identifier(), &bits(&signature)]);
        Ok(Self { key, names: names.to_vec(), pem: pem::write("CERTIFICATE REQUEST", &request) })
    }

    /// The request, PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Looks at what was signed, a PEM text with the certificate and what leads to one of these roots.
    ///
    /// # Errors
    /// It is not for this key, lacks one of the names, or does not verify.
    pub fn accept(self, signed: &str, roots: &str, now: i64) -> Result<ServerCertificate, IssueError> {
        let has_all = |given: &[GeneralName<'_>]| self.names.iter().all(|name| given.iter().any(|it| is(it, name)));
        let names = self.names.join(", ");
        let signed = look_at(signed, self.key.public(), (&names, &has_all), Some(roots), KeyUsage::server_auth(), now)?;
        let mut chain = vec![signed.leaf];
        chain.extend(signed.between);
        let (not_before, not_after) = (signed.certificate.not_before, signed.certificate.not_after);
        Ok(ServerCertificate { chain, key: self.key, not_before, not_after })
    }
}

/// Whether a name of a certificate is this one.
fn is(given: &GeneralName<'_>, name: &str) -> bool {
    match given {
        GeneralName::DNSName(given) => given.eq_ignore_ascii_case(name),
        GeneralName::IPAddress(bytes) => {
            name.parse::<std::net::IpAddr>().is_ok_and(|address| match address.to_canonical() {
                std::net::IpAddr::V4(address) => address.octets() == *bytes,
                std::net::IpAddr::V6(address) => address.octets() == *bytes,
            })
        }
        _ => false,
    }
}
