//! The certificate authority at work (P01 to P12, P19): where its material comes from and how that changes, the
//! service that issues certificates, the server's own certificate, the roots in every namespace.
//!
//! What an authority *is* lies in `sluice-ca`, which knows neither files nor network.

mod anchors;
mod directory;
mod error;
mod keeper;
mod kubernetes;
mod metrics;
mod nodes;
mod secret;
mod server;
mod server_signer;
mod service;
mod signing;

pub use anchors::TrustAnchors;
pub use error::AuthorityError;
pub use keeper::Keeper;
pub use kubernetes::{KubernetesSigner, SignerConfig};
pub use metrics::AuthorityMetrics;
pub use nodes::NodePods;
pub use server::{DnsNames, ServerKeeper, TrustBundle};
pub use server_signer::ServerSigner;
pub use service::{CertificateService, Issuing, Maker, PROTO};

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

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

/// Seconds since the Unix epoch.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
