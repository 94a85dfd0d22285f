//! Why an installation ends.

use std::fmt;

use sluice_kube::RequestError;

/// A failure of an operation on an installation.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A file, flag or value is not accepted.
    #[error("{path}: {reason}")]
    Input {
        /// File, flag or field.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A chart does not render with the values.
    #[error("chart {chart}: {reason}")]
    Rendering {
        /// Name of the chart.
        chart: String,
        /// What is wrong.
        reason: String,
    },
    /// A request to the API server fails.
    #[error("{subject}: {cause}")]
    Request {
        /// The object or collection.
        subject: String,
        /// The failure.
        cause: RequestError,
    },
    /// The cluster has something that does not permit the operation.
    #[error("{subject}: {reason}")]
    Refused {
        /// The object.
        subject: String,
        /// Why.
        reason: String,
    },
    /// Objects are not ready in time.
    #[error("not ready after {} s: {waiting}", .seconds)]
    NotReady {
        /// The time limit.
        seconds: u64,
        /// The objects, and what they wait for.
        waiting: String,
    },
    /// The caller interrupts the operation.
    #[error("interrupted")]
    Interrupted,
}

impl InstallError {
    pub(crate) fn input(path: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self::Input { path: path.into(), reason: reason.to_string() }
    }

    pub(crate) fn request(subject: impl fmt::Display, cause: impl Into<RequestError>) -> Self {
        Self::Request { subject: subject.to_string(), cause: cause.into() }
    }

    pub(crate) fn refused(subject: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self::Refused { subject: subject.to_string(), reason: reason.into() }
    }
}
