//! Secrets in files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use sluice_tasks::restart;
use tracing::{info, warn};

use super::secret::PrivateKey;
use super::watch::FileWatcher;
use super::{SdsSecret, certificate};
use crate::metrics::Metrics;

/// Common paths of the system's roots.
const SYSTEM_ROOTS: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The files of a secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum SecretFiles {
    KeyPair { chain: PathBuf, key: PathBuf },
    Roots(PathBuf),
}

impl SecretFiles {
    /// `file-cert:CHAIN~KEY`, `file-root:ROOTS`, or `file-root:system`.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        if name == "file-root:system" {
            let file = SYSTEM_ROOTS.into_iter().map(PathBuf::from).find(|file| file.is_file())?;
            return Some(Self::Roots(file));
        }
        if let Some(file) = name.strip_prefix("file-root:") {
            return (!file.is_empty()).then(|| Self::Roots(file.into()));
        }
        let (chain, key) = name.strip_prefix("file-cert:")?.split_once('~')?;
        (!chain.is_empty() && !key.is_empty()).then(|| Self::KeyPair { chain: chain.into(), key: key.into() })
    }

    fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::KeyPair { chain, key } => vec![chain.clone(), key.clone()],
            Self::Roots(file) => vec![file.clone()],
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or is not PEM, or certificate and key do not match, for example while only one of them is
    /// replaced.
    pub(super) fn read(&self) -> Result<SdsSecret> {
        let read = |file: &Path| std::fs::read(file).with_context(|| format!("read {}", file.display()));
        match self {
            Self::KeyPair { chain, key } => {
                let (chain_pem, key_pem) = (read(chain)?, PrivateKey::new(read(key)?));
                certificate::check_pair(&chain_pem, key_pem.pem())
                    .with_context(|| format!("use {} and {}", chain.display(), key.display()))?;
                Ok(SdsSecret::KeyPair { chain: chain_pem, key: key_pem })
            }
            Self::Roots(file) => {
                let roots = certificate::roots(&[&read(file)?]);
                Ok(SdsSecret::Roots(roots.with_context(|| format!("{} contains no certificate", file.display()))?))
            }
        }
    }
}

/// Publishes the secret in the files, now and when it changes. While the files are invalid, the last secret stays.
pub(super) fn spawn(
    name: &str,
    source: SecretFiles,
    debounce: Duration,
    metrics: Metrics,
    publish: impl Fn(SdsSecret) + Send + Sync + 'static,
) {
    let follower = Arc::new(SecretFollower { name: name.to_owned(), source, debounce, metrics, publish });
    tokio::spawn(restart("secret files", move || follower.clone().run()));
}

/// Publishes the secret of files.
struct SecretFollower<P> {
    name: String,
    source: SecretFiles,
    debounce: Duration,
    metrics: Metrics,
    publish: P,
}

impl<P: Fn(SdsSecret)> SecretFollower<P> {
    async fn run(self: Arc<Self>) -> Result<()> {
        let mut watcher = FileWatcher::new(self.source.files(), self.debounce);
        let mut last = None;
        loop {
            let now = match self.source.read() {
                Ok(secret) => {
                    (self.publish)(secret);
                    None
                }
                Err(error) => Some(format!("{error:#}")),
            };
            if now != last {
                let resource = &self.name;
                match &now {
                    None => info!(target: "cache", resource, "secret files are valid again"),
                    Some(reason) => {
                        self.metrics.file_secret_failed();
                        warn!(target: "cache", resource, %reason, "secret files are invalid, the last secret stays");
                    }
                }
                last = now;
            }
            watcher.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::certificate::tests::leaf;
    use super::*;

    #[test]
    fn secret_names_refer_to_files() {
        let pair = SecretFiles::of_name("file-cert:/a/c.pem~/a/k.pem");
        assert_eq!(pair, Some(SecretFiles::KeyPair { chain: "/a/c.pem".into(), key: "/a/k.pem".into() }));
        assert_eq!(SecretFiles::of_name("file-root:/a/r.pem"), Some(SecretFiles::Roots("/a/r.pem".into())));
        for name in ["default", "ROOTCA", "file-cert:/a", "file-root:", "file-cert:~"] {
            assert_eq!(SecretFiles::of_name(name), None, "{name}");
        }
    }

    /// Kubernetes writes a new directory and replaces the symbolic link `..data` to it. Every file is a symbolic link through
    /// `..data`.
    #[tokio::test]
    async fn replaced_secret_is_published_and_an_invalid_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        let put = |version: &str, pair: &(String, String)| {
            std::fs::create_dir(root.join(version)).expect("make a version");
            std::fs::write(root.join(version).join("c.pem"), &pair.0).expect("write the chain");
            std::fs::write(root.join(version).join("k.pem"), &pair.1).expect("write the key");
            symlink(version, root.join("..new")).expect("link");
            std::fs::rename(root.join("..new"), root.join("..data")).expect("rename the link");
        };
        let (first, second) = (leaf("a", Duration::from_secs(99)), leaf("b", Duration::from_secs(99)));
        put("..1", &first);
        symlink("..data/c.pem", root.join("c.pem")).expect("link");
        symlink("..data/k.pem", root.join("k.pem")).expect("link");
        let source = SecretFiles::KeyPair { chain: root.join("c.pem"), key: root.join("k.pem") };
        let (sender, mut published) = tokio::sync::mpsc::unbounded_channel();
        let publish = move |secret| drop(sender.send(secret));
        spawn("test", source, Duration::from_millis(1), Metrics::default(), publish);
        let chain_of = |secret| match secret {
            Some(SdsSecret::KeyPair { chain, .. }) => String::from_utf8(chain).expect("text"),
            other => panic!("no pair: {other:?}"),
        };
        assert_eq!(chain_of(published.recv().await), first.0);
        put("..2", &(first.0.clone(), second.1.clone()));
        put("..3", &second);
        // The invalid version is never published, in whatever order the notifications arrive.
        loop {
            let chain = chain_of(published.recv().await);
            if chain == second.0 {
                break;
            }
            assert_eq!(chain, first.0);
        }
    }
}
