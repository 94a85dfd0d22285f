//! Endpoints of localities as separate resources (LEDS).
//!
//! The assignment of a cluster names a collection for each of its localities, `xdstp://…/*`. Envoy subscribes to the collection when it
//! has the assignment, and uses the assignment when it has the endpoints. The session keeps the names of collections without `/*`.
//!
//! Envoy keeps the endpoints of a collection until each is removed, also when the stream ends, and its next stream does not state which it
//! holds. So a client that held resources before its stream began is sent all assignments with a config source that differs from all
//! before: Envoy then ends its subscriptions to the collections and subscribes again. Until it has the endpoints, it uses the old ones.

use std::collections::BTreeSet;

use prost::Message;
use sluice_model::{ResourceType, Text, lb_endpoint};
use sluice_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use sluice_proto::envoy::config::endpoint::v3::locality_lb_endpoints::LbConfig;
use sluice_proto::wire::encode;
use sluice_proto::xds::core::v3::Authority;

use super::Session;
use super::subscription::Subscription;
use crate::name_list::NameList;
use crate::name_set::NameSet;
use crate::request::Interest;
use crate::store::{ResolvedResource, ResponseItem, ScopeSnapshot};

impl Session {
    /// Handles the assignments that the client may have had when the stream began, before the first of them are sent. One that was
    /// removed is not among those that it states.
    pub(super) fn note_held_assignments(&mut self, snapshot: &ScopeSnapshot) {
        let is_noted = self.renews_collections || !self.is_reconnect;
        let Some(assignments) = self.subscriptions.get_mut(ResourceType::Endpoint).filter(|_| !is_noted) else {
            return;
        };
        if assignments.sent.is_none() && snapshot.has_layers(ResourceType::LbEndpoint) {
            assignments.forget_holds();
            self.renews_collections = true;
            // It may have replaced any of its clusters and not have been sent an assignment since.
            self.replaced.extend(assignments.names.iter().cloned());
        }
    }

    /// The assignments of a response, such that the client subscribes to their endpoints again if it may hold endpoints that do not exist
    /// any more. The endpoints of clusters that have replaced others follow.
    pub(super) fn assignments(&mut self, items: Vec<ResponseItem>) -> Vec<ResponseItem> {
        self.resend_endpoints_to_replacements(&items);
        if !self.renews_collections {
            return items;
        }
        let source = Authority { name: format!("{:016x}", self.stream) };
        let renewed = |resource| ResponseItem::Single(with_source(resource, &source));
        items.into_iter().flat_map(ResponseItem::into_resources).map(renewed).collect()
    }

    /// Notes clusters that may have replaced others of the same name. Envoy does not subscribe to collections for them to which it
    /// subscribes for those others.
    pub(super) fn note_replaced(&mut self, all: bool, clusters: &[Text]) {
        if self.subscriptions.get(ResourceType::LbEndpoint).is_none() {
            return;
        }
        let all =
            self.subscriptions.get(ResourceType::Endpoint).filter(|_| all).map(|subscription| &subscription.names);
        self.replaced.extend(all.into_iter().flat_map(NameSet::iter).chain(clusters).cloned());
    }

    /// Sends the endpoints of replaced clusters after the first assignment of each.
    fn resend_endpoints_to_replacements(&mut self, assignments: &[ResponseItem]) {
        if self.replaced.is_empty() {
            return;
        }
        let names = assignments.iter().flat_map(ResponseItem::versions).map(|(name, _)| name);
        let replaced = names.filter(|name| self.replaced.remove(*name));
        let prefixes: BTreeSet<String> = replaced.map(|cluster| lb_endpoint::cluster_prefix(cluster)).collect();
        let Some(endpoints) = self.subscriptions.get_mut(ResourceType::LbEndpoint) else { return };
        let is_of = |name: &&Text| {
            let cluster = name.rfind('/').and_then(|end| name.get(..=end));
            cluster.is_some_and(|cluster| prefixes.contains(cluster))
        };
        let collections: Vec<Text> = endpoints.names.iter().filter(is_of).cloned().collect();
        endpoints.requested.extend(collections);
    }
}

impl Subscription {
    /// The names by which the client knows removed endpoints, and collections without endpoints.
    pub(super) fn removed_endpoints(&self, removed: BTreeSet<Text>) -> BTreeSet<Text> {
        let known = |name: Text| match self.names.contains(&name) {
            true => Text::from(format!("{name}{}", lb_endpoint::ALL)),
            false => name,
        };
        removed.into_iter().map(known).collect()
    }
}

/// The names in a request without the suffix of collections.
pub(super) fn collections(interest: Interest) -> Interest {
    let without_suffix =
        |names: &NameList| names.iter().map(|name| name.strip_suffix(lb_endpoint::ALL).unwrap_or(name)).collect();
    match interest {
        Interest::Exactly(names) => Interest::Exactly(without_suffix(&names)),
        Interest::Change { subscribe, unsubscribe, holds } => {
            let (subscribe, unsubscribe) = (without_suffix(&subscribe), without_suffix(&unsubscribe));
            Interest::Change { subscribe, unsubscribe, holds }
        }
    }
}

/// The assignment with this source in the config sources of its collections.
fn with_source(resource: ResolvedResource, source: &Authority) -> ResolvedResource {
    let Ok(mut assignment) = ClusterLoadAssignment::decode(resource.bytes()) else { return resource };
    let mut is_changed = false;
    for locality in &mut assignment.endpoints {
        if let Some(LbConfig::LedsClusterLocalityConfig(config)) = &mut locality.lb_config
            && let Some(config) = &mut config.leds_config
        {
            config.authorities = vec![source.clone()];
            is_changed = true;
        }
    }
    if is_changed { resource.with_bytes(encode(&assignment).into()) } else { resource }
}
