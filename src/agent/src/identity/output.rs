//! Writes the workload's certificate, its key and the roots to files for applications (`OUTPUT_CERTS`).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use sluice_tasks::restart;
use tracing::{debug, warn};

use super::{CERTIFICATE, ROOTS, SdsSecret, SecretStore};
use crate::files::write_atomic;
use crate::settings::{CertificateOutput, KeyFiles};

/// Delay after a failed attempt.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Writes the files, now and when a secret changes.
pub(super) fn spawn(output: CertificateOutput, secrets: SecretStore) {
    tokio::spawn(restart("certificate files", move || follow(output.clone(), secrets.clone(), RETRY_DELAY)));
}

async fn follow(output: CertificateOutput, secrets: SecretStore, retry_delay: Duration) -> Result<()> {
    let (mut certificate, mut roots) = (secrets.watch(CERTIFICATE)?, secrets.watch(ROOTS)?);
    loop {
        // Roots first, because peers may present certificates of a new root immediately.
        let latest = [roots.borrow_and_update().clone(), certificate.borrow_and_update().clone()];
        let written = latest.iter().flatten().try_for_each(|secret| write(&output, secret));
        let directory = output.directory.display();
        match &written {
            Ok(()) => debug!(target: "cache", %directory, "certificate files are written"),
            Err(error) => {
                let error = format!("{error:#}");
                warn!(target: "cache", %directory, error, retry = ?retry_delay, "failed to write the certificate to files");
            }
        }
        tokio::select! {
            changed = roots.changed() => changed?,
            changed = certificate.changed() => changed?,
            () = tokio::time::sleep(retry_delay), if written.is_err() => {}
        }
    }
}

/// Writes the files of a secret whose content differs.
fn write(output: &CertificateOutput, secret: &Arc<SdsSecret>) -> Result<()> {
    std::fs::create_dir_all(&output.directory).context("make the directory")?;
    let write = |file: &Path, content: &[u8]| {
        if std::fs::read(file).is_ok_and(|current| current == content) {
            return Ok(());
        }
        write_atomic(file, content, output.mode).with_context(|| format!("write {}", file.display()))
    };
    let KeyFiles { chain: chain_file, key: key_file, roots: roots_file } = output.files();
    match &**secret {
        SdsSecret::KeyPair { chain, key } => {
            write(&key_file, key.pem())?;
            write(&chain_file, chain)
        }
        SdsSecret::Roots(pem) | SdsSecret::RootsAndCrl(pem, _) => write(&roots_file, pem),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::certificate::tests::{leaf, root};
    use super::super::secret::PrivateKey;
    use super::*;
    use crate::metrics::Metrics;

    /// Waits until the file has this content.
    async fn eventually(file: &Path, content: &str) {
        let wait = async {
            while std::fs::read_to_string(file).unwrap_or_default() != content {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the content");
    }

    #[tokio::test]
    async fn files_follow_the_certificate_and_the_roots_that_are_added() {
        let parent = tempfile::tempdir().expect("a directory");
        let output = CertificateOutput { directory: parent.path().join("certs"), mode: 0o600 };
        let secrets = SecretStore::new(true, Duration::ZERO, Metrics::default());
        spawn(output.clone(), secrets.clone());
        let KeyFiles { chain, key, roots } = output.files();
        let (own, added) = (root().1, root().1);
        secrets.set_roots(own.clone().into());
        let own = super::super::certificate::roots(&[own.as_bytes()]).expect("roots");
        eventually(&roots, &String::from_utf8_lossy(&own)).await;
        assert!(!chain.exists() && !key.exists(), "there is no certificate yet");
        for name in ["a", "b"] {
            let (chain_pem, key_pem) = leaf(name, Duration::from_secs(60));
            let pair = SdsSecret::KeyPair { chain: chain_pem.clone().into(), key: PrivateKey::new(key_pem.clone()) };
            secrets.set_certificate(pair);
            eventually(&chain, &chain_pem).await;
            eventually(&key, &key_pem).await;
        }
        secrets.set_added_roots(added.clone().into());
        let both = super::super::certificate::roots(&[&own, added.as_bytes()]).expect("roots");
        eventually(&roots, &String::from_utf8_lossy(&both)).await;
        for file in [&chain, &key, &roots] {
            assert_eq!(std::fs::metadata(file).expect("stat").permissions().mode() & 0o777, 0o600);
        }
    }

    #[tokio::test]
    async fn write_is_repeated_until_the_directory_is_writable() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = parent.path().join("certs");
        std::fs::write(&directory, "a file").expect("write");
        let output = CertificateOutput { directory: directory.clone(), mode: 0o644 };
        let secrets = SecretStore::new(true, Duration::ZERO, Metrics::default());
        secrets.set_roots(root().1.into());
        let secret = secrets.watch(ROOTS).expect("roots").borrow().clone().expect("roots");
        assert!(write(&output, &secret).is_err());
        let SdsSecret::Roots(pem) = &*secret else { panic!("roots: {secret:?}") };
        let following = tokio::spawn(follow(output.clone(), secrets, Duration::from_millis(1)));
        // The first attempt ends at its first await, before this task runs again.
        tokio::task::yield_now().await;
        std::fs::remove_file(&directory).expect("remove");
        let file = output.files().roots;
        eventually(&file, &String::from_utf8_lossy(pem)).await;
        assert_eq!(std::fs::metadata(&file).expect("stat").permissions().mode() & 0o777, 0o644);
        following.abort();
    }
}
