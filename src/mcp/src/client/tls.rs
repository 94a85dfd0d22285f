//! TLS of the connection to a source (`tlsSettings`).

use std::fmt::Display;
use std::path::Path;

use futures::future::BoxFuture;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use sluice_crypto::{ClientCertificate, CompliancePolicy, Roots, client_without_verification, verified_client};
use sluice_model::{ClientCredential, ClientTls, ClientTlsMode, Secret, Text};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

/// How a text in PEM begins, in contrast to a path.
const PEM_BEGIN: &str = "-----BEGIN ";

/// Certificates that are not in files.
pub trait SourceCredentials: Send + Sync + 'static {
    /// The certificates of a Secret in the namespace of this control plane (`credentialName`).
    fn secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Secret, String>>;

    /// The certificate of this control plane with its roots (`ISTIO_MUTUAL`).
    ///
    /// # Errors
    /// There is none: the reason.
    fn own(&self) -> Result<Secret, String>;
}

/// TLS of one connection.
pub(super) struct SourceTls {
    pub(super) config: ClientConfig,
    /// Names, one of which the certificate of the server has to have; empty accepts all.
    names: Vec<Text>,
    /// Revoked certificates, in PEM or DER.
    revoked: Option<Vec<u8>>,
}

impl SourceTls {
    /// Reads files and Secrets anew, because they change. `None` is plaintext.
    ///
    /// # Errors
    /// The reason, which names the field.
    pub(super) async fn new(
        settings: &ClientTls,
        credentials: &dyn SourceCredentials,
        policy: Option<CompliancePolicy>,
    ) -> Result<Option<Self>, String> {
        let secret = match settings.mode {
            ClientTlsMode::Disable => return Ok(None),
            ClientTlsMode::IstioMutual => Some(credentials.own()?),
            ClientTlsMode::Simple | ClientTlsMode::Mutual => match &settings.credential {
                ClientCredential::None => None,
                ClientCredential::Named(name) => {
                    let secret = credentials.secret(name).await;
                    Some(secret.map_err(|reason| format!("credentialName: {reason}"))?)
                }
                ClientCredential::Unusable => return Err("credentialName: the certificates cannot be used".to_owned()),
            },
        };
        let mut config = match settings.insecure_skip_verify {
            Some(true) => client_without_verification().map_err(|error| error.to_string())?,
            _ => verified(settings, secret.as_ref(), policy)?,
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let revoked = match secret.and_then(|secret| secret.roots) {
            Some(roots) => roots.revoked.map(|revoked| revoked.0.to_vec()),
            None if settings.ca_crl.is_empty() => None,
            None => Some(text_or_file("caCrl", &settings.ca_crl)?),
        };
        Ok(Some(Self { config, names: settings.subject_alt_names.clone(), revoked }))
    }

    /// Checks the certificate of a server that TLS has verified.
    ///
    /// # Errors
    /// It has none of the names, or is revoked.
    pub(super) fn check(&self, certificates: &[CertificateDer<'_>]) -> Result<(), String> {
        if self.names.is_empty() && self.revoked.is_none() {
            return Ok(());
        }
        let certificate = certificates.first().ok_or("the server has no certificate")?;
        let (_, certificate) = X509Certificate::from_der(certificate)
            .map_err(|error| format!("the certificate of the server is invalid: {error}"))?;
        if !self.names.is_empty() && !has_name(&certificate, &self.names) {
            let names: Vec<&str> = self.names.iter().map(Text::as_str).collect();
            return Err(format!("the certificate of the server has none of the subjectAltNames {}", names.join(", ")));
        }
        let Some(revoked) = &self.revoked else { return Ok(()) };
        // A list that cannot be read may revoke the certificate.
        let invalid = |error: &dyn Display| format!("caCrl: is not a certificate revocation list: {error}");
        let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(revoked).collect();
        let mut lists = lists.map_err(|error| invalid(&error))?;
        if lists.is_empty() {
            lists.push(CertificateRevocationListDer::from(revoked.as_slice()));
        }
        for list in &lists {
            let (_, list) = CertificateRevocationList::from_der(list).map_err(|error| invalid(&error))?;
            if list.iter_revoked_certificates().any(|entry| entry.raw_serial() == certificate.raw_serial()) {
                return Err("the certificate of the server is revoked".to_owned());
            }
        }
        Ok(())
    }
}

fn verified(
    settings: &ClientTls,
    secret: Option<&Secret>,
    policy: Option<CompliancePolicy>,
) -> Result<ClientConfig, String> {
    let roots = match secret {
        Some(secret) => {
            let roots = secret.roots.as_ref().ok_or("credentialName: the Secret has no root certificates")?;
            let roots = String::from_utf8(roots.certificates.0.to_vec());
            Roots::Pem(roots.map_err(|_| "credentialName: the root certificates are not PEM".to_owned())?)
        }
        None if settings.ca_certificates.is_empty() => Roots::System,
        None if settings.ca_certificates.trim_start().starts_with(PEM_BEGIN) => {
            Roots::Pem(settings.ca_certificates.to_string())
        }
        None => Roots::File(settings.ca_certificates.as_str().into()),
    };
    let certificate = match (settings.mode, secret) {
        (ClientTlsMode::Simple | ClientTlsMode::Disable, _) => None,
        (_, Some(secret)) => {
            let pair = secret.certificate.as_ref().ok_or("credentialName: the Secret has no certificate")?;
            Some(ClientCertificate::Pem(&pair.chain.0, &pair.key.0))
        }
        (_, None) => {
            let (chain, key) = (settings.client_certificate.as_str(), settings.private_key.as_str());
            Some(ClientCertificate::Files(Path::new(chain), Path::new(key)))
        }
    };
    verified_client(&roots, certificate, policy).map_err(|error| error.to_string())
}

fn text_or_file(field: &str, text: &str) -> Result<Vec<u8>, String> {
    if text.trim_start().starts_with(PEM_BEGIN) {
        return Ok(text.as_bytes().to_vec());
    }
    std::fs::read(text).map_err(|error| format!("{field}: read {text}: {error}"))
}

/// Whether a certificate has one of the names, as a DNS name or as a URI.
fn has_name(certificate: &X509Certificate<'_>, names: &[Text]) -> bool {
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let general = alternative.iter().flat_map(|extension| &extension.value.general_names);
    let is_accepted = |actual: &str| names.iter().any(|name| name.as_str() == actual);
    general.into_iter().any(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => is_accepted(name),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair, RevokedCertParams,
        SerialNumber, date_time_ymd,
    };

    use super::*;

    #[test]
    fn certificate_that_any_list_revokes_is_refused() {
        let key = KeyPair::generate().expect("a key");
        let mut authority = CertificateParams::new([]).expect("parameters");
        authority.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        authority.key_usages = vec![rcgen::KeyUsagePurpose::CrlSign, rcgen::KeyUsagePurpose::KeyCertSign];
        let issuer = Issuer::new(authority, key);
        let list = |serial: u64| {
            let revoked = RevokedCertParams {
                serial_number: SerialNumber::from(serial),
                revocation_time: date_time_ymd(2026, 1, 1),
                reason_code: None,
                invalidity_date: None,
            };
            let list = CertificateRevocationListParams {
                this_update: date_time_ymd(2026, 1, 1),
                next_update: date_time_ymd(2036, 1, 1),
                crl_number: SerialNumber::from(1_u64),
                issuing_distribution_point: None,
                revoked_certs: vec![revoked],
                key_identifier_method: KeyIdMethod::Sha256,
            };
            list.signed_by(&issuer).expect("a list")
        };
        let mut server = CertificateParams::new(["server".to_owned()]).expect("parameters");
        server.serial_number = Some(SerialNumber::from(7_u64));
        let server = server.signed_by(&KeyPair::generate().expect("a key"), &issuer).expect("a certificate");
        let check = |revoked: &[u8]| {
            let config = client_without_verification().expect("a client");
            let tls = SourceTls { config, names: Vec::new(), revoked: Some(revoked.to_vec()) };
            tls.check(&[server.der().clone()])
        };
        let pem = |serial: u64| list(serial).pem().expect("PEM");
        assert_eq!(check(pem(5).as_bytes()), Ok(()));
        let refused = Err("the certificate of the server is revoked".to_owned());
        assert_eq!(check((pem(5) + &pem(7)).as_bytes()), refused, "the second list");
        assert_eq!(check(list(7).der()), refused, "DER");
        assert!(check(b"text").is_err_and(|error| error.starts_with("caCrl: ")));
    }
}
