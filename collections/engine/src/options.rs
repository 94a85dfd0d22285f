//! Options of an engine.

use crate::clock::Clock;

/// How an engine runs. Options do not change results.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Largest number of writes of an epoch; a single command is never split. Default 2048.
    pub batch: usize,
    /// Recent epochs that are kept to explain changes; 0 keeps none. Default 256.
    pub history: usize,
    /// Time for metrics and time-outs.
    pub clock: Clock,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { batch: 2048, history: 256, clock: Clock::default() }
    }
}
