//! Addresses of ambient mode for a client that asks for them as it needs them (X26).
//!
//! It may ask by an address, or for a service and mean its workloads too; what it is told of it is told of from then on, as
//! if it had asked for it by name.

use std::collections::BTreeSet;

use sluice_model::Text;

use super::watch::Watch;
use crate::xds::names::Names;
use crate::xds::store::{Item, View, has_aliases};

impl Watch {
    /// Whether other names than those of resources count.
    pub(super) fn is_on_demand(&self) -> bool {
        !self.wildcard && has_aliases(self.kind)
    }

    /// Adds what the names asked for stand for in `view`, everything on the client's own node, and what has come to be
    /// known by a name that it asked for earlier.
    pub(super) fn resolve(&mut self, view: &View, names: &Names) {
        let first = self.sent.is_none() || self.asked_all;
        let asked: BTreeSet<Text> = if first { self.names.iter().cloned().collect() } else { self.asked.clone() };
        let meant: BTreeSet<Text> = asked.iter().flat_map(|name| view.known_as(name)).collect();
        let mut fresh: BTreeSet<Text> = if first { view.on_own_node() } else { BTreeSet::new() };
        if let Some(sent) = self.sent.as_ref().filter(|sent| !sent.is_same(view)) {
            let changed = view.changed_since(sent);
            let changed = changed.iter().filter(|name| !self.names.contains(name) && self.means(view, name));
            fresh.extend(changed.cloned());
        }
        fresh.extend(meant.iter().filter(|name| !self.names.contains(name)).cloned());
        if !first {
            self.asked.extend(fresh.iter().cloned().chain(meant));
        }
        if !fresh.is_empty() {
            self.names = names.change(&self.names, fresh, &BTreeSet::new());
        }
    }

    /// Whether a resource is known by a name that is wanted, or runs on the client's node.
    fn means(&self, view: &View, name: &str) -> bool {
        let Some(known) = view.known(name) else { return false };
        let own_node = !known.node.is_empty() && *known.node == *view.own_node();
        own_node || known.addresses.iter().chain(&known.services).any(|alias| self.names.contains(alias))
    }

    /// Has each resource say by which addresses it may have been asked for.
    pub(super) fn add_aliases(view: &View, items: &mut [Item]) {
        for item in items {
            if let Item::One(found) = item {
                found.aliases = view.known(&found.name).map(|known| known.addresses).unwrap_or_default();
            }
        }
    }
}
