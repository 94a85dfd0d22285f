//! The current trust domain.

use std::sync::Arc;

use arc_swap::ArcSwap;
use sluice_model::{Identity, Text};

/// The trust domain of the mesh config, which can change. A clone is another handle of the same value.
#[derive(Clone, Debug)]
pub struct TrustDomain(Arc<ArcSwap<Text>>);

impl TrustDomain {
    /// A trust domain with an initial name.
    #[must_use]
    pub fn new(name: Text) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(name)))
    }

    /// Sets the name.
    pub fn set(&self, name: Text) {
        self.0.store(Arc::new(name));
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> Text {
        (**self.0.load()).clone()
    }

    /// The identity of a service account in the trust domain.
    #[must_use]
    pub fn identity(&self, namespace: &str, service_account: &str) -> Identity {
        Identity::new(&self.name(), namespace, service_account)
    }

    /// Whether an identity belongs to the trust domain.
    #[must_use]
    pub fn has(&self, identity: &Identity) -> bool {
        is_in_trust_domain(identity, &self.name())
    }
}

/// Whether an identity belongs to a trust domain.
#[must_use]
pub fn is_in_trust_domain(identity: &Identity, trust_domain: &str) -> bool {
    // `Identity::new` normalizes the trust domain.
    Identity::new(trust_domain, "", "").trust_domain == identity.trust_domain
}
