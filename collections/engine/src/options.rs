//! Options of an engine.

use std::time::Duration;

use crate::clock::Clock;

/// How an engine runs. Options do not change results.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Largest number of writes of an epoch; a single command is never split. Default 2048.
    pub batch: usize,
    /// Recent epochs that are kept to explain changes.
    pub history: HistoryLimits,
    /// Time for metrics and time-outs.
    pub clock: Clock,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { batch: 2048, history: HistoryLimits::default(), clock: Clock::default() }
    }
}

/// Limits of the history: the oldest epochs beyond either are dropped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HistoryLimits {
    /// Longest time for which an epoch is kept. Default 1 h.
    pub age: Duration,
    /// Memory in bytes, of which each epoch and each changed key counts as 256: that of a key whose record is gone. 0
    /// keeps no history. Default 64 MiB.
    pub bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { age: Duration::from_secs(3600), bytes: 64 << 20 }
    }
}
