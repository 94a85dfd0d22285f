//! Why the control plane does not run, and the exit code that says so.

use std::io;
use std::process::ExitCode;

use sluice_authority::AuthorityError;
use sluice_sources::MeshFileError;
use sluice_sources::files::FilesError;

use crate::config::ConfigError;

/// What keeps it from starting or from going on.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A flag cannot be used. Exit code 2.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be listened on. Exit code 3.
    #[error("{flag}: cannot listen on {address}: {error}")]
    Listen {
        /// The flag that names it.
        flag: &'static str,
        /// The address.
        address: String,
        /// What the operating system says.
        error: io::Error,
    },
    /// A directory cannot be used, or holds what is no YAML. Exit codes 4 and 6.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The Kubernetes API cannot be used. Exit code 4.
    #[error("cannot use the Kubernetes API: {0}")]
    Kubernetes(String),
    /// Mesh config or networks are invalid, exit code 5, or cannot be followed, 1.
    #[error(transparent)]
    Mesh(#[from] MeshFileError),
    /// There is no certificate authority. Exit code 7.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// Anything else. Exit code 1.
    #[error("{0:#}")]
    Runtime(anyhow::Error),
}

impl AppError {
    /// The exit code, as `--help` lists them.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Runtime(_) | Self::Mesh(MeshFileError::Watch(_) | MeshFileError::Thread(_)) => 1,
            Self::Config(_) => 2,
            Self::Listen { .. } => 3,
            Self::Files(FilesError::Syntax { .. }) => 6,
            Self::Files(_) | Self::Kubernetes(_) => 4,
            Self::Mesh(_) => 5,
            Self::Authority(_) => 7,
        })
    }
}
