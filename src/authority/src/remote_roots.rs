//! Roots for the namespaces and the webhook configurations of remote clusters that this control plane serves (P11, W09).
//!
//! A cluster without its own control plane has no other writer of roots. Annotation
//! `topology.istio.io/controlPlaneClusters` of its system namespace names the cluster whose control plane serves it.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::Client;
use sluice_engine::{Engine, Published};
use sluice_kube::{Clients, ClientsById, ClusterTasks, Election, Lock, ROOTS_LOCK};
use sluice_model::{Namespace, ObjectKey, Text};
use sluice_tasks::restart;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::AuthorityMetrics;
use crate::cluster_trust_bundle::TrustBundleWriter;
use crate::config_maps::BundleWriter;
use crate::server::TrustBundle;
use crate::webhook_configurations::{WebhookConfigurationWriter, WebhookKind};

/// What to write, and where.
#[derive(Clone, Debug)]
pub struct RootsOptions {
    /// Id of the cluster of this control plane.
    pub own: Text,
    /// Namespace of control planes, in every cluster.
    pub system_namespace: Text,
    /// The objects that contain the roots for workloads; `None` writes none.
    pub roots: Option<RootObjects>,
    /// The roots are written into webhook configurations for injection.
    pub webhooks: bool,
    /// Name of the control plane's pod, for leader election; `None` disables the election.
    pub pod: Option<Text>,
    /// Revision of the control plane.
    pub revision: Text,
}

/// The objects that contain the roots for workloads.
#[derive(Clone, Debug)]
pub struct RootObjects {
    /// ConfigMap of the roots.
    pub roots: String,
    /// ConfigMap of the revocation lists, if there are any.
    pub revoked: Option<String>,
    /// The roots go into a ClusterTrustBundle instead.
    pub cluster_trust_bundle: bool,
}

/// Writes roots into the remote clusters that request it.
pub struct RemoteRoots {
    options: RootsOptions,
    clients: Clients,
    engine: Engine,
    namespaces: Published<ObjectKey, Namespace>,
    /// The namespaces that roots are written to.
    discovered: Published<ObjectKey, Namespace>,
    bundle: watch::Receiver<TrustBundle>,
    metrics: AuthorityMetrics,
    /// Clusters whose annotation names this cluster.
    requesting: BTreeSet<Text>,
}

impl RemoteRoots {
    /// Writes the roots of `bundle` to the second of the collections of namespaces. The first one has all, of which the system
    /// namespaces say who serves their clusters.
    #[must_use]
    pub fn new(
        options: RootsOptions,
        clients: Clients,
        engine: Engine,
        (namespaces, discovered): (Published<ObjectKey, Namespace>, Published<ObjectKey, Namespace>),
        bundle: watch::Receiver<TrustBundle>,
        metrics: AuthorityMetrics,
    ) -> Self {
        Self { options, clients, engine, namespaces, discovered, bundle, metrics, requesting: BTreeSet::new() }
    }

