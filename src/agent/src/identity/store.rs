//! Secrets by name, for who wants to know of every change.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::sync::watch;

use super::file_secrets::{self, Source};
use super::{CERTIFICATE, ROOTS, Secret, certificate};
use crate::metrics::Metrics;

/// The newest of one secret; none before the first.
pub(crate) type Newest = watch::Receiver<Option<Arc<Secret>>>;

/// All secrets of the proxy. Names of files are watched from when somebody asks for them.
#[derive(Clone)]
pub(crate) struct Secrets(Arc<Inner>);

struct Inner {
    named: Mutex<BTreeMap<String, watch::Sender<Option<Arc<Secret>>>>>,
    roots: Mutex<Trust>,
    debounce: Duration,
    metrics: Metrics,
}

/// What the roots are made of.
#[derive(Default)]
struct Trust {
    /// Roots that come with the certificate.
    own: Option<Vec<u8>>,
    /// Roots that the control plane adds.
    added: Vec<u8>,
    /// Revocation lists; with none, nothing is revoked.
    revoked: Option<Vec<u8>>,
}

impl Secrets {
    /// Those that an authority or the given files give; without either (`served` is false) only names of files are known.
    pub(crate) fn new(served: bool, debounce: Duration, metrics: Metrics) -> Self {
        let names = if served { vec![CERTIFICATE, ROOTS] } else { Vec::new() };
        let named = names.into_iter().map(|name| (name.to_owned(), watch::Sender::new(None))).collect();
        Self(Arc::new(Inner { named: Mutex::new(named), roots: Mutex::default(), debounce, metrics }))
    }

    /// The newest of that name, now and from now on.
    ///
    /// # Errors
    /// The name stands for nothing.
    pub(crate) fn watch(&self, name: &str) -> Result<Newest> {
        let mut named = self.0.named.lock().unwrap_or_else(PoisonError::into_inner);
        match named.entry(name.to_owned()) {
            Entry::Occupied(entry) => Ok(entry.get().subscribe()),
            Entry::Vacant(entry) => {
                let Some(source) = Source::of_name(name) else { bail!("there is no secret {name:?}") };
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

    /// Serves another certificate from now on.
    pub(crate) fn set_certificate(&self, secret: Secret) {
        self.set(CERTIFICATE, secret);
    }

    /// Serves other roots from now on, together with those the control plane added.
    pub(crate) fn set_roots(&self, pem: Vec<u8>) {
        self.update_trust(|trust| trust.own = Some(pem));
    }

    /// Adds roots of the control plane's, instead of those it added before.
    pub(crate) fn set_added_roots(&self, pem: Vec<u8>) {
        self.update_trust(|trust| trust.added = pem);
    }

    /// Serves these revocation lists beside the roots, or none.
    pub(crate) fn set_revoked(&self, pem: Option<Vec<u8>>) {
        self.update_trust(|trust| trust.revoked = pem);
    }

    fn update_trust(&self, update: impl FnOnce(&mut Trust)) {
        let mut trust = self.0.roots.lock().unwrap_or_else(PoisonError::into_inner);
        update(&mut trust);
        // Before there are any of our own, the others alone would make peers fail that they should not.
        let Some(own) = &trust.own else { return };
        if let Some(joined) = certificate::roots(&[own, &trust.added]) {
            self.set(
                ROOTS,
                match &trust.revoked {
                    Some(revoked) => Secret::RootsAndRevoked(joined, revoked.clone()),
                    None => Secret::Roots(joined),
                },
            );
        }
    }

    fn set(&self, name: &str, secret: Secret) {
        let named = self.0.named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = named.get(name) {
            set(sender, secret);
        }
    }
}

/// Equal content is no change.
fn set(sender: &watch::Sender<Option<Arc<Secret>>>, secret: Secret) {
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

    fn roots_of(newest: &mut Newest) -> usize {
        match newest.borrow_and_update().as_deref() {
            Some(Secret::Roots(pem)) => String::from_utf8_lossy(pem).matches("BEGIN").count(),
            _ => 0,
        }
    }

    #[test]
    fn roots_of_the_control_plane_are_added_to_the_own() {
        let secrets = Secrets::new(true, Duration::ZERO, Metrics::default());
        let mut newest = secrets.watch(ROOTS).expect("roots");
        let ((_, own), (_, added), (_, other)) = (root(), root(), root());
        secrets.set_added_roots(added.clone().into());
        assert_eq!(roots_of(&mut newest), 0);
        secrets.set_roots(own.clone().into());
        assert_eq!(roots_of(&mut newest), 2);
        secrets.set_roots(own.into());
        assert!(!newest.has_changed().expect("alive"), "equal content is no change");
        secrets.set_added_roots(format!("{added}{other}").into());
        assert_eq!(roots_of(&mut newest), 3);
    }

    #[test]
    fn revocation_lists_stand_beside_the_roots_while_there_are_any() {
        let secrets = Secrets::new(true, Duration::ZERO, Metrics::default());
        let mut newest = secrets.watch(ROOTS).expect("roots");
        secrets.set_revoked(Some(b"list".to_vec()));
        assert!(newest.borrow_and_update().is_none(), "there are no roots yet");
        secrets.set_roots(root().1.into());
        let shown = newest.borrow_and_update().clone().expect("roots");
        assert!(matches!(&*shown, Secret::RootsAndRevoked(_, revoked) if revoked == b"list"), "{shown:?}");
        secrets.set_revoked(None);
        assert_eq!(roots_of(&mut newest), 1);
    }

    #[test]
    fn unknown_names_are_refused() {
        let secrets = Secrets::new(false, Duration::ZERO, Metrics::default());
        for name in ["default", "kubernetes://gateway", "file-cert:one", ""] {
            assert!(secrets.watch(name).is_err(), "{name}");
        }
    }
}
