//! Creates ServiceExports in all clusters that this control plane serves (S22).

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use kube::Client;
use sluice_engine::{Engine, Published};
use sluice_graph::MissingServiceExport;
use sluice_kube::{Clients, ClientsById, ClusterTasks, EXPORTS_LOCK, Election};
use sluice_model::{ObjectKey, Text};
use sluice_tasks::restart;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::PartWriter;

/// Makes the election of a cluster, from its id and client.
type MakeElection = Box<dyn Fn(&Text, &Client) -> Election + Send + Sync>;

/// Creates ServiceExports. In each cluster one control plane does, that which holds the lock there.
pub struct ExportWriter {
    clients: Clients,
    engine: Engine,
    missing: Published<ObjectKey, MissingServiceExport>,
    election: MakeElection,
    /// Clusters in which a ServiceExport was missing.
    clusters: BTreeSet<Text>,
}

impl ExportWriter {
    /// Creates what is `missing` through the client of its cluster.
    #[must_use]
    pub fn new(
        clients: Clients,
        engine: Engine,
        missing: Published<ObjectKey, MissingServiceExport>,
        election: impl Fn(&Text, &Client) -> Election + Send + Sync + 'static,
    ) -> Self {
        Self { clients, engine, missing, election: Box::new(election), clusters: BTreeSet::new() }
    }

    /// Runs until `stop` is cancelled or the engine stops.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut feed = self.engine.feed().only(&self.missing);
        let mut clients = self.clients.follow();
        let mut writers = ClusterTasks::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                batch = feed.next() => match batch {
                    Some(batch) => {
                        let missing = batch.events(&self.missing).filter(|event| event.new.is_some());
                        self.clusters.extend(missing.map(|event| event.key.cluster.clone()));
                    }
                    None => break,
                },
                changed = clients.changed() => if changed.is_err() { break },
            }
            let known = clients.borrow_and_update().clone();
            let wanted = self.wanted(&known);
            writers.end_outdated(&wanted).await;
            writers.start_missing(&wanted, &stop, |id, client, stop| vec![self.start(id, client, stop.clone())]);
        }
        writers.end().await;
    }

    /// The clients of the clusters to write to.
    fn wanted<'a>(&self, known: &'a ClientsById) -> BTreeMap<&'a Text, &'a (u64, Client)> {
        known.iter().filter(|(id, _)| self.clusters.contains(*id)).collect()
    }

    /// Starts the writer of one cluster.
    fn start(&self, id: &Text, client: &Client, stop: CancellationToken) -> JoinHandle<()> {
        let election = (self.election)(id, client);
        let (id, client) = (id.clone(), client.clone());
        let (engine, missing) = (self.engine.clone(), self.missing.clone());
        let write = move || {
            let (election, stop) = (election.clone(), stop.clone());
            let (id, client, engine, missing) = (id.clone(), client.clone(), engine.clone(), missing.clone());
            async move {
                let write = move |term| {
                    let id = id.clone();
                    let writer = PartWriter::new(client.clone(), engine.feed(), missing.clone());
                    writer.only(move |key| key.cluster == id).run(term)
                };
                election.lead(EXPORTS_LOCK, stop, write).await;
                Ok(())
            }
            .boxed()
        };
        tokio::spawn(async move { restart("ServiceExports of a cluster", write).await })
    }
}
