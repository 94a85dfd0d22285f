//! Starts the sources of objects and waits until they have been read.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kube::Client;
use sluice_admin::ReconciliationTracker;
use sluice_config::ClusterSource;
use sluice_deployments::GatewayDeployer;
use sluice_engine::Published;
use sluice_jwks::JwksFetcher;
use sluice_kube::{
    ADDRESSES_LOCK, INGRESS_LOCK, KubeOptions, Lock, STATUS_LOCK, Term, UNTAINT_LOCK, next_batch_or_due,
};
use sluice_mcp::ServedConfiguration;
use sluice_sources::configuration::ConfigurationSources;
use sluice_sources::files::FileSource;
use sluice_sources::kube::{
    ExportWriter, KubeSource, KubeconfigSource, PartUpdate, PartWriter, RemoteClusters, SecretReviewer,
};
use sluice_sources::{Cluster, CurrentMesh, InputSink, MeshLayers, MeshOverride, Reporter, Sink};
use sluice_watch::FollowGuard;
use tokio::sync::watch;
use tracing::{info, warn};

use super::recording::OpenedSource;
use super::{App, AppError, options};

/// Time limit of the wait for keys of token issuers, before proxies are served.
const TOKEN_KEYS_TIMEOUT: Duration = Duration::from_secs(10);

impl App {
    /// Starts fetching keys of token issuers. The receiver is `true` after every wanted key set has been fetched or has failed.
    pub(super) fn fetch_token_keys(&mut self) -> Result<watch::Receiver<bool>, AppError> {
        if options::replays(&self.config) {
            // The recording has them.
            return Ok(watch::channel(true).1);
        }
        let handles = &self.graph.handles;
        let fetcher = JwksFetcher::new(
            self.graph.engine.clone(),
            handles.wanted_jwks.clone(),
            handles.inputs.jwks.clone(),
            &options::jwks_options(&self.config),
            self.graph.metrics.jwks.clone(),
        );
        let fetcher = fetcher.map_err(AppError::runtime("set up the JWKS client"))?;
        let tried = fetcher.tried();
        self.tasks.spawn_until_stop("token key fetcher", fetcher.run());
        Ok(tried)
    }

