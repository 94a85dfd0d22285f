//! Statuses are written while a replica leads (K14).

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use serde::Serialize;
use serde_json::{Value, json};
use sluice_controller::{Api, Election, Informer, KubeOptions, Lock, StatusWriter, WatchStates};
use sluice_engine::{Engine, EngineOptions, NamespacedName, Published, StatusChange};
use sluice_testkit::api_server::ApiServer;
use sluice_testkit::wait::until;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The part of the status of a Service that the controller writes.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Status {
    #[serde(rename = "loadBalancer")]
    load_balancer: LoadBalancer,
}

#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct LoadBalancer {
    ingress: Vec<Ingress>,
}

#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Ingress {
    hostname: String,
}

impl Status {
    fn new(hostname: String) -> Self {
        Self { load_balancer: LoadBalancer { ingress: vec![Ingress { hostname }] } }
    }
}

/// The port of a Service, and the status that it has.
type Record = (i32, Option<Status>);
type Changes = Published<NamespacedName, StatusChange<Status>>;

fn record(service: Service) -> Option<Record> {
    let port = service.spec?.ports?.first()?.port;
    let ingress = service.status.and_then(|status| status.load_balancer?.ingress);
    Some((port, ingress.and_then(|list| list.first()?.hostname.clone()).map(Status::new)))
}

/// The host name of a Service contains its port. Port 1 has none.
fn start() -> (Engine, (sluice_engine::Input<NamespacedName, Record>, Changes)) {
    Engine::start(EngineOptions::default(), |builder| {
        builder.dataflow("main", |g| {
            let (input, services) = g.input::<NamespacedName, Record>("services");
            let (statuses, _) = services.derive_with_status("hostnames", |_| {
                |_, _, (port, _): &Record| ((*port != 1).then(|| Status::new(format!("port-{port}"))), None::<()>)
            });
            (input, services.status_changes("changes", &statuses, |_, (_, is)| is.clone()).publish())
        })
    })
}

/// Runs a replica of the controller.
fn control(server: &ApiServer, replica: &str, stop: &CancellationToken) -> JoinHandle<()> {
    let client = server.client().expect("a client");
    let election =
        Election::new(Some(client.clone()), "default".into(), replica, "").with_lease_duration(Duration::from_secs(3));
    let options = KubeOptions::default();
    let api = Api::new(client.clone(), "cluster".into(), options, WatchStates::default());
    let stop = stop.clone();
    tokio::spawn(async move {
        let (engine, (input, changes)) = start();
        let leading = election.lead(Lock::lease("hostnames"), stop.clone(), |term| {
            StatusWriter::<Service, _>::new(&engine, &changes, client.clone(), "hostnames").run(term)
        });
        tokio::join!(Informer::new(input, record).run(api, options, stop.clone()), leading);
    })
}

fn service(name: &str, port: u16, status: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"ports": [{"port": port}]}, "status": status,
    })
}

fn status(server: &ApiServer, name: &str) -> Value {
    server.get("", "services", "shop", name).map(|mut object| object["status"].take()).unwrap_or_default()
}

async fn status_is(server: &ApiServer, name: &str, expected: Value) {
    until(&format!("{name}: {expected}"), || (status(server, name) == expected).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_are_written_corrected_and_removed_by_the_replica_that_leads() {
    let server = ApiServer::start().await.expect("it starts");
    let written = |port: u16| json!({"loadBalancer": {"ingress": [{"hostname": format!("port-{port}")}]}});
    let foreign = json!([{
        "type": "Other", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    server.apply(service("web", 80, json!({"conditions": foreign})));
    server.apply(service("as-it-should-be", 81, written(81)));
    server.apply(service("none", 1, json!({"conditions": foreign})));
    let (stop_first, stop_second) = (CancellationToken::new(), CancellationToken::new());
    let first = control(&server, "first", &stop_first);

    // Fields of other writers stay.
    let mut expected = written(80);
    expected["conditions"] = foreign.clone();
    status_is(&server, "web", expected.clone()).await;
    let second = control(&server, "second", &stop_second);
    // Another writer replaces the status.
    let mut replaced = written(9);
    replaced["conditions"] = foreign.clone();
    server.apply(service("web", 80, replaced));
    status_is(&server, "web", expected).await;

    // The next replica leads when the first one ends.
    stop_first.cancel();
    first.await.expect("it ends");
    let mut present = written(80);
    present["conditions"] = foreign.clone();
    server.apply(service("web", 1, present));
    status_is(&server, "web", json!({"conditions": foreign})).await;
    assert_eq!(status(&server, "as-it-should-be"), written(81));
    assert_eq!(status(&server, "none"), json!({"conditions": foreign}));
    stop_second.cancel();
    second.await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_writes_are_retried_and_deleted_objects_are_forgotten() {
    let server = ApiServer::start().await.expect("it starts");
    let stop = CancellationToken::new();
    let controlling = control(&server, "only", &stop);
    server.apply(service("first", 80, json!({})));
    status_is(&server, "first", json!({"loadBalancer": {"ingress": [{"hostname": "port-80"}]}})).await;
    server.forbid("services/status", true);
    let patches = || server.count("patch", "services/status");
    let before = patches();
    server.apply(service("second", 81, json!({})));
    until("a write is refused", || (patches() > before).then_some(())).await;
    server.forbid("services/status", false);
    status_is(&server, "second", json!({"loadBalancer": {"ingress": [{"hostname": "port-81"}]}})).await;
    server.delete("services", "shop", "second");
    stop.cancel();
    controlling.await.expect("it ends");
}
