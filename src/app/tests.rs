//! A panic in each supervised task and thread: it is restarted, or the process stops in order with its name.

mod signer;
mod task_names;

use std::collections::BTreeMap;
use std::path::Path;

use prometheus_client::registry::Registry;
use serde_json::json;
use sluice_config::CommandLine;
use sluice_kube::{ADDRESSES_LOCK, Lock, ROOTS_LOCK};
use sluice_recording::Recorder;
use sluice_tasks::{Reaction, faults};
use sluice_telemetry::LogControl;
use sluice_testkit::api_server::{ApiServer, ResourceKind};
use sluice_testkit::wait::until;
use tempfile::TempDir;

use super::*;
use signer::{ClusterSigner, SIGNER};

/// A control plane, and those of its tasks that no earlier one has.
struct ControlPlane {
    source: Source,
    /// Its environment.
    variables: &'static [(&'static str, &'static str)],
    /// Tasks that are restarted.
    restarted: &'static [&'static str],
    /// Threads that are restarted.
    restarted_threads: &'static [&'static str],
    /// Tasks that end the process.
    end_process: &'static [&'static str],
    /// Threads that end the process.
    end_process_threads: &'static [&'static str],
}

/// What a control plane reads.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Source {
    /// A cluster, a remote one, and a directory as another one.
    Clusters,
    /// The same, with a signer of the Kubernetes API.
    ClustersAndSigner,
    /// The same, and configuration from a server that does not answer: proxies are not served.
    ClustersAndServer,
    /// A recording.
    Recording,
}

/// The server of [`Source::ClustersAndServer`].
const CONFIGURATION_SERVER: &str = "xds://127.0.0.1:1";
/// The task that reads it.
const CONFIGURATION_TASK: &str = "source of configuration xds://127.0.0.1:1";

