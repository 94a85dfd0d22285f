//! Start of the agent in order: probes of the node, pods, restored pods, ztunnel, events of the plugin, installation.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::FutureExt as _;
use kube::Client;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde_json::Value;
use sluice_kube::{Api, KubeOptions, ListWatch, ObjectPath, Receiver, RequestError, Resource, WatchStates};
use sluice_tasks::{Tasks, restart_with};
use sluice_watch::Watch;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::controller::Controller;
use crate::event::SOCKET;
use crate::event_server;
use crate::health::{self, NodeReadiness};
use crate::install::Installer;
use crate::mesh::AmbientMesh;
use crate::node_network::NodeNetwork;
use crate::repair::Repair;
use crate::selectors::EnablementSelectors;
use crate::settings::AgentArgs;
use crate::store::Store;
use crate::zds::ZdsServer;

/// Time in which tasks have to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Requests for the DaemonSet at the end, and the time between them.
const UPGRADE_ATTEMPTS: (u32, Duration) = (3, Duration::from_secs(1));

/// Runs the agent until a termination is requested.
///
/// # Errors
/// A setting is invalid, a socket cannot be created, or a task fails.
pub(crate) fn run(args: &AgentArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    let result = runtime.block_on(run_agent(args));
    runtime.shutdown_background();
    result
}

async fn run_agent(args: &AgentArgs) -> Result<()> {
    let selectors = args.selectors().map_err(|error| anyhow::anyhow!("AMBIENT_ENABLEMENT_SELECTOR: {error}"))?;
    let install = args.install(&selectors)?;
    let client = sluice_kube::connect(args.kubeconfig.as_deref()).await?;
    let states = WatchStates::default();
    let mut registry = Registry::default();
    states.register(&mut registry);
    sluice_tasks::register(&mut registry);
    let api = Api::new(client.clone(), "Kubernetes".into(), KubeOptions::default(), states);

    let requested = CancellationToken::new();
    stop_on_signal(requested.clone())?;
    let mut tasks = Tasks::new(requested.clone());
    let readiness = NodeReadiness::default();
    if args.readiness_port != 0 {
        spawn(&mut tasks, "probes", health::serve_probes(args.readiness_port, readiness.clone()).await?);
    }
    let network = NodeNetwork::open(&args.host_root, args.allow_switch_to_host_ns, args.node())?;
    let network = Arc::new(network);
    if let Some(method) = args.repair.method() {
        let (criteria, client) = (args.repair.criteria(), client.clone());
        let repair = Repair { criteria, method, network: Arc::clone(&network), client };
        let store = Store::default();
        let resource = with_selectors(pods_of(args)?, args);
        watch_into(&mut tasks, "watch of pods to repair", &api, resource, store.pods());
        spawn(&mut tasks, "repair", repair.run(store));
    }
    if args.ambient_enabled {
        start_ambient(args, &mut tasks, &mut registry, &api, client.clone(), &network, selectors).await?;
    }
    readiness.serving.store(true, Ordering::Relaxed);
    if args.monitoring_port != 0 {
        spawn(&mut tasks, "metrics", health::serve_metrics(args.monitoring_port, registry).await?);
    }

    let installer = Arc::new(Installer::new(install, readiness.installed));
    let watch = Watch::new(|path| !is_hidden(path));
    let stop = watch.handle();
    let mut installing = installer.start(watch).context("start the thread that installs the plugin")?;
    if let Some(end) = installing.end() {
        tasks.watch_thread(end);
    }
    info!("agent started");
    let result = tasks.wait_for(requested.cancelled()).await.map(drop);
    // Its end is not awaited: it may wait for its restart, and writes nothing after the removal.
    stop.stop();
    // Before the removal: they would write again what is removed.
    tasks.stop_all();
    tasks.drain(DRAIN_TIMEOUT, &[], &CancellationToken::new()).await;
    shut_down(args, &client, &network, &installer).await;
    Ok(result?)
}

fn is_hidden(path: &std::path::Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".istio-cni-"))
}

/// Starts everything about the ambient mesh. Pods of an earlier run are restored before ztunnel can connect: it withdraws
/// those that its snapshot does not have.
async fn start_ambient(
    args: &AgentArgs,
    tasks: &mut Tasks,
    registry: &mut Registry,
    api: &Api,
    client: Client,
    network: &Arc<NodeNetwork>,
    selectors: EnablementSelectors,
) -> Result<()> {
    let zds = Arc::new(ZdsServer::default());
    registry.register_collector(Box::new(Connections(Arc::clone(&zds))));
    let store = Store::default();
    watch_into(tasks, "watch of pods", api, pods_of(args)?, store.pods());
    let namespaces = Resource::of::<k8s_openapi::api::core::v1::Namespace>();
    watch_into(tasks, "watch of namespaces", api, namespaces, store.namespaces());
    let writer = Arc::clone(network);
    tokio::task::spawn_blocking(move || writer.write_probe_rules()).await?.context("rules for probes")?;
    let mesh = AmbientMesh { network: Arc::clone(network), zds: Arc::clone(&zds), client };
    let controller = Arc::new(Controller::new(mesh, store, selectors, args.excluded()));
    let restoring = controller.restore(args.ambient_reconcile_pod_rules_on_startup);
    if tasks.wait_for(restoring).await?.is_none() {
        return Ok(());
    }
    let socket = &args.ztunnel_uds_address;
    spawn(tasks, "ZDS", zds.listen(socket).with_context(|| socket.display().to_string())?);
    let events = args.cni_agent_run_dir.join(SOCKET);
    let served = event_server::serve(&events, Arc::clone(&controller));
    spawn(tasks, "events of the plugin", served.with_context(|| events.display().to_string())?);
    spawn(tasks, "controller", controller.run());
    Ok(())
}

