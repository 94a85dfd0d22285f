//! A server certificate from files.

use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::CertifiedKey;
use sluice_ca::{Certificate, PrivateKey};
use zeroize::Zeroizing;

use crate::TlsOptionError;

/// Default mount path of the files.
const MOUNT_PATH: &str = "./var/run/secrets/istiod";

/// Files of the server certificate that cannot be used. A retry helps once the file has changed.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// A file cannot be read.
    #[error("cannot read {}: {error}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// A file has invalid content.
    #[error("{}: {reason}", .file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// What is wrong; the private key is never quoted.
        reason: String,
    },
}

/// Files of a server certificate, its key, and the roots for client certificates.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The root certificates.
    pub roots: PathBuf,
}

impl TlsFiles {
    /// The files that the flags name, else the mounted files, else `None`.
    ///
    /// # Errors
    /// Only some of the three flags are set.
    pub fn find(
        certificate: &Option<PathBuf>,
        key: &Option<PathBuf>,
        roots: &Option<PathBuf>,
    ) -> Result<Option<Self>, TlsOptionError> {
        match (certificate, key, roots) {
            (Some(certificate), Some(key), Some(roots)) => {
                let (certificate, key, roots) = (certificate.clone(), key.clone(), roots.clone());
                Ok(Some(Self { certificate, key, roots }))
            }
            (None, None, None) => Ok(Self::mounted(Path::new(MOUNT_PATH))),
            _ => {
                let reason = "requires --tlsKeyFile and --caCertFile: set all three flags or none".to_owned();
                Err(TlsOptionError { option: "--tlsCertFile", reason })
            }
        }
    }

    /// The files below a directory, if they exist.
    fn mounted(root: &Path) -> Option<Self> {
        let roots = [root.join("ca/root-cert.pem"), root.join("tls/ca.crt")];
        let files = Self {
            certificate: root.join("tls/tls.crt"),
            key: root.join("tls/tls.key"),
            roots: roots.into_iter().find(|file| file.is_file())?,
        };
        (files.certificate.is_file() && files.key.is_file()).then_some(files)
    }

    /// The directories to watch.
    pub fn directories(&self) -> Vec<PathBuf> {
        let files = [&self.certificate, &self.key, &self.roots];
        let mut all: Vec<PathBuf> = files.into_iter().filter_map(|file| file.parent()).map(Path::to_owned).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Reads the certificate with its key, and the roots.
    ///
    /// # Errors
    /// A file cannot be read, or its content is invalid or does not match the others. No text quotes the key.
    pub fn read(&self) -> Result<(CertifiedKey, Vec<CertificateDer<'static>>), TlsFileError> {
        let read = |file: &Path| {
            std::fs::read_to_string(file).map_err(|error| TlsFileError::Read { file: file.to_owned(), error })
        };
        let invalid = |file: &Path, reason: String| TlsFileError::Invalid { file: file.to_owned(), reason };
        let (chain, roots) = (read(&self.certificate)?, read(&self.roots)?);
        let key = Zeroizing::new(read(&self.key)?);
        let key = PrivateKey::from_pem(&key).map_err(|error| invalid(&self.key, error.to_string()))?;
        let chain = certificates(&self.certificate, &chain)?;
        let roots = certificates(&self.roots, &roots)?;
        let leaf = chain.first().ok_or_else(|| invalid(&self.certificate, "contains no certificate".to_owned()))?;
        let leaf =
            Certificate::parse("certificate", leaf).map_err(|error| invalid(&self.certificate, error.to_string()))?;
        if !leaf.matches_key(&key) {
            let reason = format!("is not the key of {}", self.certificate.display());
            return Err(invalid(&self.key, reason));
        }
        Ok((CertifiedKey::new(chain, key.signing_key()), roots))
    }
}

fn certificates(file: &Path, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    all.map_err(|_| TlsFileError::Invalid {
        file: file.to_owned(),
        reason: "is not a PEM list of certificates".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn flags_precede_mounted_files_and_must_all_be_set() {
        let some = |name: &str| Some(PathBuf::from(name));
        let files = TlsFiles::find(&some("c"), &some("k"), &some("r")).expect("all three").expect("files");
        assert_eq!((files.certificate, files.key, files.roots), ("c".into(), "k".into(), "r".into()));
        assert!(TlsFiles::find(&some("c"), &None, &some("r")).is_err());

        let root = tempfile::tempdir().expect("a directory");
        let write = |name: &str| {
            let file = root.path().join(name);
            std::fs::create_dir_all(file.parent().expect("a directory")).expect("create it");
            std::fs::write(file, "").expect("write a file");
        };
        assert_eq!(TlsFiles::mounted(root.path()), None);
        write("tls/tls.crt");
        write("tls/tls.key");
        assert_eq!(TlsFiles::mounted(root.path()), None);
        write("tls/ca.crt");
        let files = TlsFiles::mounted(root.path()).expect("files");
        assert_eq!(files.roots, root.path().join("tls/ca.crt"));
        write("ca/root-cert.pem");
        let files = TlsFiles::mounted(root.path()).expect("files");
        assert_eq!(files.roots, root.path().join("ca/root-cert.pem"));
        assert_eq!(files.directories(), [root.path().join("ca"), root.path().join("tls")]);
    }

    #[test]
    fn key_of_another_certificate_is_rejected() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_secs();
        let now = i64::try_from(now).expect("a time");
        let create_root = || {
            sluice_ca::root::create("td", sluice_ca::NewKey::EcdsaP256, Duration::from_secs(3600), now).expect("a root")
        };
        let (one, other) = (create_root(), create_root());
        let root = tempfile::tempdir().expect("a directory");
        let path = |name: &str| root.path().join(name);
        let files = TlsFiles { certificate: path("c"), key: path("k"), roots: path("r") };
        assert!(files.read().expect_err("no files").to_string().starts_with("cannot read"));
        std::fs::write(&files.certificate, &one.certificate).expect("write");
        std::fs::write(&files.roots, &one.certificate).expect("write");
        std::fs::write(&files.key, one.key.as_str()).expect("write");
        let (pair, roots) = files.read().expect("they go together");
        assert_eq!((pair.cert.len(), roots.len()), (1, 1));
        std::fs::write(&files.key, other.key.as_str()).expect("write");
        let error = files.read().expect_err("another key").to_string();
        assert!(error.contains("is not the key of"), "{error}");
        std::fs::write(&files.key, "secret").expect("write");
        assert!(!files.read().expect_err("no key").to_string().contains("secret"));
    }
}
