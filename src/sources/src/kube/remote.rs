//! Remote clusters whose kubeconfigs are in Secrets (S15).
//!
//! A Secret of the control plane's namespace with the label `istio/multiCluster=true` has a kubeconfig for each cluster, by
//! its id. A registry reads the cluster, see [`KubeSource`]. When a kubeconfig changes, a second registry is built beside
//! the first and replaces it once it has read everything, so that new credentials never remove objects. An invalid
//! kubeconfig is a finding of its Secret, and the registry of the previous kubeconfig continues.

mod registry;
mod secrets;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use registry::{Event, Registry, Start};
use secrets::{ClusterSecrets, SecretReader};
use sluice_engine::Input;
use sluice_graph::RejectKey;
use sluice_kube::{Api, Backoff, Clients, KubeOptions, ListWatch, Resource};
use sluice_model::{Kind, ObjectKey, Redacted, Reject, Severity, Text};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::KubeSource;
use crate::{Cluster, Sink};
pub use state::{ClusterInfo, ClusterMetrics, RemoteStates, SyncStatus};

/// Options of remote clusters.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Settings that all clusters share with the own one.
    pub cluster: Cluster,
    /// Clusters that flags name: no Secret may name them as well.
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
}

/// Reads the clusters that Secrets name.
pub struct RemoteClusters {
    options: RemoteOptions,
    sink: Arc<dyn Sink>,
    rejects: Input<RejectKey, Vec<Reject>>,
    clients: Clients,
    states: RemoteStates,
    metrics: ClusterMetrics,
    running: BTreeMap<Text, Running>,
    /// Secrets with findings.
    found: BTreeMap<Text, Vec<Reject>>,
    numbers: u64,
    tell: mpsc::UnboundedSender<Event>,
    events: mpsc::UnboundedReceiver<Event>,
    /// Every cluster that Secrets name has been read or has timed out.
    settled: watch::Sender<bool>,
}

/// A cluster that is read.
struct Running {
    /// Its Secret.
    secret: Text,
    registry: Registry,
    /// The registry that will replace it.
    next: Option<Registry>,
}

/// A cluster named by Secrets: the Secret that is used, and a client of its kubeconfig.
struct WantedCluster {
    secret: Text,
    kubeconfig: Redacted,
    client: Client,
}

impl RemoteClusters {
    /// Writes objects to `sink`, findings to `rejects` and clients to `clients`.
    #[must_use]
    pub fn new(
        options: RemoteOptions,
        sink: Arc<dyn Sink>,
        rejects: Input<RejectKey, Vec<Reject>>,
        clients: Clients,
        states: RemoteStates,
        metrics: ClusterMetrics,
    ) -> Self {
        let (tell, events) = mpsc::unbounded_channel();
        Self {
            options,
            sink,
            rejects,
            clients,
            states,
            metrics,
            running: BTreeMap::new(),
            found: BTreeMap::new(),
            numbers: 0,
            tell,
            events,
            settled: watch::channel(false).0,
        }
    }

    /// Waits until every cluster that Secrets name has been read and its objects are in force, or has timed out; forever if
    /// `run` has ended.
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

