//! Builds every component in order, runs them, and stops them. Only this module refers to all components.

mod config_sources;
mod engine;
mod error;
mod open_files;
mod options;
mod ports;
mod recording;
mod registration;
mod security;
mod serve;
mod sources;
mod traces;
mod webhooks;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use kube::Client;
use sluice_admin::{
    AdminState, MAX_PREVIEW_BYTES, PagesOverXds, PreviewTurns, Readiness, ReadinessGuard, Sessions, UpdateRates,
};
use sluice_authority::Signer;
use sluice_config::Config;
use sluice_graph::GraphOptions;
use sluice_kube::Clients;
use sluice_listen::{BodyLimits, ListenMetrics, serve_http};
use sluice_recording::ServedReplay;
use sluice_sources::kube::RemoteStates;
use sluice_sources::{Originals, Reporter};
use sluice_tasks::{DedicatedRuntime, Tasks};
use sluice_telemetry::LogControl;
use sluice_watch::FollowGuard;
use sluice_webhook::{InjectionConfiguration, Webhooks};
use sluice_xds::{Admission, DiscoveryServer, EngineProxies, OptionalProxies, StatusReader, UnacknowledgedAge};
use sluice_xds_protocol::Store;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use engine::GraphEngine;
use ports::Listeners;
use recording::OpenedSource;

pub(crate) use error::AppError;

/// Time limit for tasks to end, in addition to `--shutdownDuration`.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// Names of the tasks that serve `/ready`. They stop after all others.
const HTTP_TASKS: [&str; 2] = ["http port", "monitoring port"];

/// Priority, as of `nice`, of the threads that read objects, derive resources and push them: a webhook has 10 s to answer at
/// most, and the creation of a Pod waits for it.
pub(crate) const BULK_NICE: i32 = 10;

/// Runs until `stop` is cancelled or a component fails. Then it stops all components in order.
///
/// # Errors
/// The process cannot start or continue; see [`AppError::exit_code`].
pub(crate) async fn run(mut config: Config, log: LogControl, stop: CancellationToken) -> Result<(), AppError> {
    for warning in &config.warnings {
        warn!("{warning}");
    }
    // Ports are bound first, so that a port in use is reported before all objects have been read.
    let listen_metrics = ListenMetrics::default();
    let mut listeners = Listeners::bind(&config, &listen_metrics).await?;
    let source = OpenedSource::open(&mut config)?;
    let graph_options = source.graph_options(&config);
    let http_runtime = DedicatedRuntime::new("http", || {}).map_err(AppError::runtime("start the HTTP runtime"))?;
    // The dataflow and the sources inherit the priority of this thread.
    sluice_tasks::lower_thread_priority(BULK_NICE);
    let mut app = App::new(config, graph_options, log, stop, &listen_metrics, http_runtime);
    app.serve_admin(&mut listeners);
    let result = app.start(source, listeners).await;
    app.shut_down(result.as_ref().err()).await;
    result
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
    /// Runs the ports that Kubernetes calls, so that probes and admission do not wait for pushes.
    http_runtime: DedicatedRuntime,
    /// Clients of clusters that are read through the Kubernetes API.
    clients: Clients,
    /// The client of the local cluster.
    local_client: Option<Client>,
    /// The signer of the certificate authority, once it is open.
    signer: Option<Arc<Signer>>,
    webhooks: Webhooks,
    /// The configuration of the injector, unless injection is disabled.
    injection: Option<Arc<InjectionConfiguration>>,
    /// Guards of the files and directories that are followed.
    followed: Vec<FollowGuard>,
    /// The recording that is replayed, from its first step until proxies are served.
    replay: Option<ServedReplay>,
    /// Components that are not ready yet.
    pending: Pending,
}

/// Components that `/ready` waits for. A guard is dropped once its component is ready.
struct Pending {
    configuration: Option<ReadinessGuard>,
    remote_clusters: Option<ReadinessGuard>,
    injection: Option<ReadinessGuard>,
    token_keys: Option<ReadinessGuard>,
    authority: Option<ReadinessGuard>,
    first_epoch: Option<ReadinessGuard>,
    /// The ports of proxies and webhooks.
    ports: Option<ReadinessGuard>,
}

impl Pending {
    fn new(readiness: &Arc<Readiness>) -> Self {
        let guard = |component, reason| Some(readiness.guard(component, reason));
        Self {
            configuration: guard("configuration", "not read yet"),
            remote_clusters: guard("remote clusters", "not read yet"),
            injection: guard("injection configuration", "not read yet"),
            token_keys: guard("token keys", "not fetched yet"),
            authority: guard("certificate authority", "not loaded yet"),
            first_epoch: guard("first epoch", "not complete yet"),
            ports: guard("ports", "not open yet"),
        }
    }
}

