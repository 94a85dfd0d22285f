//! Addresses of ambient mode for a client that subscribes on demand (X26).
//!
//! The client may name an address, or a service, which includes its workloads. It is subscribed to the resources that are
//! sent to it, as if it had named them.

use std::collections::BTreeSet;

use sluice_model::Text;

use super::subscription::Subscription;
use crate::name_set::CallerNames;
use crate::store::{ResponseItem, TypeSnapshot, has_aliases};

impl Subscription {
    /// Whether the client may subscribe by alias.
    pub(super) fn is_on_demand(&self) -> bool {
        !self.wildcard && has_aliases(self.kind)
    }

    /// Subscribes to the resources that the requested names refer to in `view`, to all resources on the client's node, and to
    /// changed resources with an alias that the client named earlier.
    pub(super) fn resolve(&mut self, view: &TypeSnapshot, names: &CallerNames) {
        let first = self.sent.is_none() || self.resend_all;
        let requested: BTreeSet<Text> =
            if first { self.names.iter().cloned().collect() } else { self.requested.clone() };
        let resolved: BTreeSet<Text> = requested.iter().flat_map(|name| view.known_as(name)).collect();
        let mut added: BTreeSet<Text> = if first { view.on_own_node() } else { BTreeSet::new() };
        if let Some(sent) = self.sent.as_ref().filter(|sent| !sent.is_same(view)) {
            let changed = view.changed_since(sent);
            let changed = changed.iter().map(|change| change.name);
            let changed = changed.filter(|name| !self.names.contains(name) && self.is_subscribed_by_alias(view, name));
            // A service and its workloads may have been added at once.
            added.extend(changed.flat_map(|name| view.known_as(name)));
            added.retain(|name| !self.names.contains(name));
        }
        added.extend(resolved.iter().filter(|name| !self.names.contains(name)).cloned());
        if !first {
            self.requested.extend(added.iter().cloned().chain(resolved));
        }
        if !added.is_empty() {
            self.names = names.change(&self.names, added, &BTreeSet::new());
        }
    }

    /// Whether a resource has an alias that is subscribed to, or is on the client's node.
    fn is_subscribed_by_alias(&self, view: &TypeSnapshot, name: &str) -> bool {
        let Some(aliases) = view.aliases_of(name) else { return false };
        let on_own_node = !aliases.node.is_empty() && *aliases.node == *view.own_node();
        on_own_node || aliases.addresses.iter().chain(&aliases.services).any(|alias| self.names.contains(alias))
    }

    /// Adds to each resource the addresses by which it may have been requested.
    pub(super) fn add_aliases(view: &TypeSnapshot, items: &mut [ResponseItem]) {
        for item in items {
            if let ResponseItem::Single(resource) = item {
                resource.aliases = view.aliases_of(&resource.name).map(|known| known.addresses).unwrap_or_default();
            }
        }
    }
}
