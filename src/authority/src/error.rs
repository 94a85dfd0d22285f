//! Why there is no authority.

use std::path::PathBuf;

use sluice_ca::MaterialError;

/// Why there is no authority. No text holds a part of a key.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Files cannot be used.
    #[error("certificate authority in {}: {error}", directory.display())]
    Directory {
        /// Where they are.
        directory: PathBuf,
        /// What is wrong.
        error: MaterialError,
    },
    /// A file cannot be read or written.
    #[error("certificate authority: cannot {action} {}: {error}", file.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        file: PathBuf,
        /// What the operating system says.
        error: std::io::Error,
    },
    /// A Secret cannot be used.
    #[error("certificate authority in Secret {name}: {reason}")]
    Secret {
        /// Its name, in the own namespace.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// None can be made.
    #[error("certificate authority: {0}")]
    Create(MaterialError),
    /// A signer behind the Kubernetes API does not certify the server.
    #[error("PILOT_CERT_PROVIDER=k8s.io/{signer}: {reason}")]
    Server {
        /// The signer.
        signer: String,
        /// What is wrong.
        reason: String,
    },
}
