//! TLS to the servers of issuers.

use std::io::ErrorKind;
use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tracing::warn;

/// A configuration that trusts the roots of the system and those of `extra_roots`, if that file exists; `None` without any
/// roots.
pub(super) fn client_config(extra_roots: &Path, skip_verify: bool) -> Option<ClientConfig> {
    if skip_verify {
        return sluice_crypto::client_without_verification().ok();
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match std::fs::read(extra_roots) {
        Ok(pem) => {
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => {
            let file = extra_roots.display();
            warn!(target: "jwks", %file, %error, "cannot read additional root certificates, they are not trusted");
        }
    }
    if roots.is_empty() {
        return None;
    }
    let builder = sluice_crypto::client(None).ok()?;
    Some(builder.with_root_certificates(roots).with_no_client_auth())
}
