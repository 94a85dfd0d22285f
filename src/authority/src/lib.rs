//! The certificate authority at work (P01 to P12, P19): where its material comes from and how that changes, the
//! service that issues certificates, the server's own certificate, the roots in every namespace.
//!
//! What an authority *is* lies in `sluice-ca`, which knows neither files nor network.

mod anchors;
mod cluster_trust_bundle;
mod config;
mod config_maps;
mod directory;
mod error;
mod keeper;
mod kubernetes;
mod metrics;
mod nodes;
mod remote_roots;
mod secret;
mod server;
mod server_signer;
mod service;
mod signing;

pub use anchors::TrustAnchors;
pub use cluster_trust_bundle::TrustBundleWriter;
pub use config::AuthorityConfig;
pub use config_maps::BundleWriter;
pub use error::AuthorityError;
pub use keeper::Keeper;
pub use kubernetes::{KubernetesSigner, SignerConfig};
pub use metrics::AuthorityMetrics;
pub use nodes::NodePods;
pub use remote_roots::{RemoteRoots, RootsOptions};
pub use server::{DnsNames, ServerKeeper, TrustBundle};
pub use server_signer::ServerSigner;
pub use service::{CertificateService, Issuing, Maker, PROTO};

use std::sync::Arc;

use arc_swap::ArcSwap;
use sluice_ca::Authority;
use tokio::sync::watch;

/// The authority of the moment.
#[derive(Debug)]
pub struct Signer {
    current: ArcSwap<Authority>,
    changed: watch::Sender<()>,
}

impl Signer {
    /// With this one at first.
    #[must_use]
    pub fn new(authority: Authority) -> Arc<Self> {
        Arc::new(Self { current: ArcSwap::from_pointee(authority), changed: watch::Sender::new(()) })
    }

    /// The authority of the moment.
    #[must_use]
    pub fn current(&self) -> Arc<Authority> {
        self.current.load_full()
    }

    /// Signs with another one from now on.
    pub fn replace(&self, authority: Authority) {
        self.current.store(Arc::new(authority));
        self.changed.send_replace(());
    }

    /// Tells of each replacement from now on.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}
