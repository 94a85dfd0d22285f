//! Tests of runs and of their undo, with an API server in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value as Json, json};

use super::*;
use crate::object::KubeObject;
use crate::plan::ObjectChange;

const CONFIG_MAPS: &str = "/api/v1/namespaces/mesh/configmaps";

/// Objects by path, and the writes that were received.
#[derive(Debug, Default)]
struct Stored {
    objects: BTreeMap<String, Json>,
    writes: Vec<String>,
    /// The end of the path of an object that cannot be written.
    refused: &'static str,
    /// Number of further writes that fail because something else has changed the object meanwhile.
    conflicts: usize,
}

impl Stored {
    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Json) {
        if path == "/api/v1" {
            let resources = json!([{"name": "configmaps", "kind": "ConfigMap", "namespaced": true}]);
            return (200, json!({"kind": "APIResourceList", "resources": resources}));
        }
        if *method != Method::GET {
            self.writes.push(format!("{method} {}", path.trim_start_matches(CONFIG_MAPS)));
        }
        let missing = (404, json!({"kind": "Status", "code": 404, "message": "not found"}));
        let body: Json = serde_json::from_slice(body).unwrap_or_default();
        if *method != Method::GET && !self.refused.is_empty() && path.ends_with(self.refused) {
            return (422, json!({"kind": "Status", "code": 422, "message": "invalid"}));
        }
        if *method == Method::PUT && self.conflicts > 0 {
            self.conflicts -= 1;
            return (409, json!({"kind": "Status", "code": 409, "message": "the object has been modified"}));
        }
        match *method {
            Method::GET => self.objects.get(path).map_or(missing, |object| (200, object.clone())),
            Method::DELETE => self.objects.remove(path).map_or(missing, |_| (200, json!({"kind": "Status"}))),
            _ => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                self.objects.insert(format!("{CONFIG_MAPS}/{name}"), body.clone());
                (200, body)
            }
        }
    }
}

/// A cluster with ConfigMaps of these names and values.
fn cluster(values: &[(&str, &str)], refused: &'static str) -> (TargetCluster, Arc<Mutex<Stored>>) {
    let objects = values.iter().map(|(name, value)| (format!("{CONFIG_MAPS}/{name}"), config_map(name, value)));
    let stored = Arc::new(Mutex::new(Stored { objects: objects.collect(), refused, ..Stored::default() }));
    let shared = stored.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let shared = shared.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let (code, answer) = shared.lock().expect("no panic").answer(&parts.method, parts.uri.path(), &body);
            let response = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, tower::BoxError>(response?)
        }
    });
    (TargetCluster::new(Client::new(service, "default")), stored)
}

fn config_map(name: &str, value: &str) -> Json {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "mesh"}, "data": {"key": value}})
}

fn object(name: &str, value: &str) -> KubeObject {
    KubeObject::new(config_map(name, value)).expect("an object")
}

fn change(name: &str, component: Component, action: Action) -> ObjectChange {
    ObjectChange { component, object: object(name, "new"), action }
}

fn changed(name: &str) -> Action {
    Action::Change { before: Box::new(object(name, "old")), after: Box::new(object(name, "new")) }
}

/// A change, a creation and a deletion, of a gateway before those of the control plane.
fn plan() -> ChangePlan {
    ChangePlan {
        changes: vec![
            change("gateway", Component::IngressGateway, changed("gateway")),
            change("changed", Component::Pilot, changed("changed")),
            change("created", Component::Pilot, Action::Create),
            change("kept", Component::Pilot, Action::Keep),
            change("obsolete", Component::Pilot, Action::Delete(Box::new(object("obsolete", "old")))),
        ],
    }
}

const BEFORE: [(&str, &str); 4] = [("changed", "old"), ("gateway", "old"), ("kept", "new"), ("obsolete", "old")];

async fn run(cluster: &TargetCluster) -> (Result<(), InstallError>, Journal, Vec<String>) {
    let (mut journal, mut lines) = (Journal::default(), Vec::new());
    let result =
        execute(&plan(), cluster, Duration::from_secs(1), &mut journal, &mut |line| lines.push(line.to_owned())).await;
    (result, journal, lines)
}

fn values(stored: &Mutex<Stored>) -> Vec<(String, String)> {
    let stored = stored.lock().expect("no panic");
    let value = |object: &Json| object["data"]["key"].as_str().unwrap_or_default().to_owned();
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    stored.objects.iter().map(|(path, object)| (name(path), value(object))).collect()
}

