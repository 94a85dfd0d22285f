//! Remote clusters whose kubeconfigs are in Secrets (S15), or in files (S16).
//!
//! A Secret of the control plane's namespace with the label `istio/multiCluster=true` contains kubeconfigs by cluster id. A
//! [`ClusterReader`] reads each cluster, see [`KubeSource`]. When a kubeconfig changes, a second reader starts beside the
//! first, and replaces it when all kinds are synced. So new credentials never remove objects. An invalid kubeconfig is a
//! reject of its Secret, and the reader with the previous kubeconfig continues. A file is treated as a Secret whose name is its
//! path; invalid ones are logged.

mod directory;
mod reader;
mod secrets;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use reader::{ClusterReader, Event, ReaderOptions};
use secrets::{ClusterSecret, ClusterSecrets, PublishedSecrets};
use sluice_engine::Input;
use sluice_graph::RejectKey;
use sluice_kube::{Api, ByKey, Clients, KubeOptions, ListWatch, Resource};
use sluice_model::{Kind, ObjectKey, Redacted, Reject, RejectCause, Severity, Text};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{KubeSource, WatchStates, keep_watching};
use crate::{Cluster, Sink};
pub use state::{ClusterInfo, ClusterMetrics, RemoteStates, SyncStatus};

/// Options of remote clusters.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// The control plane's own cluster. Remote clusters have the same settings.
    pub cluster: Cluster,
    /// Clusters that `--remoteConfigDir` declares. Secrets must not declare them as well.
    pub configured: BTreeSet<Text>,
    /// Namespace of the control plane and of the Secrets.
    pub system_namespace: Text,
    /// The only namespace to read objects of; `None` is all.
    pub namespace: Option<Text>,
    /// `PILOT_REMOTE_CLUSTER_TIMEOUT`: longest wait for a cluster before proxies are served; zero is unlimited.
    pub timeout: Duration,
    /// `PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS`: unsafe features that kubeconfigs may use.
    pub allowed: BTreeSet<String>,
    /// Limits of lists and watches.
    pub kube: KubeOptions,
    /// States of the watched collections.
    pub watch_states: WatchStates,
}

/// Where kubeconfigs of remote clusters are.
pub enum KubeconfigSource {
    /// In Secrets of the cluster of a client.
    Secrets(Client),
    /// In the files of a directory (`PILOT_MULTICLUSTER_KUBECONFIG_PATH`).
    Directory(PathBuf),
}

/// Reads the clusters that Secrets or files declare.
pub struct RemoteClusters {
    options: RemoteOptions,
    /// Their kubeconfigs are in files.
    are_in_files: bool,
    sink: Arc<dyn Sink>,
    rejects: Input<RejectKey, Vec<Reject>>,
    clients: Clients,
    states: RemoteStates,
    metrics: ClusterMetrics,
    clusters: BTreeMap<Text, RemoteCluster>,
    /// The rejects that are written to `rejects`, by Secret.
    written_rejects: BTreeMap<Text, Vec<Reject>>,
    last_reader_id: u64,
    event_sender: mpsc::UnboundedSender<Event>,
    events: mpsc::UnboundedReceiver<Event>,
    /// Each cluster that Secrets declare is synced or has timed out.
    settled: watch::Sender<bool>,
}

/// A cluster that is read.
struct RemoteCluster {
    /// The Secret with its kubeconfig.
    secret: Text,
    reader: ClusterReader,
    /// The reader with a new kubeconfig, which replaces `reader` when it is synced.
    replacement: Option<ClusterReader>,
}

/// A cluster to read.
struct WantedCluster {
    /// The Secret with its kubeconfig.
    secret: Text,
    kubeconfig: Redacted,
    client: Client,
}

impl RemoteClusters {
    /// Writes objects to `sink`, rejects of Secrets to `rejects` and clients to `clients`.
    #[must_use]
    pub fn new(
        options: RemoteOptions,
        sink: Arc<dyn Sink>,
        rejects: Input<RejectKey, Vec<Reject>>,
        clients: Clients,
        states: RemoteStates,
        metrics: ClusterMetrics,
    ) -> Self {
        let (event_sender, events) = mpsc::unbounded_channel();
        Self {
            options,
            are_in_files: false,
            sink,
            rejects,
            clients,
            states,
            metrics,
            clusters: BTreeMap::new(),
            written_rejects: BTreeMap::new(),
            last_reader_id: 0,
            event_sender,
            events,
            settled: watch::channel(false).0,
        }
    }

