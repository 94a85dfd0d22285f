//! Questions that are not answered, and their exit codes.

use sluice_http_client::HttpError;

use super::{EXIT_INVALID, EXIT_UNREACHABLE};

/// A question that is not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    /// The flags are invalid.
    #[error("{0}")]
    Flags(String),
    /// The cluster does not answer, or has no such pod.
    #[error("{0}")]
    Cluster(String),
    /// There is no response.
    #[error(
        "{address}: {error}; --address is the address of the HTTP port of the control plane, and without it, its pods are found with the kubeconfig and a port-forward"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// What failed.
        error: HttpError,
    },
    /// A port of a pod cannot be forwarded.
    #[error("{pod}: port-forward: {reason}")]
    PortForward {
        /// The pod.
        pod: String,
        /// What failed.
        reason: String,
    },
    /// A server over xDS cannot be reached, or refuses the call.
    #[error("{address}: xDS: {reason}")]
    Xds {
        /// The address.
        address: String,
        /// What failed.
        reason: String,
    },
    /// The server refuses the question.
    #[error("{address}: status {status}: {text}")]
    Refused {
        /// The address.
        address: String,
        /// The status of the response.
        status: u16,
        /// The reason that the server gives.
        text: String,
    },
    /// The question is malformed.
    #[error("{0}")]
    Invalid(String),
    /// What the question names does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The server has no such page.
    #[error("{address} has no page {page}; the versions of sluicectl and of the server may differ")]
    NoPage {
        /// The address.
        address: String,
        /// The path of the page.
        page: String,
    },
    /// The response is not what this version expects.
    #[error("the server's response is not understood: {0}; the versions of sluicectl and of the server may differ")]
    Response(String),
}

impl QueryError {
    /// Whether the replica does not answer. Otherwise, the error is one of the question, and other replicas have it as well.
    pub(super) fn is_of_replica(&self) -> bool {
        self.exit_code(EXIT_INVALID) == EXIT_UNREACHABLE
    }

    /// The exit code: `not_found` if what the question names does not exist.
    pub(crate) fn exit_code(&self, not_found: u8) -> u8 {
        match self {
            Self::Flags(_) | Self::Invalid(_) => EXIT_INVALID,
            Self::Cluster(_)
            | Self::Unreachable { .. }
            | Self::PortForward { .. }
            | Self::Xds { .. }
            | Self::Refused { .. }
            | Self::NoPage { .. }
            | Self::Response(_) => EXIT_UNREACHABLE,
            Self::NotFound(_) => not_found,
        }
    }
}
