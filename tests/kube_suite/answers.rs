//! Answers of the API server that clients depend on. These tests use no part of the control plane: they show that the answers
//! of the fake are those of a real one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use http::{Method, Request, header};
use kube::client::Body;
use serde_json::{Value, json};
use sluice_testkit::kube_api::{KubeApi, Route};
use sluice_testkit::wait::until_async;

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

/// A client that returns every response.
struct Caller(kube::Client);

impl Caller {
    async fn new(api: &KubeApi) -> Self {
        Self(kube::Client::try_from(api.config(Route::Direct).await).expect("a client"))
    }

    async fn send(&self, method: Method, uri: &str, content_type: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, content_type);
        let response = self.0.send(request.body(Body::from(body)).expect("a request")).await.expect("a response");
        let status = response.status().as_u16();
        let body = response.into_body().collect_bytes().await.expect("a body");
        (status, serde_json::from_slice(&body).expect("JSON"))
    }

    async fn get(&self, uri: &str) -> (u16, Value) {
        self.send(Method::GET, uri, JSON, &Value::Null).await
    }

    async fn post(&self, uri: &str, object: &Value) -> (u16, Value) {
        self.send(Method::POST, uri, JSON, object).await
    }

    async fn put(&self, uri: &str, object: &Value) -> (u16, Value) {
        self.send(Method::PUT, uri, JSON, object).await
    }

    async fn delete(&self, uri: &str) -> (u16, Value) {
        self.send(Method::DELETE, uri, JSON, &Value::Null).await
    }

    /// The next `count` events of a watch, except bookmarks.
    async fn events(&self, uri: &str, count: usize) -> Vec<Value> {
        let request = Request::get(uri).body(Vec::new()).expect("a request");
        let mut lines = self.0.request_stream(request).await.expect("a watch").lines();
        let mut events = Vec::new();
        while events.len() < count {
            let line = lines.try_next().await.expect("a line").expect("the watch is open");
            let event: Value = serde_json::from_str(&line).expect("an event");
            if event["type"] != "BOOKMARK" {
                events.push(event);
            }
        }
        events
    }
}

/// The code and the reason of a refusal.
fn refusal((status, answer): &(u16, Value)) -> (u16, &str) {
    assert_eq!((&answer["kind"], &answer["code"]), (&json!("Status"), &json!(status)), "{answer}");
    (*status, answer["reason"].as_str().expect("a reason"))
}

fn config_map(namespace: &str, name: &str, data: Value) -> Value {
    let metadata = json!({"namespace": namespace, "name": name});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().expect("a resourceVersion")
}

with_api_server!(writes_have_the_codes_and_reasons_of_the_api, shared);
async fn writes_have_the_codes_and_reasons_of_the_api(api: KubeApi) {
    let (n, caller) = (&*api.namespace("n").await, Caller::new(&api).await);
    let collection = format!("/api/v1/namespaces/{n}/configmaps");
    let one = format!("{collection}/one");
    assert_eq!(refusal(&caller.get(&one).await), (404, "NotFound"));
    assert_eq!(refusal(&caller.put(&one, &config_map(n, "one", json!({}))).await), (404, "NotFound"));

    let (status, created) = caller.post(&collection, &config_map(n, "one", json!({"a": "1", "b": "1"}))).await;
    assert_eq!(status, 201, "{created}");
    let uid = created["metadata"]["uid"].as_str().expect("a UID");
    assert!(!uid.is_empty() && created["metadata"]["creationTimestamp"].is_string(), "{created}");
    let again = caller.post(&collection, &config_map(n, "one", json!({}))).await;
    assert_eq!(refusal(&again), (409, "AlreadyExists"));

    let mut changed = created.clone();
    changed["data"]["a"] = "2".into();
    let (status, updated) = caller.put(&one, &changed).await;
    assert_eq!((status, &updated["data"]["a"], &updated["metadata"]["uid"]), (200, &json!("2"), &json!(uid)));
    assert_ne!(version(&updated), version(&created));
    assert_eq!(refusal(&caller.put(&one, &changed).await), (409, "Conflict"), "the version is an earlier one");
    let (status, same) = caller.put(&one, &updated).await;
    assert_eq!((status, version(&same)), (200, version(&updated)), "an equal object has the same version");
    let (status, forced) = caller.put(&one, &config_map(n, "one", json!({"b": "3"}))).await;
    assert_eq!((status, &forced["data"]), (200, &json!({"b": "3"})), "an object without a version replaces any");
    assert_eq!(forced["metadata"]["uid"], uid);

    let patch = json!({"data": {"b": null, "c": "4"}});
    let (status, patched) = caller.send(Method::PATCH, &one, MERGE_PATCH, &patch).await;
    assert_eq!((status, &patched["data"]), (200, &json!({"c": "4"})));
    assert_eq!(caller.delete(&one).await.0, 200);
    assert_eq!(refusal(&caller.delete(&one).await), (404, "NotFound"));
    let patch = caller.send(Method::PATCH, &one, MERGE_PATCH, &patch).await;
    assert_eq!(refusal(&patch), (404, "NotFound"));

    let mut generated = config_map(n, "", json!({}));
    generated["metadata"] = json!({"namespace": n, "generateName": "made-"});
    let (status, created) = caller.post(&collection, &generated).await;
    let name = created["metadata"]["name"].as_str().expect("a name");
    assert!(status == 201 && name.len() > "made-".len() && name.starts_with("made-"), "{status} {created}");
}

