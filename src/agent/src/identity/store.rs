//! Secrets by name, with subscriptions.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::sync::watch;

use super::file_secrets::{self, SecretFiles};
use super::{CERTIFICATE, ROOTS, SdsSecret, certificate};
use crate::metrics::Metrics;

/// The latest value of a secret; `None` before the first.
pub(crate) type SecretReceiver = watch::Receiver<Option<Arc<SdsSecret>>>;

/// All secrets of the proxy. Secrets in files are watched after the first subscription.
#[derive(Clone)]
pub(crate) struct SecretStore(Arc<Inner>);

struct Inner {
    named: Mutex<BTreeMap<String, watch::Sender<Option<Arc<SdsSecret>>>>>,
    roots: Mutex<TrustedRoots>,
    debounce: Duration,
    metrics: Metrics,
}

/// The parts of the trusted roots.
#[derive(Default)]
struct TrustedRoots {
    /// Roots from the authority or from files.
    own: Option<Vec<u8>>,
    /// Roots that the control plane adds.
    added: Vec<u8>,
    /// Certificate revocation lists.
    crl: Option<Vec<u8>>,
}

impl SecretStore {
    /// With `served`, the workload's certificate and the roots are served; without it, secrets in files only.
    pub(crate) fn new(served: bool, debounce: Duration, metrics: Metrics) -> Self {
        let names = if served { vec![CERTIFICATE, ROOTS] } else { Vec::new() };
        let named = names.into_iter().map(|name| (name.to_owned(), watch::Sender::new(None))).collect();
        Self(Arc::new(Inner { named: Mutex::new(named), roots: Mutex::default(), debounce, metrics }))
    }

    /// Subscribes to a secret.
    ///
    /// # Errors
    /// There is no secret with this name.
    pub(crate) fn watch(&self, name: &str) -> Result<SecretReceiver> {
        let mut named = self.0.named.lock().unwrap_or_else(PoisonError::into_inner);
        match named.entry(name.to_owned()) {
            Entry::Occupied(entry) => Ok(entry.get().subscribe()),
            Entry::Vacant(entry) => {
                let Some(source) = SecretFiles::of_name(name) else { bail!("there is no secret {name:?}") };
                let sender = entry.insert(watch::Sender::new(None));
                let publish = sender.clone();
                let metrics = self.0.metrics.clone();
                file_secrets::spawn(name, source, self.0.debounce, metrics, move |secret| {
                    set(&publish, secret);
                });
                Ok(sender.subscribe())
            }
        }
    }

    /// Replaces the workload's certificate.
    pub(crate) fn set_certificate(&self, secret: SdsSecret) {
        self.set(CERTIFICATE, secret);
    }

    /// Replaces the roots from the authority or from files. Roots that the control plane adds stay.
    pub(crate) fn set_roots(&self, pem: Vec<u8>) {
        self.update_trust(|trust| trust.own = Some(pem));
    }

    /// Replaces the roots that the control plane adds.
    pub(crate) fn set_added_roots(&self, pem: Vec<u8>) {
        self.update_trust(|trust| trust.added = pem);
    }

    /// Replaces the revocation lists.
    pub(crate) fn set_crl(&self, pem: Option<Vec<u8>>) {
        self.update_trust(|trust| trust.crl = pem);
    }

    fn update_trust(&self, update: impl FnOnce(&mut TrustedRoots)) {
        let mut trust = self.0.roots.lock().unwrap_or_else(PoisonError::into_inner);
        update(&mut trust);
        // Before the roots of the authority are available, the added roots alone would reject valid peers.
        let Some(own) = &trust.own else { return };
        if let Some(joined) = certificate::roots(&[own, &trust.added]) {
            self.set(
                ROOTS,
                match &trust.crl {
                    Some(crl) => SdsSecret::RootsAndCrl(joined, crl.clone()),
                    None => SdsSecret::Roots(joined),
                },
            );
        }
    }

    fn set(&self, name: &str, secret: SdsSecret) {
        let named = self.0.named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = named.get(name) {
            set(sender, secret);
        }
    }
}

/// Subscribers are notified only if the content differs.
fn set(sender: &watch::Sender<Option<Arc<SdsSecret>>>, secret: SdsSecret) {
    sender.send_if_modified(|newest| {
        let differs = newest.as_deref() != Some(&secret);
        if differs {
            *newest = Some(Arc::new(secret));
        }
        differs
    });
}

#[cfg(test)]
mod tests {
    use super::super::certificate::tests::root;
    use super::*;

    fn root_count(newest: &mut SecretReceiver) -> usize {
        match newest.borrow_and_update().as_deref() {
            Some(SdsSecret::Roots(pem)) => String::from_utf8_lossy(pem).matches("BEGIN").count(),
            _ => 0,
        }
    }

    #[test]
    fn roots_of_the_control_plane_are_added_to_those_of_the_authority() {
        let secrets = SecretStore::new(true, Duration::ZERO, Metrics::default());
        let mut newest = secrets.watch(ROOTS).expect("roots");
        let ((_, own), (_, added), (_, other)) = (root(), root(), root());
        secrets.set_added_roots(added.clone().into());
        assert_eq!(root_count(&mut newest), 0);
        secrets.set_roots(own.clone().into());
        assert_eq!(root_count(&mut newest), 2);
        secrets.set_roots(own.into());
        assert!(!newest.has_changed().expect("alive"), "equal content is no change");
        secrets.set_added_roots(format!("{added}{other}").into());
        assert_eq!(root_count(&mut newest), 3);
    }

    #[test]
    fn revocation_lists_are_served_with_the_roots() {
        let secrets = SecretStore::new(true, Duration::ZERO, Metrics::default());
        let mut newest = secrets.watch(ROOTS).expect("roots");
        secrets.set_crl(Some(b"list".to_vec()));
        assert!(newest.borrow_and_update().is_none(), "there are no roots yet");
        secrets.set_roots(root().1.into());
        let secret = newest.borrow_and_update().clone().expect("roots");
        assert!(matches!(&*secret, SdsSecret::RootsAndCrl(_, crl) if crl == b"list"), "{secret:?}");
        secrets.set_crl(None);
        assert_eq!(root_count(&mut newest), 1);
    }

    #[test]
    fn unknown_names_are_rejected() {
        let secrets = SecretStore::new(false, Duration::ZERO, Metrics::default());
        for name in ["default", "kubernetes://gateway", "file-cert:one", ""] {
            assert!(secrets.watch(name).is_err(), "{name}");
        }
    }
}
