//! What connected proxies subscribe to.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_model::{ProxyKey, ResourceType};

use crate::connection::Connection;
use crate::status::StatusReader;

/// The connected proxies, and what they subscribe to when it is asked.
pub struct Subscriptions {
    /// The last stream of each proxy.
    connections: BTreeMap<ProxyKey, Arc<Connection>>,
}

impl StatusReader {
    /// The subscriptions of the proxies that are connected now.
    #[must_use]
    pub fn subscriptions(&self) -> Subscriptions {
        let connections = self.server.connections().into_values();
        Subscriptions { connections: connections.map(|connection| (connection.key.clone(), connection)).collect() }
    }
}

impl Subscriptions {
    /// The proxies, in the order of their keys.
    pub fn proxies(&self) -> impl Iterator<Item = &ProxyKey> {
        self.connections.keys()
    }

    /// Whether a proxy subscribes to a resource.
    #[must_use]
    pub fn wants(&self, proxy: &ProxyKey, kind: ResourceType, name: &str) -> bool {
        self.connections.get(proxy).is_some_and(|connection| connection.session().subscribes_to(kind, name))
    }

    /// Whether a proxy subscribes to all resources of a type.
    #[must_use]
    pub fn wants_all(&self, proxy: &ProxyKey, kind: ResourceType) -> bool {
        self.connections.get(proxy).is_some_and(|connection| connection.session().subscribes_to_all(kind))
    }

    /// Whether a proxy subscribes to resources of a type.
    #[must_use]
    pub fn has_type(&self, proxy: &ProxyKey, kind: ResourceType) -> bool {
        self.connections.get(proxy).is_some_and(|connection| connection.session().kinds().contains(kind))
    }
}
