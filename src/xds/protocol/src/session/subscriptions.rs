//! A client's subscriptions by type.

use sluice_model::ResourceType;

use super::subscription::Subscription;
use crate::resource_types::ResourceTypeSet;

/// A client's subscriptions by type. Every change visits every type, so this is an array and not a map.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    by_type: [Option<Box<Subscription>>; ResourceType::ALL.len()],
}

impl Subscriptions {
    pub(super) fn get(&self, kind: ResourceType) -> Option<&Subscription> {
        self.by_type.get(kind as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, kind: ResourceType) -> Option<&mut Subscription> {
        self.by_type.get_mut(kind as usize)?.as_deref_mut()
    }

    /// Adds or replaces the subscription of a type.
    pub(super) fn insert(&mut self, subscription: Subscription) {
        if let Some(slot) = self.by_type.get_mut(subscription.kind as usize) {
            *slot = Some(Box::new(subscription));
        }
    }

    pub(super) fn remove(&mut self, kind: ResourceType) {
        if let Some(slot) = self.by_type.get_mut(kind as usize) {
            *slot = None;
        }
    }

    /// The types with a subscription.
    pub(super) fn kinds(&self) -> ResourceTypeSet {
        self.iter().map(|subscription| subscription.kind).collect()
    }

    /// All subscriptions in push order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Subscription> {
        self.by_type.iter().flatten().map(AsRef::as_ref)
    }
}
