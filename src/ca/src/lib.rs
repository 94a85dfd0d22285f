//! The certificate authority, without network, files or clock: whoever asks says what time it is.
//!
//! - [`Authority`]: a signing key, its certificate, the chain to the roots, revocations; checked before it is there.
//! - [`Authority::issue`]: certificates of workloads; [`Authority::server_certificate`]: those of the server's own names.
//! - [`ForwardedRequest`], [`ServerRequest`]: certificates of workloads, and of the server, that somebody else signs.
//! - [`root`]: self-signed roots, made and renewed under the same key.
//! - [`store`]: how material lies in directories and Secrets, and what may take the place of what.
//!
//! Certificates are put together byte by byte: the issuer's name must be exactly the name in its certificate, whatever
//! string types and repeated attributes that has, or chains do not verify.

mod authority;
mod certificate;
mod der;
mod error;
mod external;
mod issue;
mod key;
mod pem;
mod request;
pub mod root;
mod server;
pub mod store;

pub use authority::{Authority, Material};
pub use certificate::{Certificate, SubjectName};
pub use error::{IssueError, MaterialError};
pub use external::ForwardedRequest;
pub use issue::{CLOCK_SKEW, Issued, ServerCertificate, Terms};
pub use key::{KeyAlgorithm, NewKey, PrivateKey, RsaBits};
pub use pem::to_pem;
pub use server::ServerRequest;

#[cfg(test)]
mod tests;
