//! `sluicectl waypoint` with an API server.

use serde_json::{Value, json};
use sluice_testkit::api_server::{ApiServer, ResourceKind};

use super::mesh::{Answer, run};

const GROUP: &str = "gateway.networking.k8s.io";

/// An API server with the kind Gateway, and the flag of its kubeconfig.
struct WaypointFixture {
    api: ApiServer,
    kubeconfig: String,
    _directory: tempfile::TempDir,
}

fn gateway(name: &str, class: &str, labels: &Value, programmed: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "spec": {"gatewayClassName": class},
        "status": {"conditions": [{"type": "Programmed", "status": programmed, "reason": "Why", "message": "a text"}]},
    })
}

impl WaypointFixture {
    async fn start() -> Self {
        let api = ApiServer::start().await.expect("it starts");
        let kind = ResourceKind { group: GROUP, versions: vec!["v1"], name: "Gateway", plural: "gateways" };
        api.define(kind, true);
        api.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {}}}));
        let labels = json!({"istio.io/waypoint-for": "all"});
        api.apply(gateway("waypoint", "istio-waypoint", &labels, "True"));
        api.apply(gateway("canary", "istio-waypoint", &json!({"istio.io/rev": "canary"}), "False"));
        api.apply(gateway("door", "istio", &json!({}), "True"));
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("kubeconfig");
        api.write_kubeconfig(&path).expect("written");
        let kubeconfig = format!("--kubeconfig={}", path.display());
        Self { api, kubeconfig, _directory: directory }
    }

    async fn ctl(&self, arguments: &[&str]) -> Answer {
        run(&[&["waypoint"], arguments, &[&self.kubeconfig]].concat()).await
    }

    fn has(&self, name: &str) -> bool {
        self.api.get(GROUP, "gateways", "shop", name).is_some()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waypoints_are_listed_without_other_gateways() {
    let cluster = WaypointFixture::start().await;
    let list = cluster.ctl(&["list", "-n", "shop"]).await;
    assert_eq!(list.code, 0, "{}", list.errors);
    let expected = "\
NAME         REVISION     TRAFFIC TYPE     PROGRAMMED
canary       canary       none             False
waypoint     default      all              True
";
    assert_eq!(list.out, expected);
    let all = cluster.ctl(&["list", "-A", "-o", "json"]).await;
    assert_eq!(all.json().as_array().map(Vec::len), Some(2), "{}", all.out);
    let other = cluster.ctl(&["list", "-n", "bank"]).await;
    assert_eq!((other.code, other.out.as_str()), (0, "No waypoints found.\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn status_of_a_waypoint_that_is_not_programmed_times_out() {
    let cluster = WaypointFixture::start().await;
    let shown = cluster.ctl(&["status", "-n", "shop", "--wait=false"]).await;
    assert_eq!(shown.code, 0, "{}", shown.errors);
    assert!(shown.out.contains("canary       False      Programmed     Why        a text\n"), "{}", shown.out);
    let late = cluster.ctl(&["status", "-n", "shop", "--waypoint-timeout=0s"]).await;
    assert_eq!(late.code, 1, "{}", late.out);
    assert!(late.errors.contains("timed out while retrieving status for waypoint\tshop/canary"), "{}", late.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_waypoints_are_deleted() {
    let cluster = WaypointFixture::start().await;
    let mistyped = cluster.ctl(&["delete", "waypoin", "-n", "shop"]).await;
    assert_eq!(mistyped.code, 1, "{}", mistyped.out);
    assert_eq!(mistyped.out, "waypoint shop/waypoin not found\n");
    assert!(mistyped.errors.contains("did you mean \"waypoint\"?"), "{}", mistyped.errors);
    assert_eq!(cluster.ctl(&["delete", "door", "-n", "shop"]).await.code, 1, "it is no waypoint");
    let of_revision = cluster.ctl(&["delete", "--revision", "canary", "-n", "shop"]).await;
    assert_eq!(of_revision.code, 0, "{}", of_revision.errors);
    assert!(!cluster.has("canary"), "{}", of_revision.out);
    let all = cluster.ctl(&["delete", "--all", "-n", "shop"]).await;
    assert_eq!((all.code, all.out.as_str()), (0, "waypoint shop/waypoint deleted\n"), "{}", all.errors);
    assert!(cluster.has("door") && !cluster.has("waypoint"));
    for arguments in [&["delete"][..], &["delete", "a", "--all"], &["apply", "--name", "none"]] {
        assert_eq!(cluster.ctl(arguments).await.code, 2, "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_is_enrolled_once() {
    let cluster = WaypointFixture::start().await;
    let apply = ["apply", "-n", "shop", "--enroll-namespace", "--for", "service", "--wait"];
    let applied = cluster.ctl(&apply).await;
    assert_eq!(applied.code, 0, "{}{}", applied.out, applied.errors);
    for line in [
        "⚠️ Warning: namespace is not enrolled in ambient.",
        "✅ waypoint shop/waypoint applied",
        "✅ waypoint shop/waypoint is ready!",
        "✅ namespace shop labeled with \"istio.io/use-waypoint: waypoint\"",
    ] {
        assert!(applied.out.contains(line), "{line}:\n{}", applied.out);
    }
    let stored = cluster.api.get(GROUP, "gateways", "shop", "waypoint").expect("it exists");
    assert_eq!(stored["metadata"]["labels"]["istio.io/waypoint-for"], "service");
    assert_eq!(stored["spec"]["listeners"][0]["port"], 15_008);
    let namespace = cluster.api.get("", "namespaces", "", "shop").expect("it exists");
    assert_eq!(namespace["metadata"]["labels"]["istio.io/use-waypoint"], "waypoint");
    let again = cluster.ctl(&["apply", "-n", "shop", "--enroll-namespace", "--name", "canary"]).await;
    assert!(again.out.contains("already has an enrolled Waypoint") && !again.out.contains("applied"), "{}", again.out);
    let missing = cluster.ctl(&["apply", "-n", "nowhere", "--enroll-namespace"]).await;
    assert_eq!(missing.code, 1, "{}", missing.out);
    assert!(missing.errors.contains("namespace: nowhere not found"), "{}", missing.errors);
}
