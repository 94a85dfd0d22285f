//! A client's subscriptions by type.

use sluice_model::ResourceType;

use super::watch::Watch;
use crate::xds::kinds::Kinds;

/// A client's subscriptions by type. Looked at for every type at every change: a place for each instead of a search.
#[derive(Debug, Default)]
pub(super) struct Watches {
    places: [Option<Box<Watch>>; ResourceType::ALL.len()],
    kinds: Kinds,
    changes: u64,
}

impl Watches {
    pub(super) fn get(&self, kind: ResourceType) -> Option<&Watch> {
        self.places.get(kind as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, kind: ResourceType) -> Option<&mut Watch> {
        self.places.get_mut(kind as usize)?.as_deref_mut()
    }

    /// Sets the subscription to the type that it is of.
    pub(super) fn insert(&mut self, watch: Watch) {
        if let Some(place) = self.places.get_mut(watch.kind as usize) {
            self.kinds.insert(watch.kind);
            self.changes += 1;
            *place = Some(Box::new(watch));
        }
    }

    pub(super) fn remove(&mut self, kind: ResourceType) {
        if let Some(place) = self.places.get_mut(kind as usize) {
            *place = None;
            self.kinds.remove(kind);
            self.changes += 1;
        }
    }

    /// The types there is a subscription to.
    pub(super) fn kinds(&self) -> Kinds {
        self.kinds
    }

    /// How often a type has come or gone.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// All in push order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Watch> {
        self.places.iter().flatten().map(AsRef::as_ref)
    }
}
