//! Builds every component in order, runs them, and stops them. Only this module refers to all components.

mod engine;
mod error;
mod open_files;
mod options;
mod ports;
mod security;
mod serve;
mod sources;
mod tasks;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use kube::Client;
use sluice_admin::{AdminState, PagesOverXds, Readiness, ReadinessGuard};
use sluice_config::Config;
use sluice_kube::Clients;
use sluice_listen::{ListenMetrics, Listener, serve_http};
use sluice_sources::kube::RemoteStates;
use sluice_sources::{MeshFiles, Reporter};
use sluice_telemetry::LogControl;
use sluice_watch::FollowGuard;
use sluice_xds::{Admission, DiscoveryServer, EngineProxies, StatusReader};
use sluice_xds_protocol::Store;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use engine::GraphEngine;
use ports::Listeners;
use tasks::Tasks;

pub(crate) use error::AppError;

/// Time limit for tasks to end, in addition to `--shutdownDuration`.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// Runs until `stop` is cancelled or a component fails.
///
/// # Errors
/// The process cannot start or continue; see [`AppError::exit_code`].
pub(crate) async fn run(config: Config, log: LogControl, stop: CancellationToken) -> Result<(), AppError> {
    for warning in &config.warnings {
        warn!("{warning}");
    }
    for notice in &config.notices {
        info!("{notice}");
    }
    // Ports are bound first, so that a port in use is reported before all objects have been read.
    let listen_metrics = ListenMetrics::default();
    let listeners = Listeners::bind(&config, &listen_metrics).await?;
    let mesh_files = MeshFiles::open(&config.sources.mesh_config, &config.sources.networks)?;
    let mut app = App::new(config, log, stop, &listen_metrics);
    let (grpc, secure_grpc) = app.serve_admin(listeners);
    app.start(mesh_files, grpc, secure_grpc).await?;
    app.shut_down().await;
    Ok(())
}

/// The components of a running control plane.
struct App {
    config: Config,
    graph: GraphEngine,
    store: Arc<Store>,
    discovery: Arc<DiscoveryServer>,
    admin: Arc<AdminState>,
    /// Stops the HTTP ports, after `/ready` reports the shutdown.
    admin_stop: CancellationToken,
    tasks: Tasks,
    /// Clients of clusters that are read through the Kubernetes API.
    clients: Clients,
    /// The client of the local cluster.
    local_client: Option<Client>,
    /// Guards of the files and directories that are followed.
    followed: Vec<FollowGuard>,
    /// Components that are not ready yet.
    pending: Pending,
}

/// Components that `/ready` waits for. A guard is dropped once its component is ready.
struct Pending {
    configuration: Option<ReadinessGuard>,
    remote_clusters: Option<ReadinessGuard>,
    token_keys: Option<ReadinessGuard>,
    authority: Option<ReadinessGuard>,
    first_epoch: Option<ReadinessGuard>,
}

impl Pending {
    fn new(readiness: &Arc<Readiness>) -> Self {
        let guard = |reason| Some(readiness.guard(reason));
        Self {
            configuration: guard("configuration has not been read yet"),
            remote_clusters: guard("remote clusters have not been read yet"),
            token_keys: guard("keys of token issuers have not been fetched yet"),
            authority: guard("the certificate authority has not been loaded yet"),
            first_epoch: guard("the first epoch is not complete yet"),
        }
    }
}

impl App {
    /// Starts the engine, and builds the components that serve, without content.
    fn new(config: Config, log: LogControl, stop: CancellationToken, listen_metrics: &ListenMetrics) -> Self {
        sluice_crypto::collect_entropy();
        let mut graph = GraphEngine::start(&config);
        listen_metrics.register(&mut graph.metrics.registry);
        let store = Arc::new(Store::default());
        let inputs = &graph.handles.inputs;
        let proxies = Arc::new(EngineProxies::new(
            inputs.proxies.clone(),
            inputs.secret_clients.clone(),
            config.identity.cluster_aliases.clone(),
            config.features.ambient,
            sluice_graph::client_profile,
        ));
        let features = &config.features;
        let admission = Admission::new(features.push_throttle, features.max_streams_a_second);
        let discovery = DiscoveryServer::with_limits(
            store.clone(),
            proxies,
            graph.metrics.xds.clone(),
            features.xds_identity_check,
            admission,
            options::proxy_limits(&config),
        );
        let readiness = Arc::new(Readiness::default());
        let pending = Pending::new(&readiness);
        let admin = Arc::new(AdminState {
            engine: graph.engine.clone(),
            handles: graph.handles.clone(),
            status: StatusReader::new(discovery.clone()),
            readiness,
            metrics: Mutex::new(std::mem::take(&mut graph.metrics.registry)),
            reporter: Reporter::default(),
            log,
            options: options::admin_options(&config),
            remotes: RemoteStates::new(options::configured_remote_clusters(&config)),
            watches: graph.metrics.watches.clone(),
            callers: OnceLock::new(),
            refusals: graph.metrics.refusals.clone(),
        });
        discovery.set_debug_pages(Arc::new(PagesOverXds::new(admin.clone())));
        Self {
            config,
            graph,
            store,
            discovery,
            admin,
            admin_stop: CancellationToken::new(),
            tasks: Tasks::new(stop),
            clients: Clients::default(),
            local_client: None,
            followed: Vec::new(),
            pending,
        }
    }

    /// Serves the HTTP ports. Returns the listeners for proxies.
    fn serve_admin(&mut self, listeners: Listeners) -> (Option<Listener>, Option<Listener>) {
        let Listeners { http, grpc, secure_grpc, monitoring } = listeners;
        if let Some(listener) = http {
            let router = sluice_admin::http_router(self.admin.clone());
            self.tasks.spawn("http port", serve_http(listener, router, self.admin_stop.clone()));
        }
        if let Some(listener) = monitoring {
            let router = sluice_admin::monitoring_router(self.admin.clone());
            self.tasks.spawn("monitoring port", serve_http(listener, router, self.admin_stop.clone()));
        }
        (grpc, secure_grpc)
    }

    /// Reads all configuration, then serves proxies until the process stops.
    async fn start(
        &mut self,
        mesh_files: MeshFiles,
        grpc: Option<Listener>,
        secure_grpc: Option<Listener>,
    ) -> Result<(), AppError> {
        let token_keys = self.fetch_token_keys()?;
        let remote_clusters = self.read_sources(mesh_files).await?;
        if self.wait_for_configuration(remote_clusters, token_keys).await?.is_none() {
            return Ok(());
        }
        let first_epoch = self.fill_store();
        let Some(security) = self.open_security().await? else { return Ok(()) };
        if self.tasks.wait_for(first_epoch).await?.is_none() {
            return Ok(());
        }
        self.serve_proxies(security, grpc, secure_grpc)?;
        self.tasks.wait_for(std::future::pending::<()>()).await?;
        Ok(())
    }

    /// Stops the HTTP ports and the sources in files, and waits until the streams of proxies and all tasks have ended.
    async fn shut_down(self) {
        let limit = self.config.serving.shutdown;
        self.admin.readiness.block("shutting down");
        info!(seconds = limit.as_secs_f64(), "stopping");
        drop(self.followed);
        self.admin_stop.cancel();
        self.tasks.drain(limit + SHUTDOWN_GRACE).await;
        info!("stopped");
    }
}
