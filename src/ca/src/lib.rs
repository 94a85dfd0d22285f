//! The certificate authority. It has no network, files or clock: the caller passes the time.
//!
//! - [`Authority`]: a signing key, its certificate, the chain to the roots, and revocation lists. All are checked when
//!   it is created.
//! - [`Authority::issue`]: workload certificates; [`Authority::server_certificate`]: server certificates.
//! - [`ForwardedRequest`], [`ServerRequest`]: workload and server certificates from an external signer.
//! - [`root`]: self-signed roots: creation, and renewal with the same key.
//! - [`store`]: the format of directories and Secrets with an authority, and the rules for replacing an authority.
//!
//! `x509-cert` and `der` encode certificates. The issuer's name is copied as bytes: it must equal the subject of the
//! issuer's certificate, with its string types and repeated attributes, or chains do not verify. `rcgen` would encode
//! the name again.

mod authority;
mod certificate;
mod encoding;
mod error;
mod external;
mod issue;
mod key;
mod pem;
mod request;
pub mod root;
mod server;
pub mod store;
mod verify;

pub use authority::{Authority, Material};
pub use certificate::Certificate;
pub use error::{IssueError, MaterialError};
pub use external::ForwardedRequest;
pub use issue::{Issued, LifetimeLimits, ServerCertificate};
pub use key::{KeyAlgorithm, NewKey, PrivateKey, RsaBits};
pub use pem::to_pem;
pub use server::ServerRequest;

#[cfg(test)]
mod tests;