static CONTROL_PLANES: [ControlPlane; 4] = [
    // As many tasks as possible run.
    ControlPlane {
        source: Source::Clusters,
        variables: &[
            ("POD_NAME", "sluiced-0"),
            ("ENABLE_LEADER_ELECTION", "true"),
            ("CA_TRUSTED_NODE_ACCOUNTS", "kube-system/node"),
            ("EXTERNAL_ISTIOD", "true"),
            ("ISTIO_MULTIROOT_MESH", "true"),
            ("PILOT_ENABLE_AMBIENT", "true"),
            ("PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS", "true"),
            ("ENABLE_GATEWAY_API_INFERENCE_EXTENSION", "true"),
            ("ENABLE_MCS_AUTO_EXPORT", "true"),
            ("OTEL_TRACES_EXPORTER", "otlp"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
        ],
        restarted: &[
            "watch of Pod",
            "watch of CustomResourceDefinition",
            "watch of VirtualService",
            "watch of remote clusters",
            "watch of ConfigMap istio-ca-root-cert",
            "watch of the injection ConfigMap",
            "root ConfigMap writer",
            "address writer",
            "ingress status writer",
            "Gateway API writer",
            "InferencePool Service writer",
            "ServiceExports of a cluster",
            "deployment controller",
            "condition tracker",
            "condition writer",
            "change tracer",
            "taint writer",
            "workload cleaner",
            "heartbeat of the Kubernetes API",
            "gateway names",
            "ages of watches",
            "served configuration",
            "stream registry",
            "roots of a remote cluster",
            "webhooks of a remote cluster",
            "mesh config of the injector",
            "webhook configuration writer",
        ],
        restarted_threads: &["follow-files"],
        end_process: &[
            "Kubernetes source",
            "Secret reviewer",
            "ServiceExport writer",
            "certificate authority",
            "controlz port",
            "engine",
            "grpc port",
            "http port",
            "https port",
            "injection configuration",
            "list of configuration sources",
            "monitoring port",
            "pods of nodes",
            "remote clusters",
            "roots of remote clusters",
            "secure grpc port",
            "server certificate",
            "store",
            "token key fetcher",
            "trust anchors",
            "trust domain",
            "workload registrar",
        ],
        end_process_threads: &["files-files", "mesh-files", "sources"],
    },
    // Other signers than the certificate authority, and another place for the roots.
    ControlPlane {
        source: Source::ClustersAndSigner,
        variables: &[
            ("POD_NAME", "sluiced-0"),
            ("ENABLE_LEADER_ELECTION", "true"),
            ("ENABLE_CLUSTER_TRUST_BUNDLE_API", "true"),
            ("EXTERNAL_CA", "ISTIOD_RA_KUBERNETES_API"),
            ("K8S_SIGNER", "example.com/workloads"),
            ("PILOT_CERT_PROVIDER", "k8s.io/example.com/server"),
        ],
        restarted: &["ClusterTrustBundle writer", "left over signing requests"],
        restarted_threads: &[],
        end_process: &["server signer", "workload signer"],
        end_process_threads: &[],
    },
    ControlPlane {
        source: Source::ClustersAndServer,
        variables: &[("POD_NAME", "sluiced-0"), ("ENABLE_LEADER_ELECTION", "true")],
        restarted: &[CONFIGURATION_TASK],
        restarted_threads: &[],
        end_process: &["source of configuration"],
        end_process_threads: &[],
    },
    ControlPlane {
        source: Source::Recording,
        variables: &[("ENABLE_CA_SERVER", "false"), ("PILOT_CERT_PROVIDER", "none")],
        restarted: &[],
        restarted_threads: &[],
        end_process: &["recording"],
        end_process_threads: &[],
    },
];

/// Tasks and threads that do not panic in this test, and the reasons.
const EXCEPTIONS: [(&str, &str); 2] = [
    ("files-walk", "a short part of the work of a thread, which repeats it"),
    ("signals", "`main` starts it: it panics in `tests/bench.rs::panics_of_tasks_are_recovered_from`"),
];

/// What follows a panic of each task and thread.
fn reactions() -> BTreeMap<&'static str, Reaction> {
    let lists = CONTROL_PLANES.iter().flat_map(|plane| {
        [
            (plane.restarted, Reaction::TaskRestarts),
            (plane.restarted_threads, Reaction::ThreadRestarts),
            (plane.end_process, Reaction::TaskEndsProcess),
            (plane.end_process_threads, Reaction::ThreadEnds),
        ]
    });
    lists.flat_map(|(tasks, reaction)| tasks.iter().map(move |task| (*task, reaction))).collect()
}

/// A control plane with what it reads.
struct Mesh {
    plane: &'static ControlPlane,
    api: Arc<ApiServer>,
    directory: TempDir,
    log: LogControl,
    /// It signs until this is dropped.
    _signer: Option<ClusterSigner>,
}

