//! A controller of the Kubernetes API: informers of Services and Pods, and a condition `EndpointsReady` in the status of each
//! Service.
//!
//! `KUBECONFIG=FILE cargo run -p sluice-engine --example status_controller` runs until it is interrupted, as one of several
//! replicas that hold a Lease in the namespace `default`. Without `KUBECONFIG` it runs with an API server of the process, and
//! ends.

#![expect(clippy::disallowed_methods, reason = "an example reads its environment")]
#![expect(clippy::print_stdout, reason = "an example prints what it shows")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::json;
use sluice_controller::{Api, Election, Informer, KubeOptions, Lock, StatusWriter, WatchStates, connect};
use sluice_engine::{Engine, EngineOptions, Input, Labeled, NamespacedName, Published, RecordFilter, StatusChange};
use tokio_util::sync::CancellationToken;

/// The type of the condition that the controller writes.
const CONDITION: &str = "EndpointsReady";

/// The fields of a Service that the controller reads.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ServiceRecord {
    selector: BTreeMap<String, String>,
    /// The condition that the Service has now.
    condition: Option<Condition>,
}

/// The fields of a Pod that the controller reads.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct PodRecord {
    labels: BTreeMap<String, String>,
    is_ready: bool,
}

impl Labeled for PodRecord {
    fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.labels()
    }
}

/// The condition, in the form of the API.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Condition {
    status: String,
    message: String,
}

/// The part of a status that the controller writes.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ServiceStatus {
    conditions: Vec<StatusCondition>,
}

#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct StatusCondition {
    r#type: &'static str,
    #[serde(flatten)]
    condition: Condition,
    reason: &'static str,
    #[serde(rename = "lastTransitionTime")]
    last_transition_time: &'static str,
}

impl ServiceStatus {
    fn new(condition: Condition) -> Self {
        // A real controller would set the time when it writes: a closure of the graph has no clock.
        let condition = StatusCondition {
            r#type: CONDITION,
            condition,
            reason: "Counted",
            last_transition_time: "2026-01-01T00:00:00Z",
        };
        Self { conditions: vec![condition] }
    }
}

fn service_record(service: Service) -> Option<ServiceRecord> {
    let selector = service.spec.and_then(|spec| spec.selector).unwrap_or_default();
    let conditions = service.status.and_then(|status| status.conditions).unwrap_or_default();
    let condition = conditions.into_iter().find(|condition| condition.type_ == CONDITION);
    let condition = condition.map(|it| Condition { status: it.status, message: it.message });
    // A Service without a selector has endpoints of its own.
    (!selector.is_empty()).then_some(ServiceRecord { selector, condition })
}

fn pod_record(pod: Pod) -> Option<PodRecord> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_ready = conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True");
    Some(PodRecord { labels: pod.labels().clone(), is_ready })
}

/// The inputs and the result of the graph.
struct Collections {
    services: Input<NamespacedName, ServiceRecord>,
    pods: Input<NamespacedName, PodRecord>,
    changes: Published<NamespacedName, StatusChange<ServiceStatus>>,
}

fn start() -> (Engine, Collections) {
    Engine::start(EngineOptions::default(), |builder| {
        builder.dataflow("services", |g| {
            let (services_in, services) = g.input::<NamespacedName, ServiceRecord>("services");
            let (pods_in, pods) = g.input::<NamespacedName, PodRecord>("pods");
            let by_namespace = pods.by_namespace("pods/by-namespace");
            let (statuses, _) = services.derive_with_status("ready", |deps| {
                let pods = deps.by(&by_namespace);
                move |cx, name: &NamespacedName, service: &ServiceRecord| {
                    let selected = RecordFilter::all().labels(service.selector.clone());
                    let pods = cx.fetch_by(&pods, &name.namespace, &selected);
                    let ready = pods.iter().filter(|(_, pod)| pod.is_ready).count();
                    let status = if ready > 0 { "True" } else { "False" }.to_owned();
                    let message = format!("{ready} of {} pods are ready", pods.len());
                    (Some(ServiceStatus::new(Condition { status, message })), None::<()>)
                }
            });
            // Only what differs from what the Service has is written.
            let changes = services
                .status_changes("changes", &statuses, |_, service| service.condition.clone().map(ServiceStatus::new));
            Collections { services: services_in, pods: pods_in, changes: changes.publish() }
        })
    })
}

/// Runs the controller until `stop` is cancelled.
async fn control(client: kube::Client, election: Election, stop: CancellationToken) {
    let (engine, Collections { services, pods, changes }) = start();
    let options = KubeOptions::default();
    let api = Api::new(client.clone(), "cluster".into(), options, WatchStates::default());
    let writing = election.lead(Lock::lease("sluice-example"), stop.clone(), |term| {
        StatusWriter::<Service, _>::new(&engine, &changes, client.clone(), "sluice-example").run(term)
    });
    tokio::join!(
        Informer::new(services, service_record).run(api.clone(), options, stop.clone()),
        Informer::new(pods, pod_record).with_fields("status.phase!=Failed").run(api, options, stop.clone()),
        writing,
    );
}

/// Runs the example with an API server of the process. Returns the messages of the condition.
pub(crate) async fn run() -> Result<Vec<String>, Box<dyn Error>> {
    let server = sluice_testkit::api_server::ApiServer::start().await?;
    let pod = |name: &str, ready: &str| {
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]});
        let metadata = json!({"name": name, "namespace": "shop", "labels": {"app": "web"}});
        server.apply(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}));
    };
    server.apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    }));
    pod("web-1", "True");
    let client = server.client()?;
    let stop = CancellationToken::new();
    let election = Election::new(Some(client.clone()), "default".into(), "example", "");
    let controlling = tokio::spawn(control(client, election, stop.clone()));

    let message = || {
        let service = server.get("", "services", "shop", "web")?;
        Some(service.pointer("/status/conditions/0/message")?.as_str()?.to_owned())
    };
    let mut messages = vec![wait_for(&message, "1 of 1 pods are ready").await?];
    pod("web-2", "False");
    messages.push(wait_for(&message, "1 of 2 pods are ready").await?);
    server.delete("pods", "shop", "web-1");
    messages.push(wait_for(&message, "0 of 1 pods are ready").await?);
    stop.cancel();
    controlling.await?;
    Ok(messages)
}

async fn wait_for(message: &impl Fn() -> Option<String>, expected: &str) -> Result<String, String> {
    for _ in 0..3000 {
        if message().as_deref() == Some(expected) {
            return Ok(expected.to_owned());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(format!("not reached: {expected}; the message is {:?}", message()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Some(kubeconfig) = std::env::var_os("KUBECONFIG") else {
        run().await?.iter().for_each(|message| println!("{message}"));
        return Ok(());
    };
    let client = connect(Some(Path::new(&kubeconfig))).await?;
    let pod = std::env::var("HOSTNAME").unwrap_or_default();
    let election = Election::new(Some(client.clone()), "default".into(), &pod, "");
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    tokio::spawn(async move {
        // Without signals, the controller runs until its process is killed.
        if tokio::signal::ctrl_c().await.is_ok() {
            stopper.cancel();
        }
    });
    control(client, election, stop).await;
    Ok(())
}
