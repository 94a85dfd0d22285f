//! A client's subscriptions by type.

use sluice_model::ResourceType;

use super::subscription::Subscription;
use crate::limits::{MAX_SUBSCRIBED_NAME_BYTES, MAX_SUBSCRIBED_NAMES};
use crate::name_set::NameBudget;
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

    /// Number and size of all names that are kept for the client.
    pub(super) fn size(&self) -> (usize, usize) {
        self.iter().fold((0, 0), |(names, bytes), subscription| {
            let (wanted, held) = (&subscription.names, &subscription.holds);
            (names + wanted.len() + held.len(), bytes + wanted.bytes() + held.bytes())
        })
    }

    /// Checks the limits of the names of this stream and, if it has more than `before`, of all streams of the caller.
    pub(super) fn check_size(&self, before: (usize, usize), budget: &NameBudget) -> Result<(), StreamError> {
        let (names, bytes) = self.size();
        if names > MAX_SUBSCRIBED_NAMES || bytes > MAX_SUBSCRIBED_NAME_BYTES {
            return Err(StreamError::Exhausted(format!(
                "the stream has more than {MAX_SUBSCRIBED_NAMES} resource names, or {MAX_SUBSCRIBED_NAME_BYTES} bytes of them"
            )));
        }
        let grows = names > before.0 || bytes > before.1;
        if grows && budget.is_exceeded() {
            let limit = budget.limit();
            return Err(StreamError::Exhausted(format!(
                "the resource names of all streams of the caller take more than {limit} bytes"
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
    use crate::{CallerNames, Interest, NameInterner, Request, RequestOutcome, Session, XdsProtocol};

    fn session(interner: &Arc<NameInterner>, budget: &Arc<NameBudget>) -> Session {
        let names = CallerNames::new(interner.clone(), budget.clone());
        Session::new(XdsProtocol::Delta, ProxyKey("web".into()), 1, names)
    }

    /// Subscribes to some names that begin with a text.
    fn subscribe(
        session: &mut Session,
        kind: ResourceType,
        prefix: &str,
        count: usize,
    ) -> Result<RequestOutcome, StreamError> {
        let subscribe = (0..count).map(|number| format!("{prefix}{number}")).collect();
        let interest = Interest::Change { subscribe, unsubscribe: [""; 0].iter().collect(), holds: Default::default() };
        session.request(Request { type_url: kind.type_url().into(), interest, ..Request::default() }, Instant::now())
    }

    #[test]
    fn the_names_of_all_types_of_a_stream_are_limited() {
        let names = Arc::new(NameInterner::with_seeds(1, 2));
        let mut session = session(&names, &NameBudget::new(usize::MAX));
        let half = MAX_SUBSCRIBED_NAMES / 2;
        assert!(subscribe(&mut session, ResourceType::Endpoint, "a", half).is_ok());
        assert!(subscribe(&mut session, ResourceType::Route, "b", half).is_ok());
        let refused = subscribe(&mut session, ResourceType::Secret, "c", 1);
        assert!(matches!(&refused, Err(StreamError::Exhausted(reason)) if reason.contains("500000")), "{refused:?}");
    }

    #[test]
    fn the_names_of_all_streams_of_a_caller_are_limited_and_equal_sets_count_once() {
        let names = Arc::new(NameInterner::with_seeds(1, 2));
        let (budget, of_other) = (NameBudget::new(100_000), NameBudget::new(100_000));
        let mut sessions: Vec<Session> = (0..10).map(|_| session(&names, &budget)).collect();
        for session in &mut sessions {
            assert!(subscribe(session, ResourceType::Endpoint, "same", 1000).is_ok());
        }
        let mut different = session(&names, &budget);
        let refused = subscribe(&mut different, ResourceType::Endpoint, "other", 1000);
        assert!(matches!(&refused, Err(StreamError::Exhausted(reason)) if reason.contains("100000")), "{refused:?}");
        assert!(subscribe(&mut session(&names, &of_other), ResourceType::Endpoint, "another", 1000).is_ok());
        drop(different);
        assert!(subscribe(&mut sessions[0], ResourceType::Route, "few", 10).is_ok(), "the names are no longer in use");
    }
}
