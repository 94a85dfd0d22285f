//! Filters of policies by the step they belong to: what extends the proxy stands between the steps (N07).

/// Filters of policies, each step already in order.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySteps<F> {
    /// Authorization by others (`CUSTOM`).
    pub custom: Vec<F>,
    /// Authentication.
    pub authentication: Vec<F>,
    /// Authorization.
    pub authorization: Vec<F>,
}

impl<F> Default for PolicySteps<F> {
    fn default() -> Self {
        Self { custom: Vec::new(), authentication: Vec::new(), authorization: Vec::new() }
    }
}
