//! A certificate authority for tests. It issues certificates of hosts, and of intermediate authorities for control planes.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate authority of one test run.
pub struct Authority {
    root_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new root.
    ///
    /// # Errors
    /// Key generation fails.
    pub fn new() -> Result<Self> {
        let key = KeyPair::generate().context("make the root key")?;
        let params = authority_params("root");
        let root_pem = params.self_signed(&key).context("sign the root")?.pem();
        Ok(Self { root_pem, issuer: Issuer::new(params, key) })
    }

    /// The root certificate, PEM.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.root_pem
    }

    /// Certificate and key of a workload identity, PEM.
    ///
    /// # Errors
    /// Signing fails.
    pub fn issue(&self, spiffe_id: &str) -> Result<(String, String)> {
        self.sign(CertificateParams::default(), vec![identity_name(spiffe_id)?])
    }

    /// The same with a certificate that is valid from now on for `lifetime`.
    ///
    /// # Errors
    /// Signing fails.
    pub fn issue_for(&self, spiffe_id: &str, lifetime: Duration) -> Result<(String, String)> {
        let now = SystemTime::now();
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (now.into(), (now + lifetime).into());
        self.sign(params, vec![identity_name(spiffe_id)?])
    }

    /// Certificate and key of hosts, PEM.
    ///
    /// # Errors
    /// Key generation fails, or a host name is not ASCII.
    pub fn issue_hosts(&self, hosts: &[String]) -> Result<(String, String)> {
        let name = |host: &String| Ok(SanType::DnsName(host.as_str().try_into().context("a host name is ASCII")?));
        self.sign(CertificateParams::default(), hosts.iter().map(name).collect::<Result<_>>()?)
    }

    /// Writes the files of an intermediate authority of this root to the directory where a control plane reads them, with
    /// the roots to trust. Returns the certificate of the authority.
    ///
    /// # Errors
    /// Key generation fails, or a file cannot be written.
    pub fn plug_in(&self, directory: &Path, name: &str, roots: &str) -> Result<String> {
        let key = KeyPair::generate().context("make a key")?;
        let mut params = authority_params(name);
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).context("sign a certificate")?.pem();
        std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        for (file, text) in [
            ("root-cert.pem", roots),
            ("cert-chain.pem", &*(certificate.clone() + &self.root_pem)),
            ("ca-key.pem", &*key.serialize_pem()),
            ("ca-cert.pem", &certificate),
        ] {
            std::fs::write(directory.join(file), text).with_context(|| format!("write {file}"))?;
        }
        match std::fs::remove_file(directory.join("istio-generated")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("remove the file istio-generated")
            }
            _ => Ok(certificate),
        }
    }

    /// Writes revocation lists for an authority that [`Authority::plug_in`] wrote: one of the authority with these serial
    /// numbers, and an empty one of the root. A verifier needs a revocation list of each authority of a chain.
    ///
    /// # Errors
    /// The key cannot be read, or the file cannot be written.
    pub fn revoke(&self, directory: &Path, name: &str, serials: &[Vec<u8>]) -> Result<()> {
        let key = std::fs::read_to_string(directory.join("ca-key.pem")).context("read the authority's key")?;
        let authority =
            Issuer::new(authority_params(name), KeyPair::from_pem(&key).context("read the authority's key")?);
        let lists = revocation_list(&authority, serials)? + &self.revocation_list(&[])?;
        std::fs::write(directory.join("ca-crl.pem"), lists).context("write ca-crl.pem")
    }

    /// A revocation list of this root with these serial numbers, PEM.
    ///
    /// # Errors
    /// Signing fails.
    pub fn revocation_list(&self, serials: &[Vec<u8>]) -> Result<String> {
        revocation_list(&self.issuer, serials)
    }

    fn sign(&self, mut params: CertificateParams, names: Vec<SanType>) -> Result<(String, String)> {
        let key = KeyPair::generate().context("make a key")?;
        params.subject_alt_names = names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).context("sign a certificate")?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// The name of a workload in its certificate.
fn identity_name(spiffe_id: &str) -> Result<SanType> {
    Ok(SanType::URI(spiffe_id.try_into().context("a SPIFFE id is ASCII")?))
}

/// The revocation list of an authority, PEM.
fn revocation_list(authority: &Issuer<'_, KeyPair>, serials: &[Vec<u8>]) -> Result<String> {
    let now = SystemTime::now();
    let revoked = |serial: &Vec<u8>| RevokedCertParams {
        serial_number: SerialNumber::from(serial.clone()),
        revocation_time: now.into(),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: now.into(),
        next_update: (now + Duration::from_secs(3600)).into(),
        crl_number: SerialNumber::from(serials.len() as u64),
        issuing_distribution_point: None,
        revoked_certs: serials.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(authority).context("sign a revocation list")?.pem().context("write a revocation list")
}

/// The parameters of an authority's certificate.
fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name.push(DnType::OrganizationName, "cluster.local");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// The certificates of a PEM text.
///
/// # Errors
/// The text is not PEM.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().context("read certificates")
}

/// The private key of a PEM text.
///
/// # Errors
/// The text is not PEM.
pub fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).context("read a key")
}