/// Runs a task until the process stops. If it ends earlier, the process fails.
fn spawn(tasks: &mut Tasks, name: &'static str, task: impl Future<Output = Result<()>> + Send + 'static) {
    let stop = tasks.stop();
    tasks.spawn_fallible(name, async move {
        tokio::select! {
            result = task => result,
            () = stop.cancelled() => Ok(()),
        }
    });
}

/// The pods of the node.
fn pods_of(args: &AgentArgs) -> Result<Resource> {
    ensure!(!args.node_name.is_empty(), "NODE_NAME is not set");
    let pods = Resource::of::<k8s_openapi::api::core::v1::Pod>();
    Ok(pods.with_fields(&format!("spec.nodeName={}", args.node_name)))
}

fn with_selectors(resource: Resource, args: &AgentArgs) -> Resource {
    let resource = match args.repair.repair_field_selectors.as_str() {
        "" => resource,
        fields => resource.with_fields(&format!("spec.nodeName={},{fields}", args.node_name)),
    };
    match args.repair.repair_label_selectors.as_str() {
        "" => resource,
        labels => resource.with_labels(labels),
    }
}

fn watch_into(
    tasks: &mut Tasks,
    name: &'static str,
    api: &Api,
    resource: Resource,
    receiver: impl Receiver + Sync + 'static,
) {
    let mut watch = ListWatch::new(api.clone(), resource, KubeOptions::default().backoff(), receiver);
    tasks.spawn_until_stop(name, async move { restart_with(name, &mut watch, |watch| watch.run().boxed()).await });
}

/// Removes the plugin and the rules of the node, unless the next version of the agent replaces this one: without the plugin,
/// pods that start meanwhile would not be enrolled.
async fn shut_down(args: &AgentArgs, client: &Client, network: &Arc<NodeNetwork>, installer: &Arc<Installer>) {
    if args.ambient_enabled && !args.ambient_disable_safe_upgrade && is_upgrade(args, client).await {
        info!("the DaemonSet of the agent exists, the plugin stays");
        return;
    }
    let (network, installer, ambient) = (Arc::clone(network), Arc::clone(installer), args.ambient_enabled);
    // At the same time: each is removed whatever happens to the other.
    let plugin = tokio::task::spawn_blocking(move || installer.remove());
    let rules = tokio::task::spawn_blocking(move || if ambient { network.remove_probe_rules() } else { Ok(()) });
    if let Err(error) = plugin.await {
        warn!(%error, "the plugin is not removed");
    }
    match rules.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(%error, "rules for probes are not removed"),
        Err(error) => warn!(%error, "rules for probes are not removed"),
    }
}

async fn is_upgrade(args: &AgentArgs, client: &Client) -> bool {
    const DAEMON_SETS: ObjectPath = ObjectPath::new("/apis/apps/v1", "daemonsets");
    let path = DAEMON_SETS.of(&args.pod_namespace, "istio-cni-node", "");
    for _ in 0..UPGRADE_ATTEMPTS.0 {
        let Ok(request) = http::Request::get(&path).body(Vec::new()) else { return false };
        match sluice_kube::request::<Value>(client, request).await.map_err(RequestError::from) {
            Ok(object) => return object["metadata"]["deletionTimestamp"].is_null(),
            // It has been deleted, or the rights have.
            Err(RequestError::Status { code: 401 | 403 | 404, .. }) => return false,
            Err(error) => warn!(%error, "cannot read the DaemonSet of the agent"),
        }
        tokio::time::sleep(UPGRADE_ATTEMPTS.1).await;
    }
    args.istio_owned_cni_config
}

/// SIGTERM or SIGINT ends the agent.
fn stop_on_signal(requested: CancellationToken) -> Result<()> {
    let terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    tokio::spawn(async move {
        let mut state = (terminate, interrupt, requested);
        restart_with("signals", &mut state, |(terminate, interrupt, requested)| {
            Box::pin(async move {
                tokio::select! {
                    _ = terminate.recv() => info!("SIGTERM received"),
                    _ = interrupt.recv() => info!("SIGINT received"),
                }
                requested.cancel();
            })
        })
        .await;
    });
    Ok(())
}

/// The metric of connections of ztunnel.
struct Connections(Arc<ZdsServer>);

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Connections").field(&self.0.connected()).finish()
    }
}

impl Collector for Connections {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let connected = i64::try_from(self.0.connected()).unwrap_or(i64::MAX);
        let gauge = ConstGauge::new(connected);
        let metric =
            encoder.encode_descriptor("ztunnel_connected", "Connections of ztunnel", None, gauge.metric_type())?;
        gauge.encode(metric)
    }
}