    /// Runs until `stop` is cancelled or the engine stops.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut feed = self.engine.feed().only(&self.namespaces);
        let mut clients = self.clients.follow();
        let mut writers = ClusterTasks::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                batch = feed.next() => match batch {
                    Some(batch) => for event in batch.events(&self.namespaces) {
                        if event.key.name != self.options.system_namespace {
                            continue;
                        }
                        match event.new.is_some_and(|namespace| namespace.requests_control_plane_of(&self.options.own)) {
                            true => self.requesting.insert(event.key.cluster.clone()),
                            false => self.requesting.remove(&event.key.cluster),
                        };
                    },
                    None => break,
                },
                changed = clients.changed() => if changed.is_err() { break },
            }
            let known = clients.borrow_and_update().clone();
            let wanted = self.wanted(&known);
            writers.end_outdated(&wanted).await;
            writers.start_missing(&wanted, &stop, |id, client, stop| self.start(id, client, stop));
        }
        writers.end().await;
    }

    /// The clients of the clusters to write to.
    fn wanted<'a>(&self, known: &'a ClientsById) -> BTreeMap<&'a Text, &'a (u64, Client)> {
        let is_wanted = |id: &Text| *id != self.options.own && self.requesting.contains(id);
        known.iter().filter(|(id, _)| is_wanted(id)).collect()
    }

    /// Starts the writers of one cluster.
    fn start(&self, id: &Text, client: &Client, stop: &CancellationToken) -> Vec<JoinHandle<()>> {
        info!(target: "ca", cluster = %id, "writing roots into a remote cluster");
        let mut tasks = Vec::new();
        if let Some(objects) = self.options.roots.clone() {
            let write = self.writing(objects, id.clone(), client.clone(), stop.clone());
            tasks.push(tokio::spawn(async move { restart("roots of a remote cluster", write).await }));
        }
        if self.options.webhooks {
            let write = self.writing_webhooks(id.clone(), client.clone(), stop.clone());
            tasks.push(tokio::spawn(async move { restart("webhooks of a remote cluster", write).await }));
        }
        tasks
    }

    /// The election of the writer of one cluster.
    fn election(&self, client: &Client) -> Election {
        let election_client = self.options.pod.is_some().then(|| client.clone());
        let pod = self.options.pod.as_deref().unwrap_or_default();
        let election =
            Election::new(election_client, self.options.system_namespace.clone(), pod, &self.options.revision);
        election.of_remote_cluster()
    }

    /// Makes the task that writes the roots into the webhook configurations of one cluster.
    fn writing_webhooks(
        &self,
        id: Text,
        client: Client,
        stop: CancellationToken,
    ) -> impl FnMut() -> BoxFuture<'static, anyhow::Result<()>> + use<> {
        let control_plane = (id, self.options.system_namespace.clone(), self.options.revision.clone());
        let (bundle, election) = (self.bundle.clone(), self.election(&client));
        let lock = Lock::webhooks(&self.options.revision);
        // As in the reference, validation is configured in the own cluster only.
        let kinds = vec![WebhookKind::Mutating];
        let writer = WebhookConfigurationWriter::new(client, control_plane, kinds, bundle, &self.metrics);
        move || {
            let (writer, election, lock, stop) = (writer.clone(), election.clone(), lock.clone(), stop.clone());
            async move {
                election.lead(lock, stop, move |term| writer.clone().run(term)).await;
                Ok(())
            }
            .boxed()
        }
    }

    /// Makes the task that writes the roots of one cluster.
    fn writing(
        &self,
        objects: RootObjects,
        id: Text,
        client: Client,
        stop: CancellationToken,
    ) -> impl FnMut() -> BoxFuture<'static, anyhow::Result<()>> + use<> {
        let (engine, namespaces, bundle) = (self.engine.clone(), self.discovered.clone(), self.bundle.clone());
        let election = self.election(&client);
        move || {
            let (election, stop) = (election.clone(), stop.clone());
            let (client, bundle, objects) = (client.clone(), bundle.clone(), objects.clone());
            let (id, engine, namespaces) = (id.clone(), engine.clone(), namespaces.clone());
            async move {
                if objects.cluster_trust_bundle {
                    let write = |term| TrustBundleWriter::new(client.clone(), bundle.clone()).run(term);
                    election.lead(ROOTS_LOCK, stop, write).await;
                    return Ok(());
                }
                let write = |term| {
                    let names = (objects.roots.as_str(), objects.revoked.as_deref());
                    let (feed, namespaces) = (engine.feed(), namespaces.clone());
                    BundleWriter::new(client.clone(), id.clone(), None, feed, namespaces, bundle.clone(), names)
                        .run(term)
                };
                election.lead(ROOTS_LOCK, stop, write).await;
                Ok(())
            }
            .boxed()
        }
    }
}
