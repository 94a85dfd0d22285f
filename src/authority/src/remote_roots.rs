//! Roots for the namespaces of remote clusters that this control plane serves (P11).
//!
//! A cluster without its own control plane has no other writer of roots. Annotation
//! `topology.istio.io/controlPlaneClusters` of its system namespace names the cluster whose control plane serves it.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use sluice_engine::{Engine, Published};
use sluice_kube::{Clients, Election, ROOTS_LEASE, TRUST_BUNDLE_LEASE};
use sluice_model::{Namespace, ObjectKey, Text};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::cluster_trust_bundle::TrustBundleWriter;
use crate::config_maps::BundleWriter;
use crate::server::TrustBundle;

const SERVED_BY: &str = "topology.istio.io/controlPlaneClusters";

/// What to write, and where.
#[derive(Clone, Debug)]
pub struct RootsOptions {
    /// Id of the cluster of this control plane.
    pub own: Text,
    /// Namespace of control planes, in every cluster.
    pub system_namespace: Text,
    /// ConfigMap of the roots.
    pub roots: String,
    /// ConfigMap of the revocation lists, if there are any.
    pub revoked: Option<String>,
    /// The roots go into a ClusterTrustBundle instead.
    pub cluster_trust_bundle: bool,
    /// Name of the control plane's pod, for leader election; `None` disables the election.
    pub pod: Option<Text>,
}

/// Writes roots into the remote clusters that request it.
pub struct RemoteRoots {
    options: RootsOptions,
    clients: Clients,
    engine: Engine,
    namespaces: Published<ObjectKey, Namespace>,
    bundle: watch::Receiver<TrustBundle>,
    /// Clusters whose annotation names this cluster.
    requesting: BTreeSet<Text>,
    writers: BTreeMap<Text, ClusterWriter>,
}

/// A running writer for one cluster.
struct ClusterWriter {
    /// Version of its client.
    number: u64,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RemoteRoots {
    /// Writes the roots of `bundle`.
    #[must_use]
    pub fn new(
        options: RootsOptions,
        clients: Clients,
        engine: Engine,
        namespaces: Published<ObjectKey, Namespace>,
        bundle: watch::Receiver<TrustBundle>,
    ) -> Self {
        Self { options, clients, engine, namespaces, bundle, requesting: BTreeSet::new(), writers: BTreeMap::new() }
    }

    /// Runs until `stop` is cancelled or the engine stops.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut feed = self.engine.feed().only(&self.namespaces);
        let mut clients = self.clients.follow();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                batch = feed.next() => match batch {
                    Some(batch) => for event in batch.events(&self.namespaces) {
                        if event.key.name != self.options.system_namespace {
                            continue;
                        }
                        match event.new.is_some_and(|namespace| self.is_requested_by(&namespace)) {
                            true => self.requesting.insert(event.key.cluster.clone()),
                            false => self.requesting.remove(&event.key.cluster),
                        };
                    },
                    None => break,
                },
                changed = clients.changed() => if changed.is_err() { break },
            }
            let known = clients.borrow_and_update().clone();
            self.reconcile(&known, &stop).await;
        }
        for writer in std::mem::take(&mut self.writers).into_values() {
            writer.end().await;
        }
    }

    /// Whether a system namespace names the cluster of this control plane.
    fn is_requested_by(&self, namespace: &Namespace) -> bool {
        let named = namespace.annotations.get(SERVED_BY).map(|names| names.to_string()).unwrap_or_default();
        named.split(',').any(|name| matches!(name.trim(), "*") || *name.trim() == *self.options.own)
    }

    async fn reconcile(&mut self, known: &BTreeMap<Text, (u64, Client)>, stop: &CancellationToken) {
        let is_wanted = |id: &Text| *id != self.options.own && self.requesting.contains(id);
        let wanted: BTreeMap<&Text, &(u64, Client)> = known.iter().filter(|(id, _)| is_wanted(id)).collect();
        let is_outdated =
            |id: &Text, writer: &ClusterWriter| wanted.get(id).is_none_or(|(number, _)| *number != writer.number);
        let outdated: Vec<Text> =
            self.writers.iter().filter(|(id, writer)| is_outdated(id, writer)).map(|(id, _)| id.clone()).collect();
        for id in outdated {
            if let Some(writer) = self.writers.remove(&id) {
                writer.end().await;
            }
        }
        for (id, (number, client)) in wanted {
            if !self.writers.contains_key(id) {
                info!(target: "ca", cluster = %id, "writing roots into the namespaces of a remote cluster");
                let stop = stop.child_token();
                let task = tokio::spawn(self.write(id.clone(), client.clone(), stop.clone()));
                self.writers.insert(id.clone(), ClusterWriter { number: *number, stop, task });
            }
        }
    }

    fn write(&self, id: Text, client: Client, stop: CancellationToken) -> impl Future<Output = ()> + use<> {
        let options = self.options.clone();
        let (engine, namespaces, bundle) = (self.engine.clone(), self.namespaces.clone(), self.bundle.clone());
        async move {
            let pod = options.pod.as_deref().unwrap_or_default();
            let election_client = options.pod.is_some().then(|| client.clone());
            let election = Election::new(election_client, options.system_namespace.clone(), pod);
            if options.cluster_trust_bundle {
                let write = |term| TrustBundleWriter::new(client.clone(), bundle.clone()).run(term);
                return election.lead(TRUST_BUNDLE_LEASE, stop, write).await;
            }
            let write = |term| {
                let names = (options.roots.as_str(), options.revoked.as_deref());
                let (feed, namespaces) = (engine.feed(), namespaces.clone());
                BundleWriter::new(client.clone(), id.clone(), None, feed, namespaces, bundle.clone(), names).run(term)
            };
            election.lead(ROOTS_LEASE, stop, write).await;
        }
    }
}

impl ClusterWriter {
    async fn end(self) {
        self.stop.cancel();
        // A panic has been logged; another writer can start now.
        let _ = self.task.await;
    }
}
