//! Secrets that are in files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tracing::{info, warn};

use super::secret::PrivateKey;
use super::watched::Watched;
use super::{Secret, certificate};
use crate::metrics::Metrics;

/// Where roots of the machine usually are.
const SYSTEM_ROOTS: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The files of a secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Source {
    KeyPair { chain: PathBuf, key: PathBuf },
    Roots(PathBuf),
}

impl Source {
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

    /// What is in the files now.
    ///
    /// # Errors
    /// One cannot be read, is no PEM, or certificate and key do not belong together, as when only one is written yet.
    pub(super) fn read(&self) -> Result<Secret> {
        let read = |file: &Path| std::fs::read(file).with_context(|| format!("read {}", file.display()));
        match self {
            Self::KeyPair { chain, key } => {
                let (chain_pem, key_pem) = (read(chain)?, PrivateKey::new(read(key)?));
                certificate::check_pair(&chain_pem, key_pem.pem())
                    .with_context(|| format!("use {} and {}", chain.display(), key.display()))?;
                Ok(Secret::KeyPair { chain: chain_pem, key: key_pem })
            }
            Self::Roots(file) => {
                let roots = certificate::roots(&[&read(file)?]);
                Ok(Secret::Roots(roots.with_context(|| format!("there is no certificate in {}", file.display()))?))
            }
        }
    }
}

/// Gives out what is in the files, now and whenever it changes; while they are wrong, what was stays.
pub(super) fn spawn(
    name: &str,
    source: Source,
    debounce: Duration,
    metrics: Metrics,
    publish: impl Fn(Secret) + Send + 'static,
) {
    let name = name.to_owned();
    tokio::spawn(async move {
        let mut watched = Watched::new(source.files(), debounce);
        let mut last = None;
        loop {
            let now = match source.read() {
                Ok(secret) => {
                    publish(secret);
                    None
                }
                Err(error) => Some(format!("{error:#}")),
            };
            if now != last {
                match &now {
                    None => info!(target: "cache", resource = name, "the files of a secret are in order again"),
                    Some(reason) => {
                        metrics.file_secret_failed();
                        warn!(target: "cache", resource = name, "the files of a secret cannot be used: {reason}");
                    }
                }
                last = now;
            }
            watched.changed().await;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::certificate::tests::leaf;
    use super::*;

    #[test]
    fn names_say_which_files() {
        let pair = Source::of_name("file-cert:/a/c.pem~/a/k.pem");
        assert_eq!(pair, Some(Source::KeyPair { chain: "/a/c.pem".into(), key: "/a/k.pem".into() }));
        assert_eq!(Source::of_name("file-root:/a/r.pem"), Some(Source::Roots("/a/r.pem".into())));
        for name in ["default", "ROOTCA", "file-cert:/a", "file-root:", "file-cert:~"] {
            assert_eq!(Source::of_name(name), None, "{name}");
        }
    }

    /// Kubernetes writes a new directory and moves a link to it; every file is a link through that link.
    #[tokio::test]
    async fn a_secret_that_kubernetes_replaces_is_given_out_and_a_broken_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        let put = |version: &str, pair: &(String, String)| {
            std::fs::create_dir(root.join(version)).expect("make a version");
            std::fs::write(root.join(version).join("c.pem"), &pair.0).expect("write the chain");
            std::fs::write(root.join(version).join("k.pem"), &pair.1).expect("write the key");
            symlink(version, root.join("..new")).expect("link");
            std::fs::rename(root.join("..new"), root.join("..data")).expect("move the link");
        };
        let (first, second) = (leaf("a", Duration::from_secs(99)), leaf("b", Duration::from_secs(99)));
        put("..1", &first);
        symlink("..data/c.pem", root.join("c.pem")).expect("link");
        symlink("..data/k.pem", root.join("k.pem")).expect("link");
        let source = Source::KeyPair { chain: root.join("c.pem"), key: root.join("k.pem") };
        let (sender, mut given) = tokio::sync::mpsc::unbounded_channel();
        let publish = move |secret| drop(sender.send(secret));
        spawn("test", source, Duration::from_millis(1), Metrics::default(), publish);
        let chain_of = |secret| match secret {
            Some(Secret::KeyPair { chain, .. }) => String::from_utf8(chain).expect("text"),
            other => panic!("no pair: {other:?}"),
        };
        assert_eq!(chain_of(given.recv().await), first.0);
        put("..2", &(first.0.clone(), second.1.clone()));
        put("..3", &second);
        // The broken version was never given out, however the notices came.
        loop {
            let chain = chain_of(given.recv().await);
            if chain == second.0 {
                break;
            }
            assert_eq!(chain, first.0);
        }
    }
}
