//! TLS clients that verify servers.

use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use sluice_model::CompliancePolicy;

/// The roots that verify a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Roots {
    /// The system's roots.
    System,
    /// A file, which is read for each connection.
    File(PathBuf),
    /// Certificates in PEM.
    Pem(String),
}

/// The certificate that a client presents, with its key.
#[derive(Clone, Copy)]
pub enum ClientCertificate<'a> {
    /// Files of the chain and of the key.
    Files(&'a Path, &'a Path),
    /// Texts of the chain and of the key in PEM.
    Pem(&'a [u8], &'a [u8]),
}

/// A TLS client that cannot be set up. Contents of files are never part of the text.
#[derive(Debug, thiserror::Error)]
pub enum ClientSetupError {
    /// A file cannot be read.
    #[error("read {what} {}: {error}", .file.display())]
    Unreadable {
        /// What the file has.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// Why.
        error: String,
    },
    /// A file or text has no certificate.
    #[error("{0} contains no certificate")]
    NoCertificate(String),
    /// A file or text has no private key.
    #[error("{0} contains no private key")]
    NoPrivateKey(String),
    /// The system has no roots.
    #[error("the system has no root certificates")]
    NoSystemRoots,
    /// TLS cannot be set up, or the certificate cannot be used.
    #[error("set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// A TLS client that verifies the server by these roots, and presents the certificate if the server requests one.
///
/// # Errors
/// There are no roots, or a file is missing or not PEM.
pub fn verified_client(
    roots: &Roots,
    certificate: Option<ClientCertificate<'_>>,
    policy: Option<CompliancePolicy>,
) -> Result<ClientConfig, ClientSetupError> {
    let mut store = RootCertStore::empty();
    let mut add = |pem: &[u8], name: String| {
        store.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok));
        if store.is_empty() { Err(ClientSetupError::NoCertificate(name)) } else { Ok(()) }
    };
    match roots {
        Roots::System => drop(store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        Roots::Pem(pem) => add(pem.as_bytes(), "the text of the roots".to_owned())?,
        Roots::File(file) => add(&read(file, "the roots")?, file.display().to_string())?,
    }
    if store.is_empty() {
        return Err(ClientSetupError::NoSystemRoots);
    }
    let builder = crate::client(policy)?.with_root_certificates(store);
    let Some(certificate) = certificate else { return Ok(builder.with_no_client_auth()) };
    let (chain, key, chain_name, key_name) = match certificate {
        ClientCertificate::Files(chain, key) => {
            let (chain_name, key_name) = (chain.display().to_string(), key.display().to_string());
            (read(chain, "the certificate")?, PrivateKeyDer::from_pem_file(key).ok(), chain_name, key_name)
        }
        ClientCertificate::Pem(chain, key) => {
            let (chain_name, key_name) = ("the text of the certificate".to_owned(), "the text of the key".to_owned());
            (chain.to_vec(), PrivateKeyDer::from_pem_slice(key).ok(), chain_name, key_name)
        }
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
    let certificates = certificates.map_err(|_| ClientSetupError::NoCertificate(chain_name))?;
    // The library's error is dropped: it may quote the key.
    let key = key.ok_or(ClientSetupError::NoPrivateKey(key_name))?;
    Ok(builder.with_client_auth_cert(certificates, key)?)
}

fn read(file: &Path, what: &'static str) -> Result<Vec<u8>, ClientSetupError> {
    let unreadable =
        |error: std::io::Error| ClientSetupError::Unreadable { what, file: file.to_owned(), error: error.to_string() };
    std::fs::read(file).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_file_without_roots_are_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("root.pem");
        std::fs::write(&file, "nothing").expect("write");
        for roots in [Roots::File(file), Roots::Pem("nothing".to_owned())] {
            let error = verified_client(&roots, None, None).expect_err("no roots");
            assert!(error.to_string().contains("contains no certificate"), "{error}");
        }
        let error = verified_client(&Roots::File("/nowhere/root.pem".into()), None, None).expect_err("no file");
        assert!(error.to_string().contains("/nowhere/root.pem"), "{error}");
    }
}
