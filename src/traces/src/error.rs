//! Failures to send traces.

/// Traces cannot be sent.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ExportError {
    /// The client cannot be set up.
    #[error("traces cannot be sent: {0}")]
    Client(String),
    /// The endpoint does not respond, or refuses them.
    #[error("the endpoint of traces: {0}")]
    Endpoint(String),
}
