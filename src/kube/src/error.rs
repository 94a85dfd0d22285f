//! Failures of the Kubernetes API, and which of them are retryable.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use kube::config::{InClusterError, KubeconfigError};

/// A client cannot be created. A retry fails unless the named file changes.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("kubeconfig {}: {}", .path.display(), chain(.cause))]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: KubeconfigError,
    },
    /// The service account of the pod cannot be used.
    #[error("{} (the process does not run in a pod: name a cluster with --kubeconfig, or a directory with --configDir)", chain(.0))]
    ServiceAccount(InClusterError),
    /// The client rejects the configuration.
    #[error("{}", chain(.0))]
    Client(kube::Error),
}

/// No response of an API server: no connection, or the connection broke. Retryable.
#[derive(Debug, thiserror::Error)]
#[error("cannot reach the API server {address}: {}", chain(&**.cause))]
pub(crate) struct UnreachableServer {
    /// URL of the API server.
    pub(crate) address: String,
    /// The error of the connection.
    pub(crate) cause: Box<dyn Error + Send + Sync>,
}

/// No response in time. Retryable.
#[derive(Debug, thiserror::Error)]
#[error("no response within {} s", .limit.as_secs_f64())]
pub(crate) struct NoResponse {
    /// The time limit.
    pub(crate) limit: Duration,
}

/// A request to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No response. Retryable.
    #[error("{0}")]
    Unreachable(String),
    /// The server rejected the request with this status code. Retryable if it is 429 or 5xx.
    #[error("{code}: {message}")]
    Status {
        /// HTTP status code.
        code: u16,
        /// The message of the server.
        message: String,
    },
    /// No credentials. The output of a credential plugin is not quoted, because it may contain credentials. Retryable.
    #[error("the kubeconfig yields no credentials")]
    Credentials,
    /// The request or the response is malformed. Not retryable.
    #[error("{0}")]
    Malformed(String),
}

impl From<kube::Error> for RequestError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Auth(_) => Self::Credentials,
            kube::Error::Api(status) => Self::Status { code: status.code, message: status.message.clone() },
            kube::Error::Service(cause) => Self::Unreachable(chain(&*cause)),
            kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => Self::Unreachable(chain(&error)),
            other => Self::Malformed(chain(&other)),
        }
    }
}

/// The text of an error followed by those of its causes.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text += ": ";
            text += &cause_text;
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_a_credential_plugin_is_not_quoted() {
        let error = kube::Error::Auth(kube::client::AuthError::AuthExec("token abc123".to_owned()));
        assert_eq!(RequestError::from(error).to_string(), "the kubeconfig yields no credentials");
    }

    #[test]
    fn error_names_the_unreachable_server() {
        let cause = Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        let server = UnreachableServer { address: "https://10.0.0.1:443/".to_owned(), cause };
        let error = RequestError::from(kube::Error::Service(Box::new(server)));
        assert!(matches!(error, RequestError::Unreachable(_)));
        assert_eq!(error.to_string(), "cannot reach the API server https://10.0.0.1:443/: connection refused");
    }
}
