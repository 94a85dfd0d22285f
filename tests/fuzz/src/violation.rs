//! What a target finds.

/// A violation of a rule.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Violation {
    /// The part that is the same each time; findings are counted by it.
    pub signature: String,
    /// The details of this occurrence.
    pub message: String,
}

impl Violation {
    pub(crate) fn new(signature: impl Into<String>, message: impl Into<String>) -> Self {
        Self { signature: signature.into(), message: message.into() }
    }
}

/// A violation as an error.
pub fn violation<T>(signature: &str, message: impl Into<String>) -> Result<T, Violation> {
    Err(Violation { signature: signature.to_owned(), message: message.into() })
}
