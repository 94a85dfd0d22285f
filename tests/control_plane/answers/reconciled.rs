//! The condition `Reconciled` of objects that ask for it: `sluiced` reads an API server, and proxies acknowledge or reject.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_model::label;
use sluice_parse::KINDS;
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, Update, connect};
use sluice_testkit::api_server::{ApiServer, ResourceKind};
use sluice_testkit::server::{Options, Sluiced};
use sluice_testkit::wait::until;
use tempfile::TempDir;
use tokio::sync::watch;

const GROUP: &str = "networking.istio.io";
/// Longer than the time in which a change has its condition.
const LONG_AFTER: Duration = Duration::from_secs(3);

struct Mesh {
    api: ApiServer,
    sluiced: Sluiced,
    _directory: TempDir,
}

impl Mesh {
    /// A mesh with a Service `ratings` and these VirtualServices of it.
    async fn start(routes: &[Value]) -> Self {
        let api = ApiServer::start().await.expect("a server");
        for info in KINDS.iter().filter(|info| info.is_istio()) {
            let (group, versions) = (info.group, info.versions.to_vec());
            api.define(ResourceKind { group, versions, name: info.name, plural: info.plural }, true);
        }
        for name in ["ratings", "reviews"] {
            api.apply(json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name},
                "spec": {"clusterIP": format!("10.0.0.{}", name.len()), "ports": [{"name": "http", "port": 80}]},
            }));
        }
        for route in routes {
            api.apply(route.clone());
        }
        let directory = tempfile::tempdir().expect("a directory");
        let kubeconfig = directory.path().join("kubeconfig");
        api.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
        let env = vec![("POD_NAME".to_owned(), "istiod-7".to_owned())];
        let options = Options { kubeconfig: Some(kubeconfig), env, ..Options::new(directory.path()) };
        let sluiced = Sluiced::start(&options).await.expect("it starts");
        Self { api, sluiced, _directory: directory }
    }

    /// Changes a VirtualService, as a user does: its status stays, and a new spec is a new generation.
    fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let before = self.api.get(GROUP, "virtualservices", "shop", name).expect("it exists");
        let mut object = before.clone();
        change(&mut object);
        if object["spec"] != before["spec"] {
            object["metadata"]["generation"] = (before["metadata"]["generation"].as_i64().unwrap_or(1) + 1).into();
        }
        self.api.apply(object);
    }

    fn conditions(&self, name: &str) -> Vec<Value> {
        let object = self.api.get(GROUP, "virtualservices", "shop", name).expect("it exists");
        object["status"]["conditions"].as_array().cloned().unwrap_or_default()
    }

    fn reconciled(&self, name: &str) -> Option<Value> {
        self.conditions(name).into_iter().find(|condition| condition["type"] == "Reconciled")
    }

    /// Waits for the condition of this generation with this reason.
    async fn condition(&self, name: &str, generation: i64, reason: &str) -> Value {
        until(&format!("{name}: generation {generation}: {reason}"), || {
            let found = self.reconciled(name)?;
            (found["observedGeneration"] == generation && found["reason"] == reason).then_some(found)
        })
        .await
    }

    /// Number of requests that write statuses.
    fn writes(&self) -> usize {
        self.api.count("patch", "virtualservices/status")
    }

    fn has_lock(&self) -> bool {
        self.api.get("coordination.k8s.io", "leases", "istio-system", "istio-status-leader").is_some()
    }

    async fn connect(&self, pod: &str) -> Proxy {
        Proxy::connect(&self.sluiced, pod).await
    }
}

/// A VirtualService of a service, with these annotations.
fn route(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": {"namespace": "shop", "name": name, "generation": 1, "annotations": annotations},
        "spec": {
            "hosts": [format!("{name}.shop.svc.cluster.local")],
            "http": [{"route": [{"destination": {"host": format!("{name}.shop.svc.cluster.local")}}]}],
        },
    })
}

fn asks() -> Value {
    json!({label::RECONCILED_CONDITION: "true"})
}

fn set_timeout(seconds: u32) -> impl Fn(&mut Value) {
    move |object| object["spec"]["http"][0]["timeout"] = format!("{seconds}s").into()
}

/// What a proxy answers to responses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Ack,
    Reject(&'static str),
    Withhold,
}

