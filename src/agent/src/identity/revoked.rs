//! Revocation lists of the authority, which are mounted as a file (P04).

use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject as _;
use tracing::{info, warn};
use x509_parser::prelude::{CertificateRevocationList, FromDer as _};

use super::Secrets;
use super::watched::Watched;

/// Follows the file. While there is none, nothing is revoked; while it cannot be read, what was read before counts.
pub(super) fn spawn(file: PathBuf, debounce: Duration, secrets: Secrets) {
    tokio::spawn(async move {
        let mut watched = Watched::new(vec![file.clone()], debounce);
        let mut last = None;
        loop {
            let outcome = match std::fs::read(&file) {
                Ok(pem) => match count(&pem) {
                    Ok(lists) => {
                        secrets.set_revoked(Some(pem));
                        Ok(lists)
                    }
                    Err(reason) => Err(reason),
                },
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    secrets.set_revoked(None);
                    Ok(0)
                }
                Err(error) => Err(error.to_string()),
            };
            if last.as_ref() != Some(&outcome) {
                match &outcome {
                    Ok(lists) => info!(target: "cache", file = %file.display(), lists, "revocation lists"),
                    Err(reason) => {
                        warn!(target: "cache", file = %file.display(), "revocation lists stay as they were: {reason}");
                    }
                }
                last = Some(outcome);
            }
            watched.changed().await;
        }
    });
}

/// How many lists a text has; Envoy would refuse the roots together with one that is none.
fn count(pem: &[u8]) -> Result<usize, String> {
    let mut lists = 0;
    for list in CertificateRevocationListDer::pem_slice_iter(pem) {
        let list = list.map_err(|error| error.to_string())?;
        CertificateRevocationList::from_der(&list).map_err(|error| error.to_string())?;
        lists += 1;
    }
    if lists == 0 { Err("there is no list in it".to_owned()) } else { Ok(lists) }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateRevocationListParams, KeyIdMethod, SerialNumber};
    use tokio::time::timeout;

    use super::super::certificate::tests::root;
    use super::super::{ROOTS, Secret};
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
    async fn lists_come_change_and_go_with_their_file_and_broken_ones_do_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("ca-crl.pem");
        let secrets = Secrets::new(true, Duration::ZERO, Metrics::default());
        secrets.set_roots(root().1.into());
        let mut newest = secrets.watch(ROOTS).expect("roots");
        let (first, second) = (list(1), list(2));
        std::fs::write(&file, &first).expect("write");
        spawn(file.clone(), Duration::from_millis(5), secrets);
        let mut until = async |what: &str, wanted: Option<&str>| {
            let shows = newest.wait_for(|secret| match secret.as_deref() {
                Some(Secret::RootsAndRevoked(_, revoked)) => wanted.is_some_and(|wanted| wanted.as_bytes() == revoked),
                Some(Secret::Roots(_)) => wanted.is_none(),
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
        assert!(count(b"nothing").is_err());
        assert!(count(b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n").is_err());
    }
}
