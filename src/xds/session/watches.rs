//! A client's subscriptions by type.

use sluice_model::ResourceType;

use super::watch::Watch;

/// A client's subscriptions by type. Looked at for every type at every change: a place for each instead of a search.
#[derive(Debug, Default)]
pub(super) struct Watches {
    places: [Option<Box<Watch>>; ResourceType::ALL.len()],
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
            *place = Some(Box::new(watch));
            self.changes += 1;
        }
    }

    pub(super) fn remove(&mut self, kind: ResourceType) {
        if let Some(place) = self.places.get_mut(kind as usize) {
            *place = None;
            self.changes += 1;
        }
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