impl Mesh {
    async fn start(plane: &'static ControlPlane, log: LogControl) -> Self {
        let api = Arc::new(ApiServer::start().await.expect("a server"));
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        api.write_kubeconfig(&path("kubeconfig")).expect("written");
        for name in ["files", "mesh"] {
            std::fs::create_dir(path(name)).expect("created");
        }
        let signer = (plane.source == Source::ClustersAndSigner).then(|| ClusterSigner::start(api.clone()));
        let mesh_config = match (&signer, plane.source) {
            (Some(signer), _) => json!({"caCertificates": [{"pem": signer.root, "certSigners": [SIGNER]}]}),
            (None, Source::ClustersAndServer) => json!({"configSources": [{"address": CONFIGURATION_SERVER}]}),
            (None, _) => json!({}),
        };
        std::fs::write(path("mesh/mesh"), mesh_config.to_string()).expect("written");
        if plane.source == Source::Recording {
            record(&path("recording"));
        }
        for (group, version, name, plural) in [
            ("networking.istio.io", "v1", "VirtualService", "virtualservices"),
            ("multicluster.x-k8s.io", "v1alpha1", "ServiceExport", "serviceexports"),
        ] {
            api.define(ResourceKind { group, versions: vec![version], name, plural }, true);
        }
        // It has no ServiceExport.
        api.apply(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "cart", "namespace": "shop", "uid": "cart-1"},
            "spec": {"ports": [{"port": 80}]},
        }));
        // A remote cluster, which has this one as its control plane.
        let kubeconfig = api.kubeconfig(json!({"token": "remote"})).to_string();
        api.apply(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": "remote", "namespace": "istio-system", "labels": {"istio/multiCluster": "true"},
            },
            "data": {"east": base64::Engine::encode(&base64::prelude::BASE64_STANDARD, kubeconfig)},
        }));
        api.apply(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "istio-system", "annotations": {"topology.istio.io/controlPlaneClusters": "*"}},
        }));
        Self { plane, api, directory, log, _signer: signer }
    }

    fn config(&self) -> Config {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let mut arguments = [
            "sluiced",
            "discovery",
            "--grpcAddr=127.0.0.1:0",
            "--httpAddr=127.0.0.1:0",
            "--monitoringAddr=127.0.0.1:0",
            "--secureGRPCAddr=127.0.0.1:0",
            "--httpsAddr=127.0.0.1:0",
            "--shutdownDuration=5s",
        ]
        .map(str::to_owned)
        .to_vec();
        if self.plane.source == Source::Recording {
            arguments.push(format!("--replayFile={}", path("recording")));
        } else {
            arguments.push(format!("--kubeconfig={}", path("kubeconfig")));
            arguments.push(format!("--remoteConfigDir=files={}", path("files")));
            arguments.push(format!("--meshConfig={}", path("mesh/mesh")));
        }
        let (line, unknown) = CommandLine::parse_lenient(arguments).expect("a command line");
        let variable = |name: &str| {
            let variables = self.plane.variables.iter();
            variables.copied().find(|(variable, _)| *variable == name).map(|(_, value)| value.to_owned())
        };
        Config::new(line.discovery, &unknown, variable).expect("valid").with_environment(|_| None)
    }

    /// Runs the control plane until `end` returns, or it fails. Returns the failure, and the reasons why it is not
    /// ready.
    async fn run(&self, end: impl AsyncFnOnce()) -> (Option<String>, Vec<String>) {
        let (mut config, metrics) = (self.config(), ListenMetrics::default());
        let mut listeners = Listeners::bind(&config, &metrics).await.expect("free ports");
        let source = OpenedSource::open(&mut config).expect("readable files");
        let graph_options = source.graph_options(&config);
        let stop = CancellationToken::new();
        let http_runtime = DedicatedRuntime::new("http", || {}).expect("threads");
        let mut app = App::new(config, graph_options, self.log.clone(), stop.clone(), &metrics, http_runtime);
        let admin = app.admin.clone();
        app.serve_admin(&mut listeners);
        let ending = async {
            if self.plane.source != Source::ClustersAndServer {
                until("it is ready", || admin.readiness.pending().is_empty().then_some(())).await;
            }
            if self.plane.source != Source::Recording {
                until("it leads", || self.holders().iter().any(|holder| !holder.is_empty()).then_some(())).await;
            }
            end().await;
            stop.cancel();
            std::future::pending::<()>().await;
        };
        let result = tokio::select! {
            result = app.start(source, listeners) => result,
            () = ending => unreachable!("it waits"),
        };
        app.shut_down(result.as_ref().err()).await;
        let pending = admin.readiness.pending().iter().map(|reason| reason.to_string()).collect();
        (result.err().map(|error| error.to_string()), pending)
    }

    /// The holders of the locks.
    fn holders(&self) -> Vec<String> {
        let objects = self.api.list("", "configmaps");
        let of_lock =
            |lock: &Lock| objects.iter().find(|it| it["metadata"]["name"] == lock.name()).map(|it| lock.holder(it));
        [ADDRESSES_LOCK, ROOTS_LOCK].iter().filter_map(of_lock).collect()
    }
}

