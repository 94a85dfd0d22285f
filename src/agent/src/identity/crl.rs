//! Certificate revocation lists of the authority, in a mounted file (P04).

use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject as _;
use sluice_tasks::restart;
use tracing::{info, warn};
use x509_parser::prelude::{CertificateRevocationList, FromDer as _};

use super::SecretStore;
use super::watch::FileWatcher;

/// Follows the file. Without the file no certificate is revoked. While the file is invalid, the last lists stay.
pub(super) fn spawn(file: PathBuf, debounce: Duration, secrets: SecretStore) {
    tokio::spawn(restart("revocation lists", move || follow(file.clone(), debounce, secrets.clone())));
}

async fn follow(file: PathBuf, debounce: Duration, secrets: SecretStore) -> anyhow::Result<()> {
    let mut watcher = FileWatcher::new(vec![file.clone()], debounce);
    let mut last = None;
    loop {
        let outcome = match std::fs::read(&file) {
            Ok(pem) => match count_lists(&pem) {
                Ok(lists) => {
                    secrets.set_crl(Some(pem));
                    Ok(lists)
                }
                Err(reason) => Err(reason),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                secrets.set_crl(None);
                Ok(0)
            }
            Err(error) => Err(CrlError::Unreadable(error.to_string())),
        };
        if last.as_ref() != Some(&outcome) {
            match &outcome {
                Ok(lists) => {
                    info!(target: "cache", file = %file.display(), lists, "certificate revocation lists loaded")
                }
                Err(reason) => {
                    warn!(target: "cache", file = %file.display(), %reason, "failed to load certificate revocation lists, the last ones stay");
                }
            }
            last = Some(outcome);
        }
        watcher.changed().await;
    }
}

/// The reason why revocation lists cannot be used. The file is read again when it changes.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
enum CrlError {
    #[error("the file cannot be read: {0}")]
    Unreadable(String),
    #[error("a revocation list is malformed: {0}")]
    Malformed(String),
    #[error("the file contains no revocation list")]
    Empty,
}

/// The number of lists in a PEM text. Envoy rejects the roots together with an invalid list, so all are checked.
fn count_lists(pem: &[u8]) -> Result<usize, CrlError> {
    let mut lists = 0;
    for list in CertificateRevocationListDer::pem_slice_iter(pem) {
        let list = list.map_err(|error| CrlError::Malformed(error.to_string()))?;
        CertificateRevocationList::from_der(&list).map_err(|error| CrlError::Malformed(error.to_string()))?;
        lists += 1;
    }
    if lists == 0 { Err(CrlError::Empty) } else { Ok(lists) }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateRevocationListParams, KeyIdMethod, SerialNumber};
    use tokio::time::timeout;

    use super::super::certificate::tests::root;
    use super::super::{ROOTS, SdsSecret};
    use super::*;
    use crate::metrics::Metrics;

    fn list(number: u64) -> String {
        let now = std::time::SystemTime::now();
        let params = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: (now + Duration::from_secs(3600)).into(),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&root().0).expect("a list").pem().expect("a text")
    }

    #[tokio::test]
    async fn lists_follow_their_file_and_invalid_ones_are_ignored() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("ca-crl.pem");
        let secrets = SecretStore::new(true, Duration::ZERO, Metrics::default());
        secrets.set_roots(root().1.into());
        let mut newest = secrets.watch(ROOTS).expect("roots");
        let (first, second) = (list(1), list(2));
        std::fs::write(&file, &first).expect("write");
        spawn(file.clone(), Duration::from_millis(5), secrets);
        let mut until = async |what: &str, expected: Option<&str>| {
            let shows = newest.wait_for(|secret| match secret.as_deref() {
                Some(SdsSecret::RootsAndCrl(_, crl)) => expected.is_some_and(|expected| expected.as_bytes() == crl),
                Some(SdsSecret::Roots(_)) => expected.is_none(),
                _ => false,
            });
            timeout(Duration::from_secs(30), shows).await.expect(what).expect("it is served");
        };
        until("the first", Some(&first)).await;
        std::fs::write(&file, "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n").expect("write");
        std::fs::write(&file, &second).expect("write");
        until("the second", Some(&second)).await;
        std::fs::remove_file(&file).expect("remove");
        until("none", None).await;
        assert!(count_lists(b"nothing").is_err());
        assert!(count_lists(b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n").is_err());
    }
}
