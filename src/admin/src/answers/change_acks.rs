//! The acknowledgements of a change: of an answer, of a trace, or of the condition of an object.

use sluice_engine::{Epoch, EpochSummary};
use sluice_graph::Handles;
use sluice_xds::{AckCounts, AckWatch, AwaitedChange, ChangedResources, LaggingProxy, ProxyAck, StatusReader};

use super::changes::changed_resources;

/// The acknowledgements of a change, from the moment when it is served.
pub(crate) struct ChangeAcks {
    /// The epoch of the change; `None` if it is not known.
    epoch: Option<Epoch>,
    awaited: AwaitedChange,
    acks: Option<AckWatch>,
}

impl ChangeAcks {
    /// Those of an epoch. All proxies are awaited if the history does not have it, or not what it changed.
    pub(crate) fn of(handles: &Handles, epoch: Option<&EpochSummary>) -> Self {
        let known = epoch.filter(|epoch| !epoch.keys.omitted());
        let awaited = known.map_or(AwaitedChange::Everything, |epoch| {
            AwaitedChange::Resources(changed_resources(handles, &epoch.keys))
        });
        Self { epoch: epoch.map(|epoch| epoch.epoch), awaited, acks: None }
    }

    /// Those of both changes.
    pub(crate) fn joined(self, other: Self) -> Self {
        // An epoch that changes no resource is never served.
        let served =
            |change: &Self| change.epoch.filter(|_| !change.resources().is_some_and(ChangedResources::is_empty));
        let epoch = served(&self).max(served(&other));
        let awaited = match (self.awaited, other.awaited) {
            (AwaitedChange::Resources(mut all), AwaitedChange::Resources(more)) => {
                for (layer, names) in more {
                    all.entry(layer).or_default().extend(names);
                }
                AwaitedChange::Resources(all)
            }
            _ => AwaitedChange::Everything,
        };
        Self { epoch, awaited, acks: None }
    }

    /// The changed resources; `None` if they are not known, so that all proxies are awaited.
    pub(crate) fn resources(&self) -> Option<&ChangedResources> {
        match &self.awaited {
            AwaitedChange::Resources(resources) => Some(resources),
            AwaitedChange::Everything => None,
        }
    }

    /// The current numbers; `None` until the change is served.
    pub(crate) fn poll(&mut self, status: &StatusReader) -> Option<AckCounts> {
        self.watch(status).map(AckWatch::poll)
    }

    /// The same; also `None` if the process has stopped meanwhile, as in [`AckWatch::poll_unless`].
    pub(crate) fn poll_unless(&mut self, status: &StatusReader, is_stopped: impl Fn() -> bool) -> Option<AckCounts> {
        self.watch(status)?.poll_unless(is_stopped)
    }

    /// Follows the change once it is served.
    fn watch(&mut self, status: &StatusReader) -> Option<&mut AckWatch> {
        // An epoch that changes no resource is not passed to the streams.
        let is_empty = self.resources().is_some_and(ChangedResources::is_empty);
        let is_served = is_empty || self.epoch.is_none_or(|epoch| status.served_epoch() >= epoch.0);
        if is_served && self.acks.is_none() {
            self.acks = Some(AckWatch::new(status.clone(), self.awaited.clone()));
        }
        self.acks.as_mut()
    }

    /// The proxies that had not acknowledged the change at the last poll.
    pub(crate) fn lagging(&self) -> Vec<LaggingProxy> {
        self.acks.as_ref().map(AckWatch::lagging).unwrap_or_default()
    }

    /// The last acknowledgement of each proxy.
    pub(crate) fn acknowledgements(&self) -> Vec<ProxyAck> {
        self.acks.as_ref().map(AckWatch::acknowledgements).unwrap_or_default()
    }

    /// Frees what is known of streams that have ended.
    pub(crate) fn forget_ended(&mut self) {
        if let Some(acks) = &mut self.acks {
            acks.forget_ended();
        }
    }
}