with_api_server!(status_is_written_by_its_subresource_only, shared);
async fn status_is_written_by_its_subresource_only(api: KubeApi) {
    let (n, caller) = (&*api.namespace("n").await, Caller::new(&api).await);
    api.define("WorkloadEntry").await;
    let collection = format!("/apis/networking.istio.io/v1/namespaces/{n}/workloadentries");
    let (one, of_status) = (format!("{collection}/one"), format!("{collection}/one/status"));
    let conditions = |text: &str| json!({"conditions": [{"type": "Healthy", "status": text}]});
    let object = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry", "metadata": {"namespace": n, "name": "one"},
        "spec": {"address": "192.0.2.1"}, "status": conditions("True"),
    });
    let (status, created) = caller.post(&collection, &object).await;
    assert_eq!((status, created.get("status")), (201, None), "{created}");
    assert_eq!(created["metadata"]["generation"], 1);

    let mut sent = created.clone();
    (sent["status"], sent["spec"]["address"]) = (conditions("False"), "192.0.2.9".into());
    let (status, written) = caller.put(&of_status, &sent).await;
    assert_eq!((status, &written["status"]), (200, &conditions("False")), "{written}");
    assert_eq!((&written["spec"]["address"], &written["metadata"]["generation"]), (&json!("192.0.2.1"), &json!(1)));
    assert_eq!(refusal(&caller.put(&of_status, &sent).await), (409, "Conflict"));

    let mut sent = written.clone();
    (sent["status"], sent["spec"]["address"]) = (conditions("True"), "192.0.2.2".into());
    let (status, written) = caller.put(&one, &sent).await;
    assert_eq!((status, &written["status"]), (200, &conditions("False")), "{written}");
    assert_eq!((&written["spec"]["address"], &written["metadata"]["generation"]), (&json!("192.0.2.2"), &json!(2)));

    let patch = |expected: &Value| {
        json!([
            {"op": "test", "path": "/status/conditions", "value": expected["conditions"]},
            {"op": "replace", "path": "/status/conditions", "value": []},
        ])
    };
    let stale = caller.send(Method::PATCH, &of_status, JSON_PATCH, &patch(&conditions("True"))).await;
    assert_eq!(refusal(&stale), (422, "Invalid"));
    let (status, patched) = caller.send(Method::PATCH, &of_status, JSON_PATCH, &patch(&conditions("False"))).await;
    assert_eq!((status, &patched["status"]["conditions"]), (200, &json!([])), "{patched}");
}

with_api_server!(a_signing_request_is_approved_by_its_subresource_only, shared);
async fn a_signing_request_is_approved_by_its_subresource_only(api: KubeApi) {
    let caller = Caller::new(&api).await;
    let collection = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let name = api.own_name("csr");
    let (one, approval, of_status) = (
        format!("{collection}/{name}"),
        format!("{collection}/{name}/approval"),
        format!("{collection}/{name}/status"),
    );
    let key = rcgen::KeyPair::generate().expect("a key");
    let request = rcgen::CertificateParams::default().serialize_request(&key).expect("a request");
    let request = STANDARD.encode(request.pem().expect("the PEM text"));
    let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "Test", "message": "m"}]);
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": request, "signerName": "example.com/no-signer", "usages": ["client auth"]},
        "status": {"conditions": condition("Approved")},
    });
    let types = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        conditions.map(|it| it["type"].as_str().expect("a type").to_owned()).collect::<Vec<_>>()
    };
    let (status, created) = caller.post(collection, &object).await;
    assert_eq!((status, types(&created)), (201, vec![]), "{created}");
    let with = |object: &Value, kinds: &[&str]| {
        let mut object = object.clone();
        let conditions = kinds.iter().map(|kind| condition(kind)[0].clone());
        object["status"]["conditions"] = conditions.collect();
        object
    };
    let unapproved = caller.put(&of_status, &with(&created, &["Approved"])).await;
    assert_eq!(refusal(&unapproved), (422, "Invalid"));
    let (status, approved) = caller.put(&approval, &with(&created, &["Approved"])).await;
    assert_eq!((status, types(&approved)), (200, vec!["Approved".to_owned()]), "{approved}");
    let unapproved = caller.put(&of_status, &with(&approved, &["Failed"])).await;
    assert_eq!(refusal(&unapproved), (422, "Invalid"));
    let (status, failed) = caller.put(&of_status, &with(&approved, &["Approved", "Failed"])).await;
    assert_eq!((status, types(&failed)), (200, vec!["Approved".to_owned(), "Failed".to_owned()]), "{failed}");
    assert_eq!(caller.delete(&one).await.0, 200);
}

