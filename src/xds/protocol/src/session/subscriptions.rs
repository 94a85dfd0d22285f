//! A client's subscriptions by type.

use sluice_model::ResourceType;

use super::subscription::Subscription;
use crate::limits::{MAX_SUBSCRIBED_NAME_BYTES, MAX_SUBSCRIBED_NAMES};
use crate::request::StreamError;
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

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Subscription> {
        self.by_type.iter_mut().flatten().map(AsMut::as_mut)
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

    /// Checks the limits of all names that are kept for the client.
    pub(super) fn check_size(&self) -> Result<(), StreamError> {
        let (mut names, mut bytes) = (0, 0);
        for subscription in self.iter() {
            names += subscription.names.len() + subscription.holds.len();
            bytes += subscription.names.bytes() + subscription.holds.bytes();
        }
        if names > MAX_SUBSCRIBED_NAMES || bytes > MAX_SUBSCRIBED_NAME_BYTES {
            return Err(StreamError::Exhausted(format!(
                "the stream has more than {MAX_SUBSCRIBED_NAMES} resource names, or {MAX_SUBSCRIBED_NAME_BYTES} bytes of them"
            )));
        }
        Ok(())
    }

    /// All subscriptions in push order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Subscription> {
        self.by_type.iter().flatten().map(AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use sluice_model::ProxyKey;

    use super::*;
    use crate::{Interest, NameInterner, Request, Session, XdsProtocol};

    #[test]
    fn the_names_of_all_types_of_a_stream_are_limited() {
        let names = Arc::new(NameInterner::with_seeds(1, 2));
        let mut session = Session::new(XdsProtocol::Delta, ProxyKey("web".into()), 1, names);
        let mut subscribe = |kind: ResourceType, count: usize| {
            let subscribe = (0..count).map(|number| format!("{kind:?}{number}")).collect();
            let interest =
                Interest::Change { subscribe, unsubscribe: [""; 0].iter().collect(), holds: Default::default() };
            let request = Request { type_url: kind.type_url().into(), interest, ..Request::default() };
            session.request(request, Instant::now())
        };
        let half = MAX_SUBSCRIBED_NAMES / 2;
        assert!(subscribe(ResourceType::Endpoint, half).is_ok());
        assert!(subscribe(ResourceType::Route, half).is_ok());
        let refused = subscribe(ResourceType::Secret, 1);
        assert!(matches!(&refused, Err(StreamError::Exhausted(reason)) if reason.contains("500000")), "{refused:?}");
    }
}
