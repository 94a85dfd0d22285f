//! The connected proxies by the layers that they see: which of them a change concerns.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use sluice_model::{Layer, ProxyKey, ResourceType, Text};

use crate::connection::Connection;
use crate::status::{StatusReader, short_id};

/// Names of resources by type and layer.
pub type ChangedResources = BTreeMap<(ResourceType, Layer), BTreeSet<Text>>;

/// The connected proxies by the layers that they see.
pub struct Audience {
    connections: Vec<Arc<Connection>>,
    /// Indices of the connections.
    by_layer: HashMap<(ResourceType, Layer), Vec<usize>>,
}

impl StatusReader {
    /// The proxies that are connected now.
    #[must_use]
    pub fn audience(&self) -> Audience {
        self.audience_of(|_| true)
    }

    /// Those of the connected proxies that the filter accepts.
    #[must_use]
    pub fn audience_of(&self, filter: impl Fn(&ProxyKey) -> bool) -> Audience {
        let connections = self.server.connections().into_values().filter(|connection| filter(&connection.key));
        let connections: Vec<_> = connections.collect();
        let mut by_layer: HashMap<_, Vec<usize>> = HashMap::new();
        for (at, connection) in connections.iter().enumerate() {
            let snapshot = self.server.store().snapshot(&connection.key, []);
            let Some(scope) = snapshot.scope() else { continue };
            for (kind, layers) in &scope.scope().layers {
                for layer in layers.iter() {
                    by_layer.entry((*kind, layer.clone())).or_default().push(at);
                }
            }
        }
        Audience { connections, by_layer }
    }
}

impl Audience {
    /// The proxies that subscribe to one of these resources, as `pod.namespace`.
    #[must_use]
    pub fn of(&self, changed: &ChangedResources) -> BTreeSet<Text> {
        let mut concerned = BTreeSet::new();
        for (layer, names) in changed {
            for at in self.by_layer.get(layer).into_iter().flatten() {
                if concerned.contains(at) {
                    continue;
                }
                let session = self.connections[*at].session();
                if names.iter().any(|name| session.subscribes_to(layer.0, name)) {
                    concerned.insert(*at);
                }
            }
        }
        concerned.into_iter().map(|at| short_id(&self.connections[at].key.0)).collect()
    }
}
