//! Changes that wait for an epoch, and the order in which they are committed.

use std::collections::VecDeque;

use sluice_model::Kind;

use super::Change;

/// Maximum size of a backlog that is committed as one epoch. A longer one commits changes of endpoints first, so that no
/// request goes to a removed pod while a thousand routes are processed, and other changes in epochs of this size.
const MAX_CHANGES_PER_EPOCH: usize = 1024;

/// Changes in the order of arrival, except that changes of endpoints go first. Changes of one kind keep their order.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    endpoints: Vec<Change>,
    others: VecDeque<Change>,
    /// The last epoch had only changes of endpoints: the next one takes other changes, even if more endpoints change.
    endpoints_were_last: bool,
}

/// A part of the backlog whose changes keep their order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Lane {
    /// Changes of endpoints.
    Endpoints,
    /// All others.
    Others,
}

impl Lane {
    /// The lane of a kind, so that the changes of one object are in one lane.
    pub(super) fn of(kind: Kind) -> Self {
        match kind {
            Kind::EndpointSlice | Kind::Pod | Kind::WorkloadEntry => Self::Endpoints,
            _ => Self::Others,
        }
    }
}

impl Backlog {
    /// Adds changes of one lane.
    pub(super) fn add(&mut self, lane: Lane, changes: Vec<Change>) {
        match lane {
            Lane::Endpoints => self.endpoints.extend(changes),
            Lane::Others => self.others.extend(changes),
        }
    }

    /// Number of changes of one lane.
    pub(super) fn len_of(&self, lane: Lane) -> usize {
        match lane {
            Lane::Endpoints => self.endpoints.len(),
            Lane::Others => self.others.len(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.endpoints.len() + self.others.len()
    }

    /// All changes.
    pub(super) fn take_all(&mut self) -> Vec<Change> {
        let mut all = std::mem::take(&mut self.endpoints);
        all.extend(std::mem::take(&mut self.others));
        all
    }

    /// The changes of the next epoch.
    pub(super) fn take_next(&mut self) -> Vec<Change> {
        if self.len() <= MAX_CHANGES_PER_EPOCH {
            return self.take_all();
        }
        self.endpoints_were_last = !self.endpoints.is_empty() && (!self.endpoints_were_last || self.others.is_empty());
        if self.endpoints_were_last {
            std::mem::take(&mut self.endpoints)
        } else {
            self.others.drain(..MAX_CHANGES_PER_EPOCH.min(self.others.len())).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_model::{ObjectKey, Text};

    use super::*;
    use crate::ChangeOrigin;

    fn deletions(kind: Kind, count: usize) -> Vec<Change> {
        let change = |number| Change {
            kind,
            key: ObjectKey::new("one", "shop", format!("{kind}-{number}")),
            object: None,
            origin: ChangeOrigin::default(),
        };
        (0..count).map(change).collect()
    }

    fn kinds(changes: &[Change]) -> Vec<(Kind, usize)> {
        let runs = changes.chunk_by(|a, b| a.kind == b.kind);
        runs.map(|run| (run[0].kind, run.len())).collect()
    }

    #[test]
    fn small_backlog_is_one_epoch() {
        let mut backlog = Backlog::default();
        backlog.add(Lane::Others, deletions(Kind::VirtualService, 1000));
        backlog.add(Lane::Endpoints, deletions(Kind::Pod, 24));
        assert_eq!(kinds(&backlog.take_next()), [(Kind::Pod, 24), (Kind::VirtualService, 1000)]);
        assert_eq!(backlog.len(), 0);
    }

    #[test]
    fn endpoint_changes_go_before_a_large_backlog_and_keep_their_order() {
        let mut backlog = Backlog::default();
        backlog.add(Lane::Others, deletions(Kind::VirtualService, 3000));
        assert_eq!(kinds(&backlog.take_next()), [(Kind::VirtualService, 1024)]);
        backlog.add(Lane::Endpoints, deletions(Kind::EndpointSlice, 2));
        let first = backlog.take_next();
        let names: Vec<Text> = first.iter().map(|change| change.key.name.clone()).collect();
        assert_eq!(names, ["EndpointSlice-0", "EndpointSlice-1"]);
        let rest: Vec<_> = std::iter::from_fn(|| Some(backlog.take_next()).filter(|next| !next.is_empty())).collect();
        let rest: Vec<_> = rest.iter().map(|changes| kinds(changes)).collect();
        assert_eq!(rest, [[(Kind::VirtualService, 1024)], [(Kind::VirtualService, 952)]]);
    }

    #[test]
    fn steady_endpoint_changes_do_not_starve_other_changes() {
        let mut backlog = Backlog::default();
        backlog.add(Lane::Others, deletions(Kind::VirtualService, 3000));
        let mut next = || {
            backlog.add(Lane::Endpoints, deletions(Kind::Pod, 1));
            kinds(&backlog.take_next())
        };
        assert_eq!(next(), [(Kind::Pod, 1)]);
        assert_eq!(next(), [(Kind::VirtualService, 1024)]);
        assert_eq!(next(), [(Kind::Pod, 2)]);
        assert_eq!(next(), [(Kind::VirtualService, 1024)]);
        assert_eq!(next(), [(Kind::Pod, 2), (Kind::VirtualService, 952)]);
    }
}
