//! Virtual hosts of route tables as separate resources (VHDS).
//!
//! A client may subscribe to route tables and receives their virtual hosts. Envoy does not do so: its first request has no
//! names, which means all tables; later requests name a host on demand, `TABLE/DOMAIN`, and the downstream request waits for
//! the response. Envoy ignores hosts of tables that it does not have. So the hosts of a table are sent after the table is
//! acknowledged.

use std::collections::BTreeSet;

use sluice_model::{ResourceType, Text};

use super::Session;
use super::subscription::Subscription;
use crate::name_list::{HeldList, NameList};
use crate::request::StreamError;
use crate::store::{ResponseItem, TypeSnapshot};

/// Maximum number of names that a client requested on demand and that are not answered, or of tables whose hosts are not sent.
const MAX_PENDING_VIRTUAL_HOSTS: usize = 10_000;

impl Session {
    /// Whether the client subscribes to the hosts of all tables; it does so when it has its first table.
    pub(super) fn has_all_hosts(&self) -> bool {
        self.subscriptions.get(ResourceType::VirtualHost).is_some_and(Subscription::has_all_virtual_hosts)
    }

    /// Sends the hosts of the tables that the client has acknowledged.
    pub(super) fn send_virtual_hosts_of_new_tables(&mut self) {
        let tables = std::mem::take(&mut self.new_tables);
        if let Some(hosts) = self.subscriptions.get_mut(ResourceType::VirtualHost) {
            // This is the name of a host without a domain. If the table has no hosts, its removal reports that to Envoy.
            hosts.requested.extend(tables.iter().map(|table| Text::from(format!("{table}/"))));
        }
    }
}

impl Subscription {
    /// Whether a delta client can subscribe to all resources of the type.
    pub(super) fn allows_wildcard(&self) -> bool {
        self.kind.is_wildcard() || self.kind == ResourceType::VirtualHost
    }

    /// Whether the client subscribes to the hosts of all tables. It then names only hosts that it waits for.
    pub(super) fn has_all_virtual_hosts(&self) -> bool {
        self.kind == ResourceType::VirtualHost && self.wildcard
    }

    /// Checks the limit for a client that does not read responses.
    pub(super) fn check_pending_virtual_hosts(&self) -> Result<(), StreamError> {
        if self.requested.len() > MAX_PENDING_VIRTUAL_HOSTS {
            return Err(StreamError::Exhausted(format!(
                "more than {MAX_PENDING_VIRTUAL_HOSTS} requested virtual hosts wait for a response"
            )));
        }
        Ok(())
    }

    /// Whether a client that reconnects holds hosts of tables that it does not name: it subscribed to all tables.
    pub(super) fn held_all_virtual_hosts(&self, subscribe: &NameList, holds: &HeldList) -> bool {
        if self.kind != ResourceType::VirtualHost {
            return false;
        }
        let named: BTreeSet<&str> = subscribe.iter().collect();
        let is_named =
            |name: &str| named.contains(name) || name.rsplit_once('/').is_some_and(|(table, _)| named.contains(table));
        holds.names().iter().any(|name| !is_named(name))
    }

    /// The names of the resources of the tables or collections that the client names, and of single ones, in order.
    pub(super) fn named_in(&self, view: &TypeSnapshot) -> BTreeSet<Text> {
        let below = self.names.iter().flat_map(|prefix| view.names_below(prefix));
        let single = self.names.iter().filter(|name| view.version(name).is_some()).cloned();
        below.chain(single).collect()
    }

    /// Replaces requested tables and collections by their resources. One without resources stays, and the response reports that it has
    /// none. Returns all of them: the client holds none of their resources yet.
    pub(super) fn resolve_prefixes(&mut self, view: &TypeSnapshot) -> BTreeSet<Text> {
        let missing: Vec<Text> = self.requested.iter().filter(|name| view.version(name).is_none()).cloned().collect();
        let resolve = |requested: Text| {
            let prefix = Text::from(requested.strip_suffix('/').unwrap_or(&requested));
            let resources = view.names_below(&prefix);
            if !resources.is_empty() {
                self.requested.remove(&requested);
                self.requested.extend(resources);
            }
            prefix
        };
        missing.into_iter().map(resolve).collect()
    }

    /// The hosts that were requested on demand and do not exist. They are reported as unresolved and not as removed, because a
    /// downstream request waits for the response.
    pub(super) fn take_unresolved(&self, view: &TypeSnapshot, removed: &mut BTreeSet<Text>) -> Vec<Text> {
        if !self.has_all_virtual_hosts() {
            return Vec::new();
        }
        let on_demand = self.requested.iter().filter(|name| !name.ends_with('/') && view.version(name).is_none());
        let unresolved: Vec<Text> = on_demand.cloned().collect();
        for name in &unresolved {
            if self.sent.as_ref().is_none_or(|sent| sent.version(name).is_none()) {
                removed.remove(name);
            }
        }
        unresolved
    }

    /// The route tables of a response that the client may not have had.
    pub(super) fn new_tables(&self, items: &[ResponseItem]) -> BTreeSet<Text> {
        let known = |name: &str| self.sent.as_ref().is_some_and(|sent| sent.version(name).is_some());
        let is_new = |name: &Text| self.resend_all || self.requested.contains(name) || !known(name);
        items
            .iter()
            .flat_map(ResponseItem::versions)
            .map(|(name, _)| name)
            .filter(|name| is_new(name))
            .cloned()
            .collect()
    }
}