/// A connected sidecar with clusters and the routes of port 80.
struct Proxy {
    answer: watch::Sender<Answer>,
    received: watch::Receiver<usize>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    async fn connect(server: &Sluiced, pod: &str) -> Self {
        let node = json!({
            "id": format!("sidecar~10.0.9.9~{pod}.shop~shop.svc.cluster.local"),
            "metadata": {"NAME": pod, "NAMESPACE": "shop", "CLUSTER_ID": "Kubernetes"},
        });
        let channel = connect(server.grpc).await.expect("a connection");
        let identity = Identity::of_node(&node).expect("a node");
        let mut stream = AdsStream::open(channel, Protocol::Delta, identity).expect("a stream");
        stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new()).expect("sent");
        stream.subscribe(Kind::Rds.type_url(), &["80".to_owned()], BTreeMap::new()).expect("sent");
        let (answer, mut answers) = watch::channel(Answer::Ack);
        let (sender, mut received) = watch::channel(0);
        let task = tokio::spawn(async move {
            let mut pending: Vec<Update> = Vec::new();
            loop {
                tokio::select! {
                    update = stream.next() => match update {
                        Ok(Some(update)) => {
                            pending.push(update);
                            sender.send_modify(|count| *count += 1);
                        }
                        _ => return,
                    },
                    changed = answers.changed() => if changed.is_err() { return },
                }
                let answer = *answers.borrow();
                for update in std::mem::take(&mut pending) {
                    match answer {
                        Answer::Ack => stream.ack(&update).expect("the stream is open"),
                        Answer::Reject(reason) => stream.nack(&update, reason).expect("the stream is open"),
                        Answer::Withhold => pending.push(update),
                    }
                }
            }
        });
        received.wait_for(|count| *count >= 2).await.expect("two types");
        Self { answer, received, task }
    }

    fn answer(&self, answer: Answer) {
        self.answer.send(answer).expect("it runs");
    }

    /// Waits until it has received more than this number of responses.
    async fn received_after(&mut self, count: usize) {
        self.received.wait_for(|now| *now > count).await.expect("a response");
    }

    fn received(&self) -> usize {
        *self.received.borrow()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn condition_follows_acknowledgements_and_is_removed_with_the_annotation() {
    let mesh = Mesh::start(&[route("ratings", &json!({})), route("reviews", &json!({}))]).await;
    let (mut cart, till) = (mesh.connect("cart").await, mesh.connect("till").await);
    let other = json!({"type": "Other", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    mesh.change("ratings", |object| object["status"] = json!({"conditions": [other]}));

    // Nothing is written while no object asks.
    let received = cart.received();
    mesh.change("ratings", set_timeout(2));
    cart.received_after(received).await;
    tokio::time::sleep(LONG_AFTER).await;
    assert_eq!((mesh.writes(), mesh.has_lock()), (0, false));

    till.answer(Answer::Withhold);
    mesh.change("ratings", |object| {
        object["metadata"]["annotations"] = asks();
        set_timeout(3)(object);
    });
    let waiting = mesh.condition("ratings", 3, "NotAcknowledgedByProxies").await;
    assert_eq!(waiting["status"], "False");
    assert_eq!(waiting["message"], "acknowledged by 1 of 2 proxies of replica istiod-7; not yet by till.shop");
    let since = waiting["lastTransitionTime"].as_str().expect("a time").to_owned();
    // Nothing is written while nothing changes.
    let writes = mesh.writes();
    tokio::time::sleep(LONG_AFTER).await;
    assert_eq!(mesh.writes(), writes);

    till.answer(Answer::Ack);
    let done = mesh.condition("ratings", 3, "AcknowledgedByProxies").await;
    assert_eq!(done["status"], "True");
    assert_eq!(done["message"], "acknowledged by 2 of 2 proxies of replica istiod-7");
    assert!(done["lastTransitionTime"].as_str().is_some_and(|time| *time > *since), "{done}");
    assert_eq!(mesh.writes(), writes + 1);

    till.answer(Answer::Reject("no such filter"));
    mesh.change("ratings", set_timeout(4));
    let rejected = mesh.condition("ratings", 4, "RejectedByProxies").await;
    assert_eq!(rejected["status"], "False");
    let message = "acknowledged by 1 of 2 proxies of replica istiod-7; rejected by till.shop (no such filter)";
    assert_eq!(rejected["message"], message);
    drop(till);
    let done = mesh.condition("ratings", 4, "AcknowledgedByProxies").await;
    assert_eq!(done["message"], "acknowledged by 1 of 1 proxy of replica istiod-7", "who left is not awaited");

    // Changes of other objects, and proxies that come later, change nothing.
    let (writes, received) = (mesh.writes(), cart.received());
    mesh.change("reviews", set_timeout(2));
    cart.received_after(received).await;
    let late = mesh.connect("late").await;
    tokio::time::sleep(LONG_AFTER).await;
    assert_eq!(mesh.writes(), writes);

    mesh.change("ratings", |object| object["metadata"]["annotations"] = json!({}));
    until("the condition is removed", || (mesh.conditions("ratings") == [other.clone()]).then_some(())).await;
    let (writes, received) = (mesh.writes(), cart.received());
    mesh.change("ratings", set_timeout(5));
    cart.received_after(received).await;
    tokio::time::sleep(LONG_AFTER).await;
    assert_eq!((mesh.writes(), mesh.conditions("ratings")), (writes, vec![other]));
    drop(late);
}

#[tokio::test(flavor = "multi_thread")]
async fn condition_tells_invalid_objects_and_those_without_proxies_and_survives_a_restart() {
    let mesh = Mesh::start(&[]).await;
    mesh.api.apply(route("ratings", &asks()));
    let done = mesh.condition("ratings", 1, "AcknowledgedByProxies").await;
    assert_eq!(done["message"], "concerns no proxy that is connected to replica istiod-7");
    mesh.change("ratings", |object| object["spec"]["hosts"] = json!(7));
    let invalid = mesh.condition("ratings", 2, "InvalidObject").await;
    assert_eq!(invalid["status"], "False");
    let message = invalid["message"].as_str().expect("a message");
    assert!(message.starts_with("invalid, and does not apply: spec.hosts"), "{message}");
    mesh.change("ratings", |object| object["spec"]["hosts"] = json!(["ratings.shop.svc.cluster.local"]));
    let done = mesh.condition("ratings", 3, "AcknowledgedByProxies").await;

    let writes = mesh.writes();
    mesh.sluiced.kill().await.expect("it ends");
    mesh.sluiced.start_again().await.expect("it starts");
    let cart = mesh.connect("cart").await;
    tokio::time::sleep(LONG_AFTER).await;
    assert_eq!((mesh.writes(), mesh.reconciled("ratings")), (writes, Some(done)), "it stays as it is");
    drop(cart);
}
