//! What can be wrong. No text holds a part of a key.

/// Material of an authority that cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{part}: {reason}")]
pub struct MaterialError {
    /// The part, `signing certificate` or the name of a file.
    pub part: String,
    /// What is wrong with it.
    pub reason: String,
}

impl MaterialError {
    pub(crate) fn new(part: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { part: part.into(), reason: reason.into() }
    }
}

/// Why no certificate is issued.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IssueError {
    /// The request is malformed, not signed by its key, or its key is too weak.
    #[error("{0}")]
    Request(String),
    /// The lifetime that is asked for is too long.
    #[error("requested TTL {requested} s is greater than the max allowed TTL {most} s")]
    Lifetime {
        /// What was asked for, in seconds.
        requested: i64,
        /// The limit, in seconds.
        most: u64,
    },
    /// The authority cannot sign.
    #[error("{0}")]
    Sign(String),
}

impl IssueError {
    /// The word for it in metrics, as istiod has it.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Request(_) => "CSR_ERROR",
            Self::Lifetime { .. } => "TTL_ERROR",
            Self::Sign(_) => "CERT_GEN_ERROR",
        }
    }

    /// Whether it is the caller who has to do something else.
    #[must_use]
    pub const fn is_callers(&self) -> bool {
        !matches!(self, Self::Sign(_))
    }
}