with_api_server!(lists_and_watches_have_the_form_of_the_api, shared);
async fn lists_and_watches_have_the_form_of_the_api(api: KubeApi) {
    let (n, caller) = (&*api.namespace("n").await, Caller::new(&api).await);
    let collection = format!("/api/v1/namespaces/{n}/configmaps");
    for name in ["one", "two", "three"] {
        let mut object = config_map(n, name, json!({}));
        object["metadata"]["labels"] = json!({"kind": "number"});
        assert_eq!(caller.post(&collection, &object).await.0, 201);
    }
    let selected = format!("{collection}?labelSelector=kind%3Dnumber");
    let names = |list: &Value| {
        let items = list["items"].as_array().into_iter().flatten();
        items.map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let (_, first) = caller.get(&format!("{selected}&limit=2")).await;
    assert_eq!((&first["kind"], &first["apiVersion"]), (&json!("ConfigMapList"), &json!("v1")));
    assert_eq!((names(&first), first["items"][0].get("kind")), (vec!["one".to_owned(), "three".to_owned()], None));
    let token = first["metadata"]["continue"].as_str().expect("there is more");
    let (_, second) = caller.get(&format!("{selected}&limit=2&continue={token}")).await;
    assert_eq!((names(&second), second["metadata"].get("continue")), (vec!["two".to_owned()], None));
    assert_eq!(version(&second), version(&first), "the pages are of one state");

    let relabel = |kind: &str| json!({"metadata": {"labels": {"kind": kind}}});
    let one = format!("{collection}/one");
    for kind in ["other", "number"] {
        assert_eq!(caller.send(Method::PATCH, &one, MERGE_PATCH, &relabel(kind)).await.0, 200);
    }
    let (_, two) =
        caller.send(Method::PATCH, &format!("{collection}/two"), MERGE_PATCH, &json!({"data": {"a": "1"}})).await;
    assert_eq!(caller.delete(&format!("{collection}/three")).await.0, 200);
    let watch = format!("{selected}&watch=true&allowWatchBookmarks=true&resourceVersion={}", version(&second));
    let events = caller.events(&watch, 4).await;
    let shown = |event: &Value| format!("{} {}", event["type"], event["object"]["metadata"]["name"]).replace('"', "");
    let shown: Vec<String> = events.iter().map(shown).collect();
    assert_eq!(shown, ["DELETED one", "ADDED one", "MODIFIED two", "DELETED three"]);
    assert_eq!(events[0]["object"]["kind"], "ConfigMap");
    assert_eq!(version(&events[2]["object"]), version(&two));
    assert_ne!(version(&events[3]["object"]), version(&second), "the version of a deletion is its own");
}

with_api_server!(an_expired_watch_gets_an_event_with_the_code_410, own);
async fn an_expired_watch_gets_an_event_with_the_code_410(api: KubeApi) {
    let (n, caller) = (&*api.namespace("n").await, Caller::new(&api).await);
    let collection = format!("/api/v1/namespaces/{n}/configmaps");
    let (_, list) = caller.get(&format!("{collection}?limit=1")).await;
    assert_eq!(caller.post(&collection, &config_map(n, "one", json!({}))).await.0, 201);
    api.compact().await;
    // The API server that starts again serves the kind when it has read it.
    until_async("the kind is served", async || (caller.get(&collection).await.0 == 200).then_some(())).await;
    let watch = format!("{collection}?watch=true&resourceVersion={}", version(&list));
    let events = caller.events(&watch, 1).await;
    assert_eq!((&events[0]["type"], &events[0]["object"]["kind"]), (&json!("ERROR"), &json!("Status")));
    assert_eq!((&events[0]["object"]["code"], &events[0]["object"]["reason"]), (&json!(410), &json!("Expired")));
}
