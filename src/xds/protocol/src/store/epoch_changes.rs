//! The changes of an epoch.

use std::sync::Arc;
use std::time::Instant;

use sluice_model::{ProxyKey, Resource, ResourceKey, Scope, Segment, SegmentKey};

/// All changes of one epoch: the new value of each key, or `None` if the key is removed. Each key at most once.
#[derive(Clone, Debug, Default)]
pub struct EpochChanges {
    /// Whole resources.
    pub resources: Vec<(ResourceKey, Option<Resource>)>,
    /// Segments of large resources.
    pub segments: Vec<(SegmentKey, Option<Segment>)>,
    /// The scope of each proxy.
    pub scopes: Vec<(ProxyKey, Option<Arc<Scope>>)>,
    /// When the changes arrived; the time of [`Store::apply`](crate::Store::apply) if it is unknown.
    pub times: Option<ChangeTimes>,
}

/// When the earliest input of an epoch passed each stage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ChangeTimes {
    /// The epoch of the engine, 0 if it is unknown.
    pub source_epoch: u64,
    /// Its source received it.
    pub source: Instant,
    /// It was parsed and passed to the engine.
    pub parsed: Instant,
    /// The engine committed the epoch.
    pub committed: Instant,
}

impl ChangeTimes {
    /// The same time for all stages, for changes without earlier times.
    #[must_use]
    pub fn at(now: Instant) -> Self {
        Self { source_epoch: 0, source: now, parsed: now, committed: now }
    }
}
