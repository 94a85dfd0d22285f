//! Clients of the clusters that are known.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use kube::Client;
use sluice_model::Text;

/// Clients by the ids of their clusters, which come and go. Cloning gives another handle.
#[derive(Clone, Default)]
pub struct Clients(Arc<ArcSwap<BTreeMap<Text, Client>>>);

impl Clients {
    /// The client of a cluster.
    #[must_use]
    pub fn get(&self, cluster: &Text) -> Option<Client> {
        self.0.load().get(cluster).cloned()
    }

    /// The clusters there are clients of.
    #[must_use]
    pub fn ids(&self) -> Vec<Text> {
        self.0.load().keys().cloned().collect()
    }

    /// Uses this client from now on.
    pub fn set(&self, cluster: Text, client: Client) {
        self.0.rcu(|clients| {
            let mut clients = BTreeMap::clone(clients);
            clients.insert(cluster.clone(), client.clone());
            clients
        });
    }

    /// The cluster is known no longer.
    pub fn remove(&self, cluster: &Text) {
        self.0.rcu(|clients| {
            let mut clients = BTreeMap::clone(clients);
            clients.remove(cluster);
            clients
        });
    }
}

impl From<BTreeMap<Text, Client>> for Clients {
    fn from(clients: BTreeMap<Text, Client>) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(clients)))
    }
}
