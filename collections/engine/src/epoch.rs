//! Epochs, and where writes come from.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

/// Number of a consistent cut: every write up to it is visible, no later write is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Epoch(pub u64);

/// When the writes of an epoch were received, and how long the epoch took.
#[derive(Clone, Copy, Debug, Default)]
pub struct EpochTiming {
    /// When the source received the earliest write of the epoch, by the [`Origin`]s of its writes; since the Unix
    /// epoch.
    pub received: Option<Duration>,
    /// How long the engine computed the epoch.
    pub took: Duration,
}

/// Where a write comes from, as its source states it. Explanations show it; no result depends on it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Origin {
    /// Version of the object at its source, such as a resourceVersion.
    pub version: Arc<str>,
    /// Generation of the object at its source, if it has one: the version of its specification.
    pub generation: Option<i64>,
    /// When the source received it, since the Unix epoch, by the caller's clock.
    pub received: Option<Duration>,
}

impl Origin {
    /// An origin with a version and without a time.
    #[must_use]
    pub fn version(version: impl Into<Arc<str>>) -> Self {
        Self { version: version.into(), ..Self::default() }
    }
}
