//! Clients of the clusters that are known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kube::Client;
use sluice_model::Text;
use tokio::sync::watch;

/// Clients by the ids of their clusters, which come and go. Cloning gives another handle.
#[derive(Clone, Default)]
pub struct Clients(Arc<Shared>);

#[derive(Default)]
struct Shared {
    known: watch::Sender<ClientsById>,
    /// How many have been set.
    count: AtomicU64,
}

/// Each with a number that no other client of its cluster has.
pub type ClientsById = BTreeMap<Text, (u64, Client)>;

impl Clients {
    /// The client of a cluster.
    #[must_use]
    pub fn get(&self, cluster: &Text) -> Option<Client> {
        self.0.known.borrow().get(cluster).map(|(_, client)| client.clone())
    }

    /// The clusters there are clients of.
    #[must_use]
    pub fn ids(&self) -> Vec<Text> {
        self.0.known.borrow().keys().cloned().collect()
    }

    /// Uses this client from now on.
    pub fn set(&self, cluster: Text, client: Client) {
        let number = self.0.count.fetch_add(1, Ordering::Relaxed);
        self.0.known.send_modify(|known| drop(known.insert(cluster, (number, client))));
    }

    /// The cluster is known no longer.
    pub fn remove(&self, cluster: &Text) {
        self.0.known.send_modify(|known| drop(known.remove(cluster)));
    }

    /// Tells of all of them, now and whenever one comes or goes.
    pub fn follow(&self) -> watch::Receiver<ClientsById> {
        let mut told = self.0.known.subscribe();
        told.mark_changed();
        told
    }
}

impl From<BTreeMap<Text, Client>> for Clients {
    fn from(clients: BTreeMap<Text, Client>) -> Self {
        let known = Self::default();
        for (cluster, client) in clients {
            known.set(cluster, client);
        }
        known
    }
}
