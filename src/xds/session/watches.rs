//! A client's subscriptions by type.

use sluice_model::ResourceType;

use super::watch::Watch;
use crate::xds::kinds::Kinds;

/// A client's subscriptions by type. Looked at for every type at every change: a place for each instead of a search.
#[derive(Debug, Default)]
pub(super) struct Watches {
    places: [Option<Box<Watch>>; ResourceType::ALL.len()],
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
        }
    }

    pub(super) fn remove(&mut self, kind: ResourceType) {
        if let Some(place) = self.places.get_mut(kind as usize) {
            *place = None;
        }
    }

    /// The types there is a subscription to.
    pub(super) fn kinds(&self) -> Kinds {
        self.iter().map(|watch| watch.kind).collect()
    }

    /// All in push order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Watch> {
        self.places.iter().flatten().map(AsRef::as_ref)
    }
}
