//! What an epoch changes.

use std::sync::Arc;
use std::time::Instant;

use sluice_model::{ProxyKey, Resource, ResourceKey, Scope, Segment, SegmentKey};

/// All changes of one epoch: the new value of each key, or nothing where it is gone. Each key at most once.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Whole resources.
    pub resources: Vec<(ResourceKey, Option<Resource>)>,
    /// Segments of big resources.
    pub segments: Vec<(SegmentKey, Option<Segment>)>,
    /// What each proxy sees.
    pub scopes: Vec<(ProxyKey, Option<Arc<Scope>>)>,
    /// When the changes came in; taken as now if it is not known.
    pub stamp: Option<Stamp>,
}

/// When the earliest input of an epoch passed each stage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stamp {
    /// Its source saw it.
    pub source: Instant,
    /// It was parsed and handed to the engine.
    pub parsed: Instant,
    /// The epoch that has it was through.
    pub committed: Instant,
}

impl Stamp {
    /// A stamp of changes of which nothing earlier is known.
    #[must_use]
    pub fn now(now: Instant) -> Self {
        Self { source: now, parsed: now, committed: now }
    }
}
