//! Errors of loading or creating the authority.

use std::path::PathBuf;

use sluice_ca::MaterialError;

/// The authority cannot be loaded or created. No error text contains a part of a key.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The files cannot be used.
    #[error("certificate authority in {}: {error}", directory.display())]
    Directory {
        /// The directory of the files.
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
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// A Secret cannot be used.
    #[error("certificate authority in Secret {name}: {reason}")]
    Secret {
        /// Its name, in the namespace of the control plane.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// No authority can be created.
    #[error("certificate authority: {0}")]
    Create(MaterialError),
    /// A signer of the Kubernetes API does not issue the server certificate.
    #[error("PILOT_CERT_PROVIDER=k8s.io/{signer}: {reason}")]
    Server {
        /// The signer.
        signer: String,
        /// What is wrong.
        reason: String,
    },
}
