//! The order of commits, for each lane.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_model::Kind;

use super::backlog::Lane;

/// Keeps commits in order that several threads make. A commit of one lane does not wait for commits of the other one, which
/// take long while their lane is full.
#[derive(Debug, Default)]
pub(super) struct LaneOrder {
    endpoints: Mutex<()>,
    others: Mutex<()>,
}

/// The locked lanes. Other commits of these wait while it exists.
pub(super) type CommitGuard<'a> = [Option<MutexGuard<'a, ()>>; 2];

impl LaneOrder {
    /// Waits for earlier commits of the lanes of these kinds.
    pub(super) fn wait(&self, kinds: impl Iterator<Item = Kind>) -> CommitGuard<'_> {
        let (mut others, mut endpoints) = (false, false);
        for kind in kinds {
            match Lane::of(kind) {
                Lane::Others => others = true,
                Lane::Endpoints => endpoints = true,
            }
        }
        self.lock(others, endpoints)
    }

    /// Waits for all earlier commits.
    pub(super) fn wait_for_all(&self) -> CommitGuard<'_> {
        self.lock(true, true)
    }

    /// Locks the lane of endpoints last, so that it is not held while the other one is awaited.
    fn lock(&self, others: bool, endpoints: bool) -> CommitGuard<'_> {
        [(others, &self.others), (endpoints, &self.endpoints)]
            .map(|(is_locked, lane)| is_locked.then(|| lane.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