    /// Follows the Secrets that `client` reads until `stop` is cancelled.
    pub async fn run(mut self, client: Client, stop: CancellationToken) {
        let api = Api::new(client, self.options.kube);
        let (tell, mut secrets) = watch::channel(None);
        let reader = SecretReader::new(tell, self.metrics.clone());
        let backoff = Backoff::new(self.options.kube.first_retry, self.options.kube.last_retry);
        let resource = Resource::cluster_secrets(&self.options.system_namespace);
        let mut watching = JoinSet::new();
        watching.spawn(async move { drop(ListWatch::new(api, resource, backoff, reader).run().await) });
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                changed = secrets.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let told: ClusterSecrets = secrets.borrow_and_update().clone();
                    if let Some(told) = told {
                        self.follow(&told, &stop).await;
                    }
                }
                Some(event) = self.events.recv() => self.take(event).await,
            }
            self.show();
        }
        watching.shutdown().await;
        for running in std::mem::take(&mut self.running).into_values() {
            running.registry.stop().await;
        }
    }

    /// Starts, replaces and stops registries according to the Secrets.
    async fn follow(&mut self, secrets: &BTreeMap<Text, secrets::ClusterSecret>, stop: &CancellationToken) {
        let (mut wanted, mentioned) = self.read(secrets).await;
        let unwanted: Vec<Text> = self.running.keys().filter(|id| !mentioned.contains(*id)).cloned().collect();
        for id in unwanted {
            self.remove(&id).await;
        }
        while let Some((id, WantedCluster { secret, kubeconfig, client })) = wanted.pop_first() {
            self.numbers += 1;
            let number = self.numbers;
            let start = |holds| Start {
                number,
                kubeconfig: kubeconfig.clone(),
                source: self.source(&id, client.clone()),
                sink: self.sink.clone(),
                holds,
                timeout: self.options.timeout,
                tell: self.tell.clone(),
                stop: stop.child_token(),
            };
            let Some(running) = self.running.get(&id) else {
                info!(cluster = %id, secret = %secret, "reading a remote cluster");
                let registry = Registry::start(start(false));
                self.clients.set(id.clone(), client.clone());
                self.running.insert(id, Running { secret, registry, next: None });
                continue;
            };
            let is_current = running.registry.kubeconfig == kubeconfig;
            let is_next = running.next.as_ref().is_some_and(|next| next.kubeconfig == kubeconfig);
            let next = (!is_current && !is_next).then(|| {
                info!(cluster = %id, secret = %secret, "reading a remote cluster by its new kubeconfig");
                Registry::start(start(true))
            });
            let Some(running) = self.running.get_mut(&id) else { continue };
            running.secret = secret;
            if is_next {
                continue;
            }
            // The kubeconfig of the current registry is back: no replacement is needed.
            if let Some(given_up) = std::mem::replace(&mut running.next, next) {
                given_up.stop().await;
            }
        }
    }

    async fn remove(&mut self, id: &Text) {
        let Some(running) = self.running.remove(id) else { return };
        info!(cluster = %id, secret = %running.secret, "remote cluster removed: no Secret names it");
        self.clients.remove(id);
        if let Some(next) = running.next {
            next.stop().await;
        }
        running.registry.retract().await;
    }

    async fn take(&mut self, event: Event) {
        let (Event::Synced(number) | Event::Late(number)) = event;
        let is_it = |registry: &Registry| registry.number == number;
        let found = self.running.iter_mut().find(|(_, it)| is_it(&it.registry) || it.next.as_ref().is_some_and(is_it));
        // The registry may have been stopped meanwhile.
        let Some((id, running)) = found else { return };
        let id = id.clone();
        let is_next = !is_it(&running.registry);
        let before_synced = running.registry.is_synced;
        let registry = if is_next { running.next.as_mut() } else { Some(&mut running.registry) };
        let Some(registry) = registry else { return };
        let replaces = match event {
            Event::Synced(_) => {
                registry.is_synced = true;
                info!(cluster = %id, "remote cluster has been read");
                is_next
            }
            Event::Late(_) if registry.is_synced => false,
            Event::Late(_) => {
                registry.is_late = true;
                let (waiting, seconds) = (registry.waiting(), self.options.timeout.as_secs_f64());
                error!(cluster = %id, ?waiting, seconds, "reading a remote cluster timed out, proxies are served without it");
                self.metrics.count_timeout(&id);
                // A complete registry of the previous kubeconfig stays in use.
                is_next && !before_synced
            }
        };
        if replaces && let Some(next) = running.next.take() {
            self.clients.set(id, next.client.clone());
            let before = std::mem::replace(&mut running.registry, next).stop().await;
            running.registry.replace(before);
        }
    }

    /// The clusters to read, and all clusters that Secrets name, valid or not.
    async fn read(
        &mut self,
        secrets: &BTreeMap<Text, secrets::ClusterSecret>,
    ) -> (BTreeMap<Text, WantedCluster>, BTreeSet<Text>) {
        // Of two Secrets that name one cluster, the older one is used.
        let mut ordered: Vec<_> = secrets.iter().collect();
        ordered.sort_by_key(|(name, secret)| (secret.created.clone(), (*name).clone()));
        let (mut wanted, mut mentioned) = (BTreeMap::<Text, WantedCluster>::new(), BTreeSet::new());
        let mut found = BTreeMap::<Text, Vec<Reject>>::new();
        for (name, secret) in ordered {
            for (id, kubeconfig) in &secret.kubeconfigs {
                let mut note = |path: &str, reason: String, severity| {
                    let dot = if path.is_empty() { "" } else { "." };
                    let reject = Reject {
                        kind: Kind::Secret,
                        object: self.key(name),
                        field_path: format!("data[{id}]{dot}{path}").into(),
                        reason: reason.into(),
                        severity,
                    };
                    found.entry(name.clone()).or_default().push(reject);
                };
                if *id == self.options.cluster.id {
                    let reason = "is the control plane's own cluster, which is not read by this".to_owned();
                    note("", reason, Severity::Warning);
                    continue;
                }
                if self.options.configured.contains(id) {
                    note("", "is a cluster that --remoteConfigDir names".to_owned(), Severity::Error);
                    continue;
                }
                if let Some(other) = wanted.get(id) {
                    note("", format!("is a cluster that Secret {} already names", other.secret), Severity::Error);
                    continue;
                }
                mentioned.insert(id.clone());
                let Some(kubeconfig) = kubeconfig else {
                    note("", "is no base64".to_owned(), Severity::Error);
                    continue;
                };
                // An existing client is reused: making one can run a program.
                let known = self.running.get(id).and_then(|running| running.client_of(kubeconfig));
                let client = match known {
                    Some(client) => Ok(client),
                    None => connect(kubeconfig, &self.options.allowed).await,
                };
                match client {
                    Ok(client) => {
                        let (secret, kubeconfig) = (name.clone(), kubeconfig.clone());
                        wanted.insert(id.clone(), WantedCluster { secret, kubeconfig, client });
                    }
                    Err(faults) => faults.into_iter().for_each(|(path, why)| note(&path, why, Severity::Error)),
                }
            }
        }
        self.note(found);
        (wanted, mentioned)
    }

    /// Writes new findings, and retracts those that no longer apply.
    fn note(&mut self, found: BTreeMap<Text, Vec<Reject>>) {
        for name in self.found.keys().filter(|name| !found.contains_key(*name)) {
            self.rejects.delete(RejectKey { kind: Kind::Secret, object: self.key(name) });
        }
        for (name, rejects) in &found {
            if self.found.get(name) == Some(rejects) {
                continue;
            }
            for Reject { field_path: field, reason, .. } in rejects {
                warn!(secret = %name, %field, %reason, "Secret of a remote cluster is invalid");
            }
            self.rejects.set(RejectKey { kind: Kind::Secret, object: self.key(name) }, rejects.clone());
        }
        self.found = found;
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
        }
    }

    /// Updates the sync states and metrics.
    fn show(&self) {
        let info = |(id, running): (&Text, &Running)| {
            let newest = running.next.as_ref().unwrap_or(&running.registry);
            let sync_status = match newest {
                Registry { is_synced: true, .. } => SyncStatus::Synced,
                Registry { is_late: true, .. } => SyncStatus::Timeout,
                _ => SyncStatus::Syncing,
            };
            let secret_name = format!("{}/{}", self.options.system_namespace, running.secret).into();
            (id.clone(), ClusterInfo { id: id.clone(), secret_name, sync_status })
        };
        let all: BTreeMap<_, _> = self.running.iter().map(info).collect();
        self.metrics.show(&all, self.options.configured.len());
        self.states.set(all);
        let is_settled = |running: &Running| running.registry.is_synced || running.registry.is_late;
        if self.running.values().all(is_settled) {
            self.settled.send_replace(true);
        }
    }
}