    /// Waits until each cluster that Secrets declare is synced and its objects are applied, or has timed out. Waits forever
    /// if `run` has ended.
    pub fn settled(&self) -> impl Future<Output = ()> + use<> {
        let (mut settled, sink) = (self.settled.subscribe(), self.sink.clone());
        async move {
            if settled.wait_for(|settled| *settled).await.is_err() {
                std::future::pending::<()>().await;
            }
            let (done, is_done) = oneshot::channel();
            sink.settle(done);
            let _ = is_done.await;
        }
    }

    /// Follows the kubeconfigs, and reads their clusters until `stop` is cancelled.
    pub async fn run(mut self, source: KubeconfigSource, stop: CancellationToken) {
        let (sender, mut published) = watch::channel(None);
        let mut watching = JoinSet::new();
        let mut followed = None;
        match source {
            KubeconfigSource::Secrets(client) => {
                let Self { options, .. } = &self;
                let api = Api::new(client, options.cluster.id.clone(), options.kube, options.watch_states.clone());
                let receiver = ByKey::new(PublishedSecrets::new(sender, self.metrics.clone()));
                let resource = Resource::cluster_secrets(&options.system_namespace);
                let list_watch = ListWatch::new(api, resource, options.kube.backoff(), receiver);
                watching.spawn(keep_watching("watch of remote clusters".to_owned(), list_watch));
            }
            KubeconfigSource::Directory(root) => {
                self.are_in_files = true;
                match directory::follow(&root, sender) {
                    Ok(guard) => followed = Some(guard),
                    // The task `remote clusters` fails with it.
                    Err(error) => {
                        return error!(root = %root.display(), %error, "kubeconfigs of remote clusters cannot be followed");
                    }
                }
            }
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                changed = published.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let secrets: ClusterSecrets = published.borrow_and_update().clone();
                    if let Some(secrets) = secrets {
                        self.apply_secrets(&secrets, &stop).await;
                    }
                }
                Some(event) = self.events.recv() => match event {
                    Event::Failed(_) if stop.is_cancelled() => break,
                    // The task `remote clusters` fails with it.
                    Event::Failed(_) => return error!("reading a remote cluster ended before it was stopped"),
                    Event::Synced(_) | Event::TimedOut(_) => self.handle_event(event).await,
                },
            }
            self.publish_states();
        }
        watching.shutdown().await;
        // Its thread may be reading files.
        tokio::task::spawn_blocking(move || drop(followed));
        for cluster in std::mem::take(&mut self.clusters).into_values() {
            cluster.reader.stop().await;
        }
    }

    /// Starts, replaces and stops readers according to the Secrets.
    async fn apply_secrets(&mut self, secrets: &BTreeMap<Text, ClusterSecret>, stop: &CancellationToken) {
        let (mut wanted, declared) = self.wanted_clusters(secrets).await;
        let removed: Vec<Text> = self.clusters.keys().filter(|id| !declared.contains(*id)).cloned().collect();
        for id in removed {
            self.remove(&id).await;
        }
        while let Some((id, WantedCluster { secret, kubeconfig, client })) = wanted.pop_first() {
            self.last_reader_id += 1;
            let reader_id = self.last_reader_id;
            let options = |is_replacement| ReaderOptions {
                id: reader_id,
                kubeconfig: kubeconfig.clone(),
                source: self.source(&id, client.clone()),
                sink: self.sink.clone(),
                is_replacement,
                timeout: self.options.timeout,
                events: self.event_sender.clone(),
                stop: stop.child_token(),
            };
            let Some(cluster) = self.clusters.get(&id) else {
                info!(cluster = %id, secret = %secret, "reading a remote cluster");
                let reader = ClusterReader::start(options(false));
                self.clients.set(id.clone(), client.clone());
                self.clusters.insert(id, RemoteCluster { secret, reader, replacement: None });
                continue;
            };
            let is_current = cluster.reader.kubeconfig == kubeconfig;
            let is_next = cluster.replacement.as_ref().is_some_and(|next| next.kubeconfig == kubeconfig);
            let replacement = (!is_current && !is_next).then(|| {
                info!(cluster = %id, secret = %secret, "reading a remote cluster with its new kubeconfig");
                ClusterReader::start(options(true))
            });
            let Some(cluster) = self.clusters.get_mut(&id) else { continue };
            cluster.secret = secret;
            if is_next {
                continue;
            }
            // If the kubeconfig of the current reader is back, `replacement` is `None`.
            if let Some(outdated) = std::mem::replace(&mut cluster.replacement, replacement) {
                outdated.stop().await;
            }
        }
    }

    async fn remove(&mut self, id: &Text) {
        let Some(cluster) = self.clusters.remove(id) else { return };
        info!(cluster = %id, secret = %cluster.secret, "remote cluster removed: no kubeconfig declares it");
        self.clients.remove(id);
        if let Some(replacement) = cluster.replacement {
            replacement.stop().await;
        }
        cluster.reader.stop_and_delete().await;
    }

    async fn handle_event(&mut self, event: Event) {
        let (Event::Synced(reader_id) | Event::TimedOut(reader_id) | Event::Failed(reader_id)) = event;
        let is_sender = |reader: &ClusterReader| reader.id == reader_id;
        let sender = self
            .clusters
            .iter_mut()
            .find(|(_, cluster)| is_sender(&cluster.reader) || cluster.replacement.as_ref().is_some_and(is_sender));
        // The reader may have been stopped meanwhile.
        let Some((id, cluster)) = sender else { return };
        let id = id.clone();
        let is_replacement = !is_sender(&cluster.reader);
        let current_is_synced = cluster.reader.is_synced;
        let reader = if is_replacement { cluster.replacement.as_mut() } else { Some(&mut cluster.reader) };
        let Some(reader) = reader else { return };
        let replaces = match event {
            Event::Synced(_) => {
                reader.is_synced = true;
                info!(cluster = %id, "remote cluster is synced");
                is_replacement
            }
            Event::TimedOut(_) if reader.is_synced => false,
            Event::Failed(_) => false,
            Event::TimedOut(_) => {
                reader.is_timed_out = true;
                let (not_synced, seconds) = (reader.not_synced(), self.options.timeout.as_secs_f64());
                error!(cluster = %id, ?not_synced, seconds, "remote cluster is not synced in time, proxies are served without it");
                self.metrics.count_timeout(&id);
                // A synced reader with the previous kubeconfig continues.
                is_replacement && !current_is_synced
            }
        };
        if replaces && let Some(replacement) = cluster.replacement.take() {
            self.clients.set(id, replacement.client.clone());
            let previous = std::mem::replace(&mut cluster.reader, replacement).stop().await;
            cluster.reader.replace(previous);
        }
    }

    /// The clusters to read, and the ids of all clusters that Secrets declare, with a valid kubeconfig or not.
    async fn wanted_clusters(
        &mut self,
        secrets: &BTreeMap<Text, ClusterSecret>,
    ) -> (BTreeMap<Text, WantedCluster>, BTreeSet<Text>) {
        // Of two Secrets that declare one cluster, the older one is used.
        let mut ordered: Vec<_> = secrets.iter().collect();
        ordered.sort_by_key(|(name, secret)| (secret.created.clone(), (*name).clone()));
        let (mut wanted, mut declared) = (BTreeMap::<Text, WantedCluster>::new(), BTreeSet::new());
        let mut rejects = BTreeMap::<Text, Vec<Reject>>::new();
        for (name, secret) in ordered {
            for (id, kubeconfig) in &secret.kubeconfigs {
                let mut reject = |path: &str, reason: String, severity| {
                    let dot = if path.is_empty() { "" } else { "." };
                    let reject = Reject {
                        kind: Kind::Secret,
                        object: self.key(name),
                        field_path: format!("data[{id}]{dot}{path}").into(),
                        reason: reason.into(),
                        severity,
                        cause: RejectCause::Other,
                    };
                    rejects.entry(name.clone()).or_default().push(reject);
                };
                if *id == self.options.cluster.id {
                    let reason = "is the control plane's own cluster: its kubeconfig is not used".to_owned();
                    reject("", reason, Severity::Warning);
                    continue;
                }
                if self.options.configured.contains(id) {
                    reject("", "is a cluster that --remoteConfigDir declares".to_owned(), Severity::Error);
                    continue;
                }
                if let Some(other) = wanted.get(id) {
                    reject(
                        "",
                        format!(
                            "is a cluster that {} {} already declares",
                            if self.are_in_files { "file" } else { "Secret" },
                            other.secret
                        ),
                        Severity::Error,
                    );
                    continue;
                }
                declared.insert(id.clone());
                let Some(kubeconfig) = kubeconfig else {
                    reject("", "is not base64".to_owned(), Severity::Error);
                    continue;
                };
                // An existing client is reused, because a new one may run a credential plugin.
                let existing = self.clusters.get(id).and_then(|cluster| cluster.client_of(kubeconfig));
                let client = match existing {
                    Some(client) => Ok(client),
                    None => connect(kubeconfig, &self.options.allowed).await,
                };
                match client {
                    Ok(client) => {
                        let (secret, kubeconfig) = (name.clone(), kubeconfig.clone());
                        wanted.insert(id.clone(), WantedCluster { secret, kubeconfig, client });
                    }
                    Err(faults) => {
                        faults.into_iter().for_each(|(path, reason)| reject(&path, reason, Severity::Error));
                    }
                }
            }
        }
        self.write_rejects(rejects);
        (wanted, declared)
    }

    /// Writes changed rejects, and deletes those that no longer apply.
    fn write_rejects(&mut self, rejects: BTreeMap<Text, Vec<Reject>>) {
        for name in self.written_rejects.keys().filter(|name| !rejects.contains_key(*name)) {
            self.rejects.delete(RejectKey { kind: Kind::Secret, object: self.key(name) });
        }
        for (name, rejects) in &rejects {
            if self.written_rejects.get(name) == Some(rejects) {
                continue;
            }
            for Reject { field_path: field, reason, .. } in rejects {
                if self.are_in_files {
                    warn!(file = %name, %field, %reason, "kubeconfig of a remote cluster is invalid");
                } else {
                    warn!(secret = %name, %field, %reason, "Secret of a remote cluster is invalid");
                }
            }
            if self.are_in_files {
                // Rejects are those of objects.
                continue;
            }
            self.rejects.set(RejectKey { kind: Kind::Secret, object: self.key(name) }, rejects.clone());
        }
        self.written_rejects = rejects;
    }

    fn key(&self, secret: &Text) -> ObjectKey {
        ObjectKey::new(self.options.cluster.id.clone(), self.options.system_namespace.clone(), secret.clone())
    }

    fn source(&self, id: &Text, client: Client) -> KubeSource {
        KubeSource {
            client,
            cluster: Cluster { id: id.clone(), is_remote: true, ..self.options.cluster.clone() },
            system_namespace: self.options.system_namespace.clone(),
            namespace: self.options.namespace.clone(),
            options: self.options.kube,
            states: self.options.watch_states.clone(),
        }
    }

    /// Updates the sync states, the metrics and `settled`.
    fn publish_states(&self) {
        let info = |(id, cluster): (&Text, &RemoteCluster)| {
            let newest = cluster.replacement.as_ref().unwrap_or(&cluster.reader);
            let sync_status = match newest {
                ClusterReader { is_synced: true, .. } => SyncStatus::Synced,
                ClusterReader { is_timed_out: true, .. } => SyncStatus::Timeout,
                _ => SyncStatus::Syncing,
            };
            let secret_name = match self.are_in_files {
                true => cluster.secret.clone(),
                false => format!("{}/{}", self.options.system_namespace, cluster.secret).into(),
            };
            (id.clone(), ClusterInfo { id: id.clone(), secret_name, sync_status })
        };
        let infos: BTreeMap<_, _> = self.clusters.iter().map(info).collect();
        self.metrics.set_clusters(&infos, self.options.configured.len());
        self.states.set(infos);
        let is_settled = |cluster: &RemoteCluster| cluster.reader.is_synced || cluster.reader.is_timed_out;
        if self.clusters.values().all(is_settled) {
            self.settled.send_replace(true);
        }
    }
}

impl RemoteCluster {
    /// The existing client of a kubeconfig.
    fn client_of(&self, kubeconfig: &Redacted) -> Option<Client> {
        let mut readers = [Some(&self.reader), self.replacement.as_ref()].into_iter().flatten();
        readers.find(|reader| reader.kubeconfig == *kubeconfig).map(|reader| reader.client.clone())
    }
}

/// A client with the kubeconfig of a Secret, or its faults: field path and reason. No reason quotes the kubeconfig.
async fn connect(kubeconfig: &Redacted, allowed: &BTreeSet<String>) -> Result<Client, Vec<(String, String)>> {
    let fault = |reason: &str| vec![(String::new(), reason.to_owned())];
    let config = sluice_kube::untrusted_config(&kubeconfig.0, allowed)
        .await
        .map_err(|faults| faults.into_iter().map(|fault| (fault.path, fault.reason)).collect::<Vec<_>>())?;
    // This runs the credential plugin, if the kubeconfig may have one.
    tokio::task::block_in_place(|| sluice_kube::client(config))
        .map_err(|_| fault("has an invalid certificate, key, root certificate or credential"))
}
