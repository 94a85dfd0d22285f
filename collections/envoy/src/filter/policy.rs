//! Filters of security policies by step. Extensions are placed between the steps (N07).

/// Filters of security policies, ordered within each step.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySteps<F> {
    /// External authorization (`CUSTOM`).
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