impl Running {
    /// The existing client of a kubeconfig.
    fn client_of(&self, kubeconfig: &Redacted) -> Option<Client> {
        let registries = [Some(&self.registry), self.next.as_ref()].into_iter().flatten();
        registries.filter(|it| it.kubeconfig == *kubeconfig).map(|it| it.client.clone()).next()
    }
}

/// A client by the kubeconfig of a Secret, or its faults by field path. No text quotes the kubeconfig.
async fn connect(kubeconfig: &Redacted, allowed: &BTreeSet<String>) -> Result<Client, Vec<(String, String)>> {
    let value = sluice_parse::parse_kubeconfig(&kubeconfig.0, allowed)
        .map_err(|faults| faults.into_iter().map(|fault| (fault.path, fault.reason)).collect::<Vec<_>>())?
        .into_value();
    let fail = |what: &str| vec![(String::new(), what.to_owned())];
    let read: Kubeconfig =
        serde_json::from_value(value).map_err(|_| fail("is no kubeconfig that clients understand"))?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    let config = config.map_err(|_| fail("names a server or roots that clients cannot use"))?;
    // This runs a program if the kubeconfig may.
    tokio::task::block_in_place(|| sluice_kube::client(config))
        .map_err(|_| fail("has a certificate, a key, roots or credentials that no client can be made of"))
}
