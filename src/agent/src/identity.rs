//! The workload's certificate and the trusted roots: their sources, their renewal, and their subscribers (D02).

mod authority;
mod certificate;
mod crl;
mod file_secrets;
mod output;
mod rotation;
mod secret;
mod store;
mod watch;

pub(crate) use rotation::run;
pub(crate) use secret::SdsSecret;
pub(crate) use store::SecretStore;

/// SDS name of the workload's certificate and key.
pub(crate) const CERTIFICATE: &str = "default";
/// SDS name of the roots that verify peers.
pub(crate) const ROOTS: &str = "ROOTCA";