/// Writes a recording without objects.
fn record(path: &Path) {
    let options = GraphOptions::default();
    let (engine, _handles) = sluice_graph::start_without_history(&options, || {});
    let file = std::fs::File::create(path).expect("created");
    let recorder = Recorder::start(engine, &options, file).expect("recorded");
    recorder.run(Duration::ZERO, || true).expect("recorded");
}

/// The log of the process, without its hook for panics: those of tests are reported as usual.
fn log() -> LogControl {
    let line = CommandLine::parse_lenient(["sluiced".to_owned(), "discovery".to_owned()]).expect("a command line").0;
    let config = Config::new(line.discovery, &[], |_| None).expect("valid");
    let log = sluice_telemetry::start(&config.log).expect("the first start");
    drop(std::panic::take_hook());
    log
}

/// Number of restarts of a task.
fn restarts(task: &str) -> u64 {
    let mut registry = Registry::default();
    sluice_tasks::register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
    let prefix = format!("sluice_task_restarts_total{{task=\"{task}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&prefix)).map_or(0, |count| count.parse().expect("a number"))
}

/// Checks that the process has ended because of the task, closed `/ready` with its name, and released its locks.
async fn check_end(mesh: &Mesh, task: &str, (failure, pending): (Option<String>, Vec<String>)) {
    let failure = failure.unwrap_or_default();
    assert!(failure.starts_with(&format!("task {task}: ")) && failure.contains("panicked"), "{task}: {failure}");
    assert!(pending.contains(&failure) && pending.contains(&"shutting down".to_owned()), "{task}: {pending:?}");
    until(&format!("{task}: all locks are released"), || mesh.holders().iter().all(String::is_empty).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn panic_in_each_task_restarts_it_or_ends_the_process_with_its_name() {
    let log = log();
    for plane in &CONTROL_PLANES {
        let mesh = Mesh::start(plane, log.clone()).await;
        for thread in plane.restarted_threads {
            // It panics when it starts.
            faults::inject_panic(thread);
        }
        let (failure, _) = mesh.run(async || restart_each_task(plane).await).await;
        assert_eq!(failure, None, "the process has continued");
        for &task in plane.end_process {
            let ended = mesh.run(async || {
                until(&format!("{task} runs"), || faults::running().contains_key(task).then_some(())).await;
                faults::inject_panic(task);
                std::future::pending().await
            });
            check_end(&mesh, task, ended.await).await;
        }
        for thread in plane.end_process_threads {
            faults::inject_panic(thread);
            let ended = mesh.run(async || std::future::pending().await);
            check_end(&mesh, thread, ended.await).await;
        }
    }
}

/// Injects a panic into each task that is restarted.
async fn restart_each_task(plane: &ControlPlane) {
    for &thread in plane.restarted_threads {
        until(&format!("{thread} is restarted"), || (restarts(thread) > 0).then_some(())).await;
    }
    for &task in plane.restarted.iter().chain(plane.restarted_threads) {
        until(&format!("{task} runs"), || faults::running().contains_key(task).then_some(())).await;
    }
    let expected = reactions();
    for (task, reaction) in faults::running() {
        if EXCEPTIONS.iter().any(|(name, _)| *name == task) {
            continue;
        }
        let expected = if task.starts_with("watch of ") { Some(&Reaction::TaskRestarts) } else { expected.get(&*task) };
        assert_eq!(Some(&reaction), expected, "task {task} is not in a list of this file");
    }
    for &task in plane.restarted {
        // One after the other, because some tasks run as a part of another one.
        faults::inject_panic(task);
        until(&format!("{task} is restarted"), || (restarts(task) > 0).then_some(())).await;
        until(&format!("{task} runs"), || faults::running().contains_key(task).then_some(())).await;
    }
}