fn owned(values: &[(&str, &str)]) -> Vec<(String, String)> {
    values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn components_are_applied_in_order_and_deletions_come_last() {
    let (cluster, stored) = cluster(&BEFORE, "");
    let (result, _, lines) = run(&cluster).await;
    assert!(result.is_ok(), "{result:?}");
    let expected = ["PATCH /changed", "PATCH /created", "PATCH /gateway", "DELETE /obsolete"];
    assert_eq!(stored.lock().expect("no panic").writes, expected);
    let expected = [
        "control plane: 2 objects applied",
        "control plane: ready",
        "ingress gateway: 1 object applied",
        "ingress gateway: ready",
        "deleted ConfigMap mesh/obsolete",
    ];
    assert_eq!(lines, expected);
    assert_eq!(values(&stored), owned(&[("changed", "new"), ("created", "new"), ("gateway", "new"), ("kept", "new")]));
}

#[tokio::test]
async fn a_refused_object_ends_the_run_and_the_others_are_restored() {
    let (cluster, stored) = cluster(&BEFORE, "/gateway");
    let (result, journal, _) = run(&cluster).await;
    let error = result.expect_err("the gateway is refused").to_string();
    assert_eq!(error, "ConfigMap mesh/gateway: 422: invalid");
    stored.lock().expect("no panic").refused = "";
    let undone = journal.undo(&cluster, &mut |_| {}).await;
    assert_eq!((undone.restored, undone.removed, undone.failures.len()), (2, 1, 0));
    assert_eq!(values(&stored), owned(&BEFORE));
    // The last write is reverted first.
    assert_eq!(stored.lock().expect("no panic").writes[3..], ["PUT /gateway", "DELETE /created", "PUT /changed"]);
}

#[tokio::test]
async fn a_complete_run_is_undone_and_deleted_objects_are_created_again() {
    let (cluster, stored) = cluster(&BEFORE, "");
    let (_, journal, _) = run(&cluster).await;
    let mut lines = Vec::new();
    let undone = journal.undo(&cluster, &mut |line| lines.push(line.to_owned())).await;
    assert_eq!((undone.restored, undone.removed), (3, 1));
    assert_eq!(values(&stored), owned(&BEFORE));
    assert_eq!(lines[0], "undo: restored ConfigMap mesh/obsolete");
}

#[tokio::test]
async fn a_failure_of_the_undo_is_reported_and_does_not_stop_it() {
    let (cluster, stored) = cluster(&BEFORE, "");
    let (_, journal, _) = run(&cluster).await;
    stored.lock().expect("no panic").refused = "/gateway";
    let undone = journal.undo(&cluster, &mut |_| {}).await;
    let failures: Vec<String> = undone.failures.iter().map(ToString::to_string).collect();
    assert_eq!(failures, ["ConfigMap mesh/gateway: 422: invalid"]);
    assert_eq!((undone.restored, undone.removed), (2, 1));
    assert_eq!(values(&stored), owned(&[("changed", "old"), ("gateway", "new"), ("kept", "new"), ("obsolete", "old")]));
}

#[tokio::test]
async fn an_object_that_a_controller_writes_meanwhile_is_restored() {
    let (cluster, stored) = cluster(&BEFORE, "");
    let (_, journal, _) = run(&cluster).await;
    stored.lock().expect("no panic").conflicts = 3;
    let undone = journal.undo(&cluster, &mut |_| {}).await;
    assert_eq!((undone.restored, undone.removed, undone.failures.len()), (3, 1, 0));
    assert_eq!(values(&stored), owned(&BEFORE));
}

#[tokio::test]
async fn an_object_that_changes_all_the_time_is_a_failure_of_the_undo() {
    let (cluster, stored) = cluster(&BEFORE, "");
    let (_, journal, _) = run(&cluster).await;
    stored.lock().expect("no panic").conflicts = usize::MAX;
    let undone = journal.undo(&cluster, &mut |_| {}).await;
    let failures: Vec<String> = undone.failures.iter().map(ToString::to_string).collect();
    // The deleted object is created, which conflicts with nothing.
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert!(failures.iter().all(|failure| failure.contains("409: the object has been modified")), "{failures:?}");
}
