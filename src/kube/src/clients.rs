//! Clients of the connected clusters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kube::Client;
use sluice_model::Text;
use tokio::sync::watch;

/// Clients by cluster id. Clusters are added and removed while the process runs. A clone is another handle of the same
/// clients.
#[derive(Clone, Default)]
pub struct Clients(Arc<Shared>);

#[derive(Default)]
struct Shared {
    clients: watch::Sender<ClientsById>,
    /// Number of clients that have been set, which is the number of the next client.
    count: AtomicU64,
}

/// Clients by cluster id. Each has a number, so that a replaced client is distinguished from the previous one.
pub type ClientsById = BTreeMap<Text, (u64, Client)>;

impl Clients {
    /// The client of a cluster.
    #[must_use]
    pub fn get(&self, cluster: &Text) -> Option<Client> {
        self.0.clients.borrow().get(cluster).map(|(_, client)| client.clone())
    }

    /// The clusters with a client.
    #[must_use]
    pub fn ids(&self) -> Vec<Text> {
        self.0.clients.borrow().keys().cloned().collect()
    }

    /// Sets the client of a cluster.
    pub fn set(&self, cluster: Text, client: Client) {
        let number = self.0.count.fetch_add(1, Ordering::Relaxed);
        self.0.clients.send_modify(|clients| drop(clients.insert(cluster, (number, client))));
    }

    /// Removes the client of a cluster.
    pub fn remove(&self, cluster: &Text) {
        self.0.clients.send_modify(|clients| drop(clients.remove(cluster)));
    }

    /// Receives all clients, now and after each change.
    pub fn follow(&self) -> watch::Receiver<ClientsById> {
        let mut receiver = self.0.clients.subscribe();
        receiver.mark_changed();
        receiver
    }
}

impl From<BTreeMap<Text, Client>> for Clients {
    fn from(clients: BTreeMap<Text, Client>) -> Self {
        let shared = Self::default();
        for (cluster, client) in clients {
            shared.set(cluster, client);
        }
        shared
    }
}
