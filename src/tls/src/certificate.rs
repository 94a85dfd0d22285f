//! The server certificate.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sluice_ca::ServerCertificate;

/// The current server certificate, presented for every server name.
#[derive(Default)]
pub struct ServerIdentity {
    current: ArcSwapOption<CertifiedKey>,
}

impl ServerIdentity {
    /// Presents this certificate in later handshakes.
    pub fn set(&self, pair: CertifiedKey) {
        self.current.store(Some(Arc::new(pair)));
    }

    /// Presents a certificate that an authority issued.
    pub fn set_issued(&self, issued: &ServerCertificate) {
        self.set(CertifiedKey::new(issued.chain.clone(), issued.key.signing_key()));
    }
}

impl fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerIdentity").field("is_set", &self.current.load().is_some()).finish()
    }
}

impl ResolvesServerCert for ServerIdentity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }
}
