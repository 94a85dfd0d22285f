//! A sink of tests whose lane of configuration is full.

use std::sync::{Condvar, Mutex, MutexGuard};

use sluice_model::{Kind, Text};

use crate::backlog::Lane;
use crate::{Change, Sink};

/// Commits of other kinds than endpoints wait until the lane is opened.
#[derive(Default)]
pub(crate) struct FullLane {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of commits that wait.
    waiting: usize,
    is_open: bool,
    /// Names of the changed objects, with a sign.
    committed: Vec<String>,
}

impl FullLane {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Waits until a commit waits.
    pub(crate) fn delays_a_commit(&self) {
        drop(self.changed.wait_while(self.state(), |state| state.waiting == 0));
    }

    pub(crate) fn open(&self) {
        self.state().is_open = true;
        self.changed.notify_all();
    }

    /// What was committed since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.state().committed)
    }
}

impl Sink for FullLane {
    fn commit(&self, changes: Vec<Change>) {
        let mut state = self.state();
        if changes.iter().any(|change| Lane::of(change.kind) == Lane::Others) {
            state.waiting += 1;
            self.changed.notify_all();
            state = self.changed.wait_while(state, |state| !state.is_open).expect("no panic");
        }
        let sign = |change: &Change| if change.object.is_some() { "+" } else { "-" };
        state.committed.extend(changes.iter().map(|change| format!("{}{}", sign(change), change.key.name)));
    }

    fn synced(&self, _: &Text, _: &[Kind]) {}

    fn served(&self, _: &Text, kind: Kind, is_served: bool) {
        self.state().committed.push(format!("{kind} {is_served}"));
    }
}
