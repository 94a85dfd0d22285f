//! The running certificate authority (P01 to P12, P19): loading and renewal of its material, the issuing service, the
//! server's own certificate, the roots in every namespace.
//!
//! Crate `sluice-ca` holds the authority itself, without files and network.

mod anchors;
mod api_request;
mod cluster_trust_bundle;
mod config;
mod config_maps;
mod directory;
mod error;
mod grpc_metrics;
mod keeper;
mod kubernetes;
mod metrics;
mod nodes;
mod own_certificate;
mod remote_roots;
mod request_rate;
mod secret;
mod server;
mod server_signer;
mod service;
mod signing;
mod unread_requests;
mod webhook_configurations;

pub use anchors::TrustAnchors;
pub use cluster_trust_bundle::TrustBundleWriter;
pub use config::AuthorityConfig;
pub use config_maps::BundleWriter;
pub use error::AuthorityError;
pub use keeper::AuthorityKeeper;
pub use kubernetes::{KubernetesSigner, SignerConfig};
pub use metrics::AuthorityMetrics;
pub use nodes::{ImpersonationError, NodePods};
pub use remote_roots::{RemoteRoots, RootObjects, RootsOptions};
pub use request_rate::RequestRate;
pub use server::{DnsNames, ServerCertificateKeeper, TrustBundle};
pub use server_signer::ServerSigner;
pub use service::{CERTIFICATE_SERVICE_PROTO, CertificateIssuer, CertificateService, IssuingOptions};
pub use webhook_configurations::{WebhookConfigurationWriter, WebhookKind};

use std::sync::Arc;

use arc_swap::ArcSwap;
use sluice_ca::Authority;
use tokio::sync::watch;

/// The current authority, which can be replaced.
#[derive(Debug)]
pub struct Signer {
    current: ArcSwap<Authority>,
    changed: watch::Sender<()>,
}

impl Signer {
    /// Starts with this authority.
    #[must_use]
    pub fn new(authority: Authority) -> Arc<Self> {
        Arc::new(Self { current: ArcSwap::from_pointee(authority), changed: watch::Sender::new(()) })
    }

    /// The current authority.
    #[must_use]
    pub fn current(&self) -> Arc<Authority> {
        self.current.load_full()
    }

    /// Replaces the authority.
    pub fn replace(&self, authority: Authority) {
        self.current.store(Arc::new(authority));
        self.changed.send_replace(());
    }

    /// Reports each later replacement.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}
