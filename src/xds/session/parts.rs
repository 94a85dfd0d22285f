//! Virtual hosts of route tables, for clients that take them one by one.
//!
//! A client may name the tables it wants the hosts of, and is told of those. Envoy does not: its first request names
//! nothing and means all; later ones name a host on demand, `TABLE/DOMAIN`, whose request waits for the answer. Envoy takes
//! hosts only of tables it has by then and forgets the others', so those of a table are sent once it has said that it
//! has that.

use std::collections::{BTreeMap, BTreeSet};

use sluice_model::{ResourceType, Text};

use super::Session;
use super::watch::Watch;
use crate::xds::request::{HeldList, NameList, Refusal};
use crate::xds::store::{Item, View};

/// The most names a client may have asked for on demand and not been answered; or tables whose hosts it was not sent.
const MAX_ON_DEMAND: usize = 10_000;

impl Session {
    /// Whether the client has asked for the hosts of all tables; it does so when it has its first table.
    pub(super) fn has_all_hosts(&self) -> bool {
        self.watches.get(ResourceType::VirtualHost).is_some_and(Watch::has_parts_of_all)
    }

    /// Has the hosts of tables sent that the client has now.
    pub(super) fn fill_new_tables(&mut self) {
        let tables = std::mem::take(&mut self.new_tables);
        if let Some(hosts) = self.watches.get_mut(ResourceType::VirtualHost) {
            // The name of a host of it: what removes that tells Envoy of a table that it has none.
            hosts.asked.extend(tables.iter().map(|table| Text::from(format!("{table}/"))));
        }
    }
}

impl Watch {
    /// Whether a delta client can have everything of the type.
    pub(super) fn may_have_all(&self) -> bool {
        self.kind.is_wildcard() || self.kind.is_by_prefix()
    }

    /// Whether the client has the parts of all wholes. It names only what it waits for.
    pub(super) fn has_parts_of_all(&self) -> bool {
        self.kind.is_by_prefix() && self.wildcard
    }

    /// A client that does not read answers may not ask for ever more.
    pub(super) fn check_on_demand(&self) -> Result<(), Refusal> {
        if self.asked.len() > MAX_ON_DEMAND {
            return Err(Refusal::Exhausted(format!("more than {MAX_ON_DEMAND} virtual hosts wait to be answered")));
        }
        Ok(())
    }

    /// Whether a client that comes back holds parts it does not name: it had all of them.
    pub(super) fn held_by_all(&self, subscribe: &NameList, holds: &HeldList) -> bool {
        if !self.kind.is_by_prefix() {
            return false;
        }
        let named: BTreeSet<&str> = subscribe.iter().collect();
        let is_named =
            |name: &str| named.contains(name) || name.rsplit_once('/').is_some_and(|(whole, _)| named.contains(whole));
        holds.names().iter().any(|name| !is_named(name))
    }

    /// Has what was asked for as a whole answered by its parts. What has none stays: that it has none is the answer.
    pub(super) fn resolve_wholes(&mut self, view: &View) {
        let missing = self.asked.iter().filter(|name| view.version(name).is_none());
        let whole = |name: &Text| (Text::from(name.strip_suffix('/').unwrap_or(name)), name.clone());
        let wholes: BTreeMap<Text, Text> = missing.map(whole).collect();
        if wholes.is_empty() {
            return;
        }
        for part in view.names() {
            if let Some((whole, _)) = part.rsplit_once('/')
                && let Some(asked) = wholes.get(whole)
            {
                self.asked.remove(asked);
                self.asked.insert(part);
            }
        }
    }

    /// Takes what was asked for on demand and is not there out of what is gone: a request waits for the answer to it.
    pub(super) fn take_unresolved(&self, view: &View, removed: &mut BTreeSet<Text>) -> Vec<Text> {
        if !self.has_parts_of_all() {
            return Vec::new();
        }
        let on_demand = self.asked.iter().filter(|name| !name.ends_with('/') && view.version(name).is_none());
        let unresolved: Vec<Text> = on_demand.cloned().collect();
        for name in &unresolved {
            if self.sent.as_ref().is_none_or(|sent| sent.version(name).is_none()) {
                removed.remove(name);
            }
        }
        unresolved
    }

    /// The route tables of a response that its client may not have had.
    pub(super) fn new_tables(&self, items: &[Item]) -> BTreeSet<Text> {
        let known = |name: &str| self.sent.as_ref().is_some_and(|sent| sent.version(name).is_some());
        let is_new = |name: &Text| self.asked_all || self.asked.contains(name) || !known(name);
        items.iter().flat_map(Item::versions).map(|(name, _)| name).filter(|name| is_new(name)).cloned().collect()
    }
}
