//! A panic in each supervised task and thread: it is restarted, or the process stops in order with its name.

use std::collections::BTreeMap;

use prometheus_client::registry::Registry;
use serde_json::json;
use sluice_config::CommandLine;
use sluice_kube::{ADDRESSES_LOCK, Lock, ROOTS_LOCK};
use sluice_tasks::{Reaction, faults};
use sluice_telemetry::LogControl;
use sluice_testkit::api_server::{ApiServer, ResourceKind};
use sluice_testkit::wait::until;
use tempfile::TempDir;

use super::*;

/// Tasks that are restarted.
const RESTARTED: [&str; 23] = [
    "watch of Pod",
    "watch of CustomResourceDefinition",
    "watch of VirtualService",
    "watch of remote clusters",
    "watch of ConfigMap istio-ca-root-cert",
    "root ConfigMap writer",
    "address writer",
    "ingress status writer",
    "Gateway API writer",
    "deployment controller",
    "condition tracker",
    "condition writer",
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
];
/// Tasks that end the process.
const END_PROCESS: [&str; 21] = [
    "Kubernetes source",
    "Secret reviewer",
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
];
/// Threads that end the process.
const END_PROCESS_THREADS: [&str; 3] = ["files-files", "mesh-files", "sources"];
/// Threads that are restarted.
const RESTARTED_THREADS: [&str; 1] = ["follow-files"];

/// The environment: as many tasks as possible run.
const VARIABLES: [(&str, &str); 7] = [
    ("POD_NAME", "sluiced-0"),
    ("ENABLE_LEADER_ELECTION", "true"),
    ("CA_TRUSTED_NODE_ACCOUNTS", "kube-system/node"),
    ("EXTERNAL_ISTIOD", "true"),
    ("ISTIO_MULTIROOT_MESH", "true"),
    ("PILOT_ENABLE_AMBIENT", "true"),
    ("PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS", "true"),
];

fn variable(name: &str) -> Option<String> {
    VARIABLES.into_iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.to_owned())
}

/// A cluster, and a directory as a second one.
struct Mesh {
    api: ApiServer,
    directory: TempDir,
    log: LogControl,
}

impl Mesh {
    async fn start() -> Self {
        let (api, directory) = (ApiServer::start().await.expect("a server"), tempfile::tempdir().expect("a directory"));
        let path = |name: &str| directory.path().join(name);
        api.write_kubeconfig(&path("kubeconfig")).expect("written");
        for name in ["files", "mesh"] {
            std::fs::create_dir(path(name)).expect("created");
        }
        std::fs::write(path("mesh/mesh"), "{}").expect("written");
        api.define(
            ResourceKind {
                group: "networking.istio.io",
                versions: vec!["v1"],
                name: "VirtualService",
                plural: "virtualservices",
            },
            true,
        );
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
        Self { api, directory, log: log() }
    }

    fn config(&self) -> Config {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let arguments = [
            "sluiced".to_owned(),
            "discovery".to_owned(),
            format!("--kubeconfig={}", path("kubeconfig")),
            format!("--remoteConfigDir=files={}", path("files")),
            format!("--meshConfig={}", path("mesh/mesh")),
            "--grpcAddr=127.0.0.1:0".to_owned(),
            "--httpAddr=127.0.0.1:0".to_owned(),
            "--monitoringAddr=127.0.0.1:0".to_owned(),
            "--secureGRPCAddr=127.0.0.1:0".to_owned(),
            "--httpsAddr=127.0.0.1:0".to_owned(),
            "--shutdownDuration=5s".to_owned(),
        ];
        let (line, unknown) = CommandLine::parse_lenient(arguments).expect("a command line");
        Config::new(line.discovery, &unknown, variable).expect("valid").with_environment(variable)
    }

    /// Runs the control plane until `end` returns, or it fails. Returns the failure, and the reasons why it is not ready.
    async fn run(&self, end: impl AsyncFnOnce()) -> (Option<String>, Vec<String>) {
        let (mut config, metrics) = (self.config(), ListenMetrics::default());
        let mut listeners = Listeners::bind(&config, &metrics).await.expect("free ports");
        let source = OpenedSource::open(&mut config).expect("mesh files");
        let graph_options = source.graph_options(&config);
        let stop = CancellationToken::new();
        let http_runtime = DedicatedRuntime::new("http", || {}).expect("threads");
        let mut app = App::new(config, graph_options, self.log.clone(), stop.clone(), &metrics, http_runtime);
        let admin = app.admin.clone();
        app.serve_admin(&mut listeners);
        let ending = async {
            until("it is ready", || admin.readiness.pending().is_empty().then_some(())).await;
            until("it leads", || self.holders().iter().any(|holder| !holder.is_empty()).then_some(())).await;
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
    let mesh = Mesh::start().await;
    let (failure, _) = mesh.run(async || restart_each_task().await).await;
    assert_eq!(failure, None, "the process has continued");
    for task in END_PROCESS {
        let ended = mesh.run(async || {
            until(&format!("{task} runs"), || faults::running().contains_key(task).then_some(())).await;
            faults::inject_panic(task);
            std::future::pending().await
        });
        check_end(&mesh, task, ended.await).await;
    }
    for thread in END_PROCESS_THREADS {
        faults::inject_panic(thread);
        let ended = mesh.run(async || std::future::pending().await);
        check_end(&mesh, thread, ended.await).await;
    }
}

/// Injects a panic into each task that is restarted.
async fn restart_each_task() {
    for task in RESTARTED {
        until(&format!("{task} runs"), || faults::running().contains_key(task).then_some(())).await;
    }
    let expected: BTreeMap<&str, Reaction> = [
        (&RESTARTED[..], Reaction::TaskRestarts),
        (&END_PROCESS, Reaction::TaskEndsProcess),
        (&END_PROCESS_THREADS, Reaction::ThreadEnds),
        (&RESTARTED_THREADS, Reaction::ThreadRestarts),
    ]
    .into_iter()
    .flat_map(|(tasks, reaction)| tasks.iter().map(move |task| (*task, reaction)))
    .collect();
    for (task, reaction) in faults::running() {
        if task == "files-walk" {
            // A short part of the work of a thread, which repeats it.
            continue;
        }
        let expected = if task.starts_with("watch of ") { Some(&Reaction::TaskRestarts) } else { expected.get(&*task) };
        assert_eq!(Some(&reaction), expected, "task {task} is not in a list of this file");
    }
    for task in RESTARTED {
        // One after the other, because some tasks run as a part of another one.
        faults::inject_panic(task);
        until(&format!("{task} is restarted"), || (restarts(task) > 0).then_some(())).await;
        until(&format!("{task} runs"), || faults::running().contains_key(task).then_some(())).await;
    }
}
