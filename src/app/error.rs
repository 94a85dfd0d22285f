//! Failures that end the process, and their exit codes.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use sluice_authority::AuthorityError;
use sluice_config::ConfigError;
use sluice_kube::ConnectError;
use sluice_recording::RecordingFileError;
use sluice_sources::MeshFileError;
use sluice_sources::files::FilesError;
use sluice_tasks::TaskFailure;

/// A failure that ends the process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    /// A flag or an environment variable is invalid. Exit code 2.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be listened on. Exit code 3.
    #[error("{flag}: cannot listen on {address}: {error}")]
    Listen {
        /// The flag that names it.
        flag: &'static str,
        /// The address.
        address: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A directory cannot be used (exit code 4), or contains text that is not YAML (exit code 6).
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The Kubernetes API cannot be used. Exit code 4.
    #[error("cannot use the Kubernetes API: {0}")]
    Kubernetes(ConnectError),
    /// A recording cannot be replayed. Exit code 4.
    #[error("--replayFile {}: {error}", .path.display())]
    Recording {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        error: Box<RecordingFileError>,
    },
    /// Mesh config or networks are invalid (exit code 5), or cannot be watched (exit code 1).
    #[error(transparent)]
    Mesh(#[from] MeshFileError),
    /// The certificate authority cannot be used. Exit code 7.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A task or thread that runs until the process stops has ended or panicked. Exit code 1.
    #[error(transparent)]
    Task(#[from] TaskFailure),
    /// Anything else. Exit code 1.
    #[error("{0:#}")]
    Runtime(anyhow::Error),
}

impl AppError {
    /// A failed step, such as `start the runtime`, and its cause.
    pub(crate) fn runtime<E: Into<anyhow::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| Self::Runtime(cause.into().context(step))
    }

    /// The exit code, as `--help` lists them.
    #[must_use]
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Runtime(_) | Self::Task(_) | Self::Mesh(MeshFileError::Thread(_)) => 1,
            Self::Config(_) => 2,
            Self::Listen { .. } => 3,
            Self::Files(FilesError::Syntax { .. }) => 6,
            Self::Files(_) | Self::Kubernetes(_) | Self::Recording { .. } => 4,
            Self::Mesh(_) => 5,
            Self::Authority(_) => 7,
        })
    }
}
