//! A certificate of the server that somebody else provides, as files.

use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::CertifiedKey;
use sluice_ca::{Certificate, PrivateKey};
use zeroize::Zeroizing;

use crate::TlsOptionError;

/// Where such files are mounted.
const MOUNTED: &str = "./var/run/secrets/istiod";

/// Files of a certificate, its key, and the roots that clients are verified with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsFiles {
    /// The certificate and what is between it and a root.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The roots.
    pub roots: PathBuf,
}

impl TlsFiles {
    /// Those of the flags, or else the mounted ones, or else none.
    ///
    /// # Errors
    /// Some of the flags are given and others are not.
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
            (None, None, None) => Ok(Self::mounted(Path::new(MOUNTED))),
            _ => {
                let reason = "goes with --tlsKeyFile and --caCertFile: give all three or none".to_owned();
                Err(TlsOptionError { option: "--tlsCertFile", reason })
            }
        }
    }

    /// Those below a directory, if they are there.
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

    /// What is in them: the certificate with its key, and the roots.
    ///
    /// # Errors
    /// A file cannot be read, or what is in it does not go with the others. The text holds nothing of the key.
    pub fn read(&self) -> Result<(CertifiedKey, Vec<CertificateDer<'static>>), String> {
        let read = |file: &Path| {
            std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
        };
        let (chain, roots) = (read(&self.certificate)?, read(&self.roots)?);
        let key = Zeroizing::new(read(&self.key)?);
        let key = PrivateKey::from_pem(&key).map_err(|error| format!("{}: {error}", self.key.display()))?;
        let chain = certificates(&self.certificate, &chain)?;
        let roots = certificates(&self.roots, &roots)?;
        let leaf = chain.first().ok_or_else(|| format!("{} holds no certificate", self.certificate.display()))?;
        let leaf = Certificate::parse("certificate", leaf)
            .map_err(|error| format!("{}: {error}", self.certificate.display()))?;
        if !leaf.matches_key(&key) {
            return Err(format!("{} is not the key of {}", self.key.display(), self.certificate.display()));
        }
        Ok((CertifiedKey::new(chain, key.signing_key()), roots))
    }
}

fn certificates(file: &Path, pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    all.map_err(|_| format!("{} is no PEM of certificates", file.display()))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn flags_come_before_mounted_files_and_go_together() {
        let some = |name: &str| Some(PathBuf::from(name));
        let found = TlsFiles::find(&some("c"), &some("k"), &some("r")).expect("all three").expect("files");
        assert_eq!((found.certificate, found.key, found.roots), ("c".into(), "k".into(), "r".into()));
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
        let found = TlsFiles::mounted(root.path()).expect("files");
        assert_eq!(found.roots, root.path().join("tls/ca.crt"));
        write("ca/root-cert.pem");
        let found = TlsFiles::mounted(root.path()).expect("files");
        assert_eq!(found.roots, root.path().join("ca/root-cert.pem"));
        assert_eq!(found.directories(), [root.path().join("ca"), root.path().join("tls")]);
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_secs();
        let now = i64::try_from(now).expect("a time");
        let make = || {
            sluice_ca::root::create("td", sluice_ca::NewKey::EcdsaP256, Duration::from_secs(3600), now).expect("a root")
        };
        let (one, other) = (make(), make());
        let root = tempfile::tempdir().expect("a directory");
        let path = |name: &str| root.path().join(name);
        let files = TlsFiles { certificate: path("c"), key: path("k"), roots: path("r") };
        assert!(files.read().expect_err("no files").starts_with("cannot read"));
        std::fs::write(&files.certificate, &one.certificate).expect("write");
        std::fs::write(&files.roots, &one.certificate).expect("write");
        std::fs::write(&files.key, one.key.as_str()).expect("write");
        let (pair, roots) = files.read().expect("they go together");
        assert_eq!((pair.cert.len(), roots.len()), (1, 1));
        std::fs::write(&files.key, other.key.as_str()).expect("write");
        let error = files.read().expect_err("another key");
        assert!(error.contains("is not the key of"), "{error}");
        std::fs::write(&files.key, "secret").expect("write");
        assert!(!files.read().expect_err("no key").contains("secret"));
    }
}