impl App {
    /// Starts the engine, and builds the components that serve, without content.
    fn new(
        config: Config,
        graph_options: GraphOptions,
        log: LogControl,
        stop: CancellationToken,
        listen_metrics: &ListenMetrics,
        http_runtime: DedicatedRuntime,
    ) -> Self {
        sluice_crypto::collect_entropy();
        let mut graph = GraphEngine::start(&config, graph_options.clone());
        listen_metrics.register(&mut graph.metrics.registry);
        let store = Arc::new(Store::default());
        let inputs = &graph.handles.inputs;
        let (engine, handles) = (graph.engine.clone(), graph.handles.clone());
        let proxies = Arc::new(EngineProxies::new(
            inputs.proxies.clone(),
            inputs.secret_clients.clone(),
            config.identity.cluster_aliases.clone(),
            OptionalProxies { ztunnels: config.features.ambient, agentgateways: config.features.agentgateway },
            move |proxy| handles.client_profile(&engine.snapshot(), proxy),
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
        UnacknowledgedAge::register(discovery.clone(), &mut graph.metrics.registry);
        let readiness = Arc::new(Readiness::default());
        let pending = Pending::new(&readiness);
        let admin = Arc::new(AdminState {
            engine: graph.engine.clone(),
            handles: graph.handles.clone(),
            status: StatusReader::new(discovery.clone()),
            readiness,
            metrics: Mutex::new(std::mem::take(&mut graph.metrics.registry)),
            reporter: Reporter::default(),
            originals: Originals::default(),
            mesh_config: OnceLock::new(),
            current_mesh: OnceLock::new(),
            templates: OnceLock::new(),
            log,
            options: options::admin_options(&config),
            graph: graph_options,
            preview_turns: PreviewTurns::default(),
            remotes: RemoteStates::new(options::configured_remote_clusters(&config)),
            config_sources: graph.metrics.config_sources.clone(),
            watches: graph.metrics.watches.clone(),
            callers: OnceLock::new(),
            refusals: graph.metrics.refusals.clone(),
            sessions: Sessions::default(),
            update_rates: UpdateRates::default(),
        });
        discovery.set_debug_pages(Arc::new(PagesOverXds::new(admin.clone())));
        let injection = config
            .features
            .inject
            .then(|| InjectionConfiguration::new(options::injector_settings(&config), graph.metrics.webhooks.clone()));
        let webhooks = Webhooks::new(
            graph.engine.clone(),
            graph.handles.clone(),
            options::native_sidecars(&config.features),
            injection.clone(),
            graph.metrics.webhooks.clone(),
        );
        let mut tasks = Tasks::new(stop);
        tasks.spawn_fallible("engine", graph.watch(tasks.stop()));
        Self {
            config,
            graph,
            store,
            discovery,
            admin,
            admin_stop: CancellationToken::new(),
            tasks,
            http_runtime,
            clients: Clients::default(),
            local_client: None,
            signer: None,
            webhooks,
            injection,
            followed: Vec::new(),
            replay: None,
            pending,
        }
    }

    /// Serves the HTTP ports.
    fn serve_admin(&mut self, listeners: &mut Listeners) {
        if let Some(listener) = listeners.http.take() {
            let mut router = sluice_admin::http_router(self.admin.clone());
            let mut bodies = BodyLimits::new(MAX_PREVIEW_BYTES, MAX_PREVIEW_BYTES);
            if listeners.https.is_none() {
                // The answer to unknown pages is that of the pages for operators.
                router = self.review_router().merge(router);
                bodies = webhooks::body_limits();
            }
            let serving = serve_http(listener, router, bodies, self.admin_stop.clone());
            self.tasks.spawn_on(self.http_runtime.handle(), HTTP_TASKS[0], serving);
        }
        if let Some(listener) = listeners.monitoring.take() {
            let router = sluice_admin::monitoring_router(self.admin.clone());
            let bodies = BodyLimits::new(MAX_PREVIEW_BYTES, MAX_PREVIEW_BYTES);
            let serving = serve_http(listener, router, bodies, self.admin_stop.clone());
            self.tasks.spawn(HTTP_TASKS[1], serving);
        }
        if let Some(listener) = listeners.controlz.take() {
            let router = sluice_admin::controlz_router(self.admin.clone(), options::is_public_variable);
            let serving = serve_http(listener, router, BodyLimits::default(), self.tasks.stop());
            self.tasks.spawn("controlz port", serving);
        }
    }

    /// Reads all configuration, then serves proxies until the process stops.
    async fn start(&mut self, source: OpenedSource, listeners: Listeners) -> Result<(), AppError> {
        let token_keys = self.fetch_token_keys()?;
        let interrupted = self.tasks.interrupted();
        let remote_clusters = tokio::select! {
            reading = self.read_sources(source) => Some(reading?),
            // A large directory takes long to read.
            () = interrupted => self.tasks.wait_for(std::future::pending()).await?,
        };
        let Some(remote_clusters) = remote_clusters else { return Ok(()) };
        if self.wait_for_configuration(remote_clusters, token_keys).await?.is_none() {
            return Ok(());
        }
        let first_epoch = self.fill_store();
        let Some(security) = self.open_security().await? else { return Ok(()) };
        if self.tasks.wait_for(first_epoch).await?.is_none() {
            return Ok(());
        }
        // A change that is made once `/ready` is open is traced.
        self.trace_changes()?;
        self.serve_proxies(security, listeners)?;
        self.replay_changes();
        self.track_reconciliations();
        self.log_stale_watches();
        self.tasks.wait_for(std::future::pending::<()>()).await?;
        Ok(())
    }

    /// Closes `/ready`, then stops all tasks and waits until they and the streams of proxies have ended. `/ready` is served until
    /// then.
    async fn shut_down(self, failure: Option<&AppError>) {
        let limit = self.config.serving.shutdown;
        if let Some(failure) = failure {
            self.admin.readiness.block(failure.to_string());
        }
        self.admin.readiness.block("shutting down");
        info!(seconds = limit.as_secs_f64(), "stopping");
        self.tasks.stop_all();
        // A thread that follows files ends after its commit, which waits for an epoch.
        let followed = self.followed;
        tokio::task::spawn_blocking(move || drop(followed));
        self.tasks.drain(limit + SHUTDOWN_GRACE, &HTTP_TASKS, &self.admin_stop).await;
        // Dropping the last handle would wait for the end of the epoch that runs.
        std::mem::forget(self.graph);
        info!("stopped");
    }
}

#[cfg(all(test, debug_assertions))]
mod tests;
