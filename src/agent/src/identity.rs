//! The workload's identity: who made it, when it is renewed, and who is told (D02).

mod authority;
mod certificate;
mod file_secrets;
mod revoked;
mod rotation;
mod secret;
mod store;
mod watched;

pub(crate) use rotation::run;
pub(crate) use secret::Secret;
pub(crate) use store::Secrets;

/// Name of the workload's certificate and key.
pub(crate) const CERTIFICATE: &str = "default";
/// Name of the roots that peers are verified with.
pub(crate) const ROOTS: &str = "ROOTCA";
