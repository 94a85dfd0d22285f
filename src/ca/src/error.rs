//! Errors. No error text contains a part of a key.

/// Certificates or a key that an authority cannot use.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{part}: {reason}")]
pub struct MaterialError {
    /// The part: `signing certificate`, or the name of a file.
    pub part: String,
    /// What is wrong with it.
    pub reason: String,
}

impl MaterialError {
    pub(crate) fn new(part: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { part: part.into(), reason: reason.into() }
    }
}

/// The reason why no certificate is issued.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IssueError {
    /// The request is malformed, not signed by its key, or its key is too weak.
    #[error("{0}")]
    Request(String),
    /// The requested lifetime is too long.
    #[error("requested TTL {requested} s is greater than the max allowed TTL {max} s")]
    Lifetime {
        /// The requested lifetime, in seconds.
        requested: i64,
        /// The limit, in seconds.
        max: u64,
    },
    /// The authority cannot sign.
    #[error("{0}")]
    Sign(String),
}

impl IssueError {
    /// The label in metrics, as in istiod.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Request(_) => "CSR_ERROR",
            Self::Lifetime { .. } => "TTL_ERROR",
            Self::Sign(_) => "CERT_GEN_ERROR",
        }
    }

    /// Whether the cause is the caller's request. The same request is then rejected again; otherwise a retry may succeed.
    #[must_use]
    pub const fn is_caller_error(&self) -> bool {
        !matches!(self, Self::Sign(_))
    }
}