    /// Starts every source. Returns the condition that remote clusters have been read.
    pub(super) async fn read_sources(&mut self, source: OpenedSource) -> Result<BoxFuture<'static, ()>, AppError> {
        let mesh_files = match source {
            OpenedSource::Clusters(mesh_files) => mesh_files,
            OpenedSource::Recording { path, recording } => return self.read_recording(path, *recording).await,
        };
        let (sink, mesh_layers) = self.start_sink()?;
        self.serve_configuration(mesh_layers.clone());
        mesh_files.load(&*sink);
        let local = options::cluster(&self.config, &self.config.identity.cluster, false);
        let configuration = ConfigurationSources::new(sink.clone(), local, self.admin.reporter.clone());
        for (cluster, source) in options::cluster_sources(&self.config) {
            let sink = if cluster.is_remote { sink.clone() } else { configuration.local() };
            match source {
                ClusterSource::Directory(root) => self.read_directory(cluster, &root, &sink).await?,
                ClusterSource::Kubernetes(kubeconfig) => {
                    let client = sluice_kube::connect(kubeconfig.as_deref()).await.map_err(AppError::Kubernetes)?;
                    self.read_cluster(cluster, client, &sink);
                }
                // It has been opened as the only source.
                ClusterSource::Recording(_) => {}
            }
        }
        self.follow_injection(mesh_layers)?;
        self.review_secret_readers();
        let remote_clusters = self.read_remote_clusters(&sink).await?;
        // After the directories: with --strictConfig, an error in a directory is reported first.
        self.follow(mesh_files.follow(sink, self.admin.reporter.clone())?);
        self.read_configuration(&configuration).await?;
        Ok(remote_clusters)
    }

    /// Waits until all configuration has been read. `None` if the process is stopped first.
    pub(super) async fn wait_for_configuration(
        &mut self,
        remote_clusters: BoxFuture<'static, ()>,
        mut token_keys: watch::Receiver<bool>,
    ) -> Result<Option<()>, AppError> {
        if self.tasks.wait_for(self.graph.synced()).await?.is_none() {
            return Ok(None);
        }
        self.pending.configuration.take();
        // A remote cluster that cannot be reached delays this by its timeout at most.
        if self.tasks.wait_for(remote_clusters).await?.is_none() {
            return Ok(None);
        }
        self.pending.remote_clusters.take();
        // Proxies may hold keys from before a restart, which must not be replaced by no keys.
        let tried = tokio::time::timeout(TOKEN_KEYS_TIMEOUT, token_keys.wait_for(|tried| *tried));
        match self.tasks.wait_for(async { tried.await.is_ok() }).await? {
            Some(true) => {}
            Some(false) => warn!(
                timeout_seconds = TOKEN_KEYS_TIMEOUT.as_secs(),
                "keys of some token issuers have not been fetched: tokens of these issuers are rejected until then"
            ),
            None => return Ok(None),
        }
        self.pending.token_keys.take();
        Ok(Some(()))
    }

    /// Starts the sink of all sources. Also returns the layers of the mesh config.
    fn start_sink(&mut self) -> Result<(Arc<dyn Sink>, watch::Receiver<MeshLayers>), AppError> {
        let config = &self.config;
        let clusters = options::cluster_sources(config);
        let kinds = clusters.iter().map(|(cluster, _)| (cluster.id.clone(), options::awaited_kinds(cluster))).collect();
        let shared = config.sources.shared_mesh_config.as_ref();
        let shared = shared.map(|name| options::system_object(&config.identity, name));
        let mesh = MeshOverride::new(options::mesh_config_map(&config.identity), shared)
            .with_environment(config.sources.variable);
        let layers = mesh.layers();
        let shown = layers.clone();
        // It is set once, because the sink starts once.
        let _ = self.admin.mesh_config.set(Box::new(move || sluice_inject::mesh_config(&shown.borrow())));
        let mesh = CurrentMesh::from(mesh);
        let _ = self.admin.current_mesh.set(mesh.clone());
        let (engine, inputs) = (self.graph.engine.clone(), self.graph.handles.inputs.clone());
        let originals = self.admin.originals.clone();
        let sink = InputSink::start(engine, inputs, kinds, mesh, originals, self.graph.metrics.sources.clone());
        let mut sink = sink.map_err(AppError::runtime("start the thread of the sources"))?;
        if let Some(end) = sink.end() {
            self.tasks.watch_thread(end);
        }
        Ok((Arc::new(sink), layers))
    }

    /// Serves the configuration to other control planes.
    fn serve_configuration(&mut self, mesh_layers: watch::Receiver<MeshLayers>) {
        let configuration = ServedConfiguration::new(
            self.graph.engine.clone(),
            &self.graph.handles,
            self.admin.originals.clone(),
            mesh_layers,
            self.config.identity.cluster.clone(),
            self.config.features.configuration_auth,
        );
        let followed = configuration.clone();
        self.tasks.spawn_restarted_until_stop("served configuration", move || followed.follow());
        self.discovery.set_configuration(Arc::new(configuration));
    }

    pub(super) async fn read_directory(
        &mut self,
        cluster: Cluster,
        root: &Path,
        sink: &Arc<dyn Sink>,
    ) -> Result<(), AppError> {
        let (root, reporter, sink) = (root.to_owned(), self.admin.reporter.clone(), sink.clone());
        let strict = self.config.sources.strict;
        let reading = tokio::task::spawn_blocking(move || follow_directory(cluster, &root, reporter, sink, strict));
        let guard = reading.await.map_err(AppError::runtime("read a directory"))??;
        self.follow(guard);
        Ok(())
    }

    /// Keeps a thread that follows files running until the process stops.
    pub(super) fn follow(&mut self, mut guard: FollowGuard) {
        if let Some(end) = guard.end() {
            self.tasks.watch_thread(end);
        }
        self.followed.push(guard);
    }

    fn read_cluster(&mut self, cluster: Cluster, client: Client, sink: &Arc<dyn Sink>) {
        if !cluster.is_remote {
            self.local_client = Some(client.clone());
            if options::writes_addresses(&self.config) {
                let updates = self.graph.handles.address_updates.clone();
                self.write_parts("address writer", ADDRESSES_LOCK, client.clone(), updates);
            }
            let updates = self.graph.handles.ingress_status_updates.clone();
            self.write_parts("ingress status writer", INGRESS_LOCK, client.clone(), updates);
            self.write_conditions(client.clone());
            self.write_gateway_api(client.clone());
            if options::writes_pool_services(&self.config) {
                let lock = Lock::inference_pools(&self.config.identity.revision);
                let services = self.graph.handles.shadow_services.clone();
                self.write_parts("InferencePool Service writer", lock, client.clone(), services);
            }
            self.deploy_gateways(client.clone());
            if options::untaints_nodes(&self.config) {
                let removals = self.graph.handles.taint_removals.clone();
                self.write_parts("taint writer", UNTAINT_LOCK, client.clone(), removals);
            }
            self.export_services();
            self.register_workloads(client.clone());
        }
        self.clients.set(cluster.id.clone(), client.clone());
        let source = KubeSource {
            client,
            cluster,
            system_namespace: self.config.identity.namespace.clone(),
            namespace: self.config.sources.watch_namespace.clone(),
            options: KubeOptions::default(),
            states: self.graph.metrics.watches.clone(),
        };
        self.tasks.spawn("Kubernetes source", source.run(sink.clone(), self.tasks.stop()));
    }

    /// Creates ServiceExports in all clusters that this control plane serves.
    fn export_services(&mut self) {
        if !options::exports_services(&self.config) {
            return;
        }
        let election = options::elections(&self.config);
        let missing = self.graph.handles.missing_service_exports.clone();
        let writer = ExportWriter::new(self.clients.clone(), self.graph.engine.clone(), missing, election);
        self.tasks.spawn("ServiceExport writer", writer.run(self.tasks.stop()));
    }

    /// Writes parts of objects, on the replica that holds a lock.
    fn write_parts<U: PartUpdate>(
        &mut self,
        task: &'static str,
        lock: Lock,
        client: Client,
        updates: Published<U::Key, U>,
    ) {
        self.write_parts_when(task, lock, client, updates, false);
    }

    /// As [`Self::write_parts`]. With `waits`, the lock is taken when there is a first part to write.
    fn write_parts_when<U: PartUpdate>(
        &mut self,
        task: &'static str,
        lock: Lock,
        client: Client,
        updates: Published<U::Key, U>,
        waits: bool,
    ) {
        let election = options::election(&self.config, Some(client.clone()));
        let (engine, stop) = (self.graph.engine.clone(), self.tasks.stop());
        self.tasks.spawn_restarted(task, move || {
            let (client, engine, updates) = (client.clone(), engine.clone(), updates.clone());
            let (election, lock, stop) = (election.clone(), lock.clone(), stop.clone());
            async move {
                let mut feed = waits.then(|| engine.feed().only(&updates));
                while let Some(awaited) = &mut feed {
                    match next_batch_or_due(awaited, None, &stop).await {
                        Some(Some(batch)) if batch.events(&updates).next().is_some() => feed = None,
                        Some(_) => {}
                        None => return,
                    }
                }
                let write = move |term| PartWriter::new(client.clone(), engine.feed(), updates.clone()).run(term);
                election.lead(lock, stop, write).await;
            }
        });
    }

    /// Writes conditions. Without ambient mode, the lock is taken when the first object needs one.
    fn write_conditions(&mut self, client: Client) {
        let waits = !(self.config.features.ambient && options::writes_conditions(&self.config));
        let updates = self.graph.handles.condition_updates.clone();
        self.write_parts_when("condition writer", STATUS_LOCK, client, updates, waits);
    }

    /// Logs watched collections for which the API server sends nothing.
    pub(super) fn log_stale_watches(&mut self) {
        if self.local_client.is_none() {
            return;
        }
        let states = self.graph.metrics.watches.clone();
        self.tasks.spawn_restarted_until_stop("ages of watches", move || {
            let states = states.clone();
            async move { states.log_stale().await }
        });
    }

    /// Follows the objects that ask for the condition `Reconciled`.
    pub(super) fn track_reconciliations(&mut self) {
        if self.local_client.is_none() {
            return;
        }
        let (tracker, stop) = (Arc::new(ReconciliationTracker::new(self.admin.clone())), self.tasks.stop());
        self.tasks.spawn_restarted("condition tracker", move || tracker.clone().run(stop.clone()));
    }

    /// Writes the statuses of the Gateway API and creates its classes, on the replica of the revision that holds a lock.
    fn write_gateway_api(&mut self, client: Client) {
        if !options::writes_gateway_api(&self.config) {
            return;
        }
        let lock = Lock::gateway_statuses(&self.config.identity.revision);
        let handles = &self.graph.handles;
        let updates = (handles.status_updates.clone(), handles.missing_gateway_classes.clone());
        self.write_both("Gateway API writer", lock, client, updates);
    }

    /// As [`Self::write_parts`], for two collections under one lock.
    fn write_both<A: PartUpdate, B: PartUpdate>(
        &mut self,
        task: &'static str,
        lock: Lock,
        client: Client,
        (first, second): (Published<A::Key, A>, Published<B::Key, B>),
    ) {
        let election = options::election(&self.config, Some(client.clone()));
        let (engine, stop) = (self.graph.engine.clone(), self.tasks.stop());
        self.tasks.spawn_restarted(task, move || {
            let (client, engine, first, second) = (client.clone(), engine.clone(), first.clone(), second.clone());
            let write = move |term: Term| {
                let first = PartWriter::new(client.clone(), engine.feed(), first.clone()).run(term.clone());
                let second = PartWriter::new(client.clone(), engine.feed(), second.clone()).run(term);
                async {
                    futures::join!(first, second);
                }
            };
            election.clone().lead(lock.clone(), stop.clone(), write)
        });
    }

    /// Deploys the proxies of Gateways, on the replica of the revision that holds a lock. Their templates are part of the
    /// configuration of the injector.
    fn deploy_gateways(&mut self, client: Client) {
        if !options::deploys_gateways(&self.config) {
            return;
        }
        let Some(injection) = self.injection.clone() else {
            info!(
                "no proxies are deployed for Gateways: the injector is disabled, whose configuration has their templates"
            );
            return;
        };
        let election = options::election(&self.config, Some(client.clone()));
        let lock = Lock::gateway_deployments(&self.config.identity.revision);
        let settings = options::deployer_settings(&self.config, self.graph.metrics.watches.clone());
        let (engine, handles, stop) = (self.graph.engine.clone(), self.graph.handles.clone(), self.tasks.stop());
        self.tasks.spawn_restarted("deployment controller", move || {
            let (client, engine, handles, injection, settings) =
                (client.clone(), engine.clone(), handles.clone(), injection.clone(), settings.clone());
            let deploy = move |term: Term| {
                let (engine, handles) = (engine.clone(), handles.clone());
                GatewayDeployer::new(client.clone(), engine, handles, injection.clone(), settings.clone()).run(term)
            };
            election.clone().lead(lock.clone(), stop.clone(), deploy)
        });
    }

    /// Starts the SubjectAccessReviews of the service accounts that may read Secrets.
    fn review_secret_readers(&mut self) {
        if self.local_client.is_none() {
            return;
        }
        let handles = &self.graph.handles;
        let reviewer = SecretReviewer::new(
            self.clients.clone(),
            self.graph.engine.feed(),
            handles.wanted_secret_reviews.clone(),
            handles.inputs.secret_reviews.clone(),
        );
        self.tasks.spawn("Secret reviewer", reviewer.run(self.tasks.stop()));
    }

    /// Reads the remote clusters that Secrets of the local cluster, or files, configure. Returns the condition that they have been read.
    async fn read_remote_clusters(&mut self, sink: &Arc<dyn Sink>) -> Result<BoxFuture<'static, ()>, AppError> {
        let Some(client) = self.local_client.clone() else { return Ok(Box::pin(std::future::ready(()))) };
        let remotes = RemoteClusters::new(
            options::remote_options(&self.config, self.graph.metrics.watches.clone()),
            sink.clone(),
            self.graph.handles.inputs.component_rejects.clone(),
            self.clients.clone(),
            self.admin.remotes.clone(),
            self.graph.metrics.clusters.clone(),
        );
        let settled = remotes.settled();
        let features = &self.config.features;
        let source = match &features.kubeconfig_directory {
            Some(directory) => KubeconfigSource::Directory(directory.clone()),
            None if features.local_cluster_secrets => {
                KubeconfigSource::Secrets(sluice_kube::connect(None).await.map_err(AppError::Kubernetes)?)
            }
            None => KubeconfigSource::Secrets(client),
        };
        self.tasks.spawn("remote clusters", remotes.run(source, self.tasks.stop()));
        Ok(Box::pin(settled))
    }
}

/// Reads a directory and follows it until the guard is dropped.
fn follow_directory(
    cluster: Cluster,
    root: &Path,
    reporter: Reporter,
    sink: Arc<dyn Sink>,
    strict: bool,
) -> Result<FollowGuard, AppError> {
    let mut source = FileSource::open(cluster, root, reporter)?;
    source.load(&*sink, strict)?;
    Ok(source.follow(sink)?)
}
