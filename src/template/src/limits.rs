//! Limits of an execution.

/// Limits of an execution.
#[derive(Clone, Copy, Debug)]
pub struct ExecutionLimits {
    /// Maximum length of the output.
    pub output_bytes: usize,
    /// Maximum length of a text that a function returns.
    pub text_bytes: usize,
    /// Maximum number of evaluated operands; functions on large values count more.
    pub steps: usize,
}

impl Default for ExecutionLimits {
    /// 4 MiB of output, texts of 1 MiB, 1,000,000 steps.
    fn default() -> Self {
        Self { output_bytes: 4 << 20, text_bytes: 1 << 20, steps: 1_000_000 }
    }
}
