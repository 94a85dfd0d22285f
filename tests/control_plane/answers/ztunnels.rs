//! `sluicectl ztunnel-config` with ztunnel pods, which are reached by the port-forward of an API server.

use serde_json::{Value, json};

use super::port_forward::{ForwardingCluster, serve_pages};

const SYSTEM: &str = "istio-system";
const ADMIN_PORT: u16 = 15_000;

/// A pod with a node.
fn pod(namespace: &str, name: &str, app: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": "istio-proxy"}]},
        "status": {"phase": "Running"},
    })
}

/// What the ztunnel of a node knows: all workloads, and a certificate of its own.
fn dump(node: &str) -> String {
    let workload = |name: &str, ip: &str, node: &str| {
        json!({
            "uid": format!("c//Pod/shop/{name}"), "workloadIps": [ip], "protocol": "HBONE", "name": name, "namespace": "shop",
            "node": node, "status": "Healthy",
        })
    };
    json!({
        "workloads": [workload("cart-7f", "10.0.0.1", "worker-1"), workload("till-1", "10.0.0.2", "worker-2")],
        "services": [], "policies": [],
        "certificates": [{"identity": format!("spiffe://td/ns/shop/sa/{node}"), "state": "Available", "certChain": [
            {"serialNumber": "255", "validFrom": "2026-01-01T00:00:00Z", "expirationTime": "2026-01-02T00:00:00Z"},
        ]}],
    })
    .to_string()
}

/// Answers a request as the admin interface of the ztunnel of a node does.
fn answer(request: &str, node: &str) -> (&'static str, String) {
    match request.split(' ').take(2).collect::<Vec<_>>()[..] {
        ["GET", "/config_dump"] => ("200 OK", dump(node)),
        ["POST", path] if path.starts_with("/logging") => ("200 OK", format!("{node} is set by {path}\n")),
        _ => ("405 Method Not Allowed", String::new()),
    }
}

/// Two nodes with a ztunnel and a pod each, and a third one with a pod only.
async fn nodes() -> ForwardingCluster {
    let cluster = ForwardingCluster::start().await;
    for (node, ztunnel, workload) in
        [("worker-1", "ztunnel-a", "cart-7f"), ("worker-2", "ztunnel-b", "till-1"), ("worker-3", "", "menu-2")]
    {
        cluster.api.apply(pod("shop", workload, "web", node));
        if !ztunnel.is_empty() {
            cluster.api.apply(pod(SYSTEM, ztunnel, "ztunnel", node));
            let admin = serve_pages(move |request| Some(answer(request, node))).await;
            cluster.api.forward_port(SYSTEM, ztunnel, ADMIN_PORT, admin);
        }
    }
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn ztunnel_of_a_pod_a_node_or_a_name_is_asked() {
    let cluster = nodes().await;
    let all = cluster.ctl(&["ztunnel-config", "workload"]).await;
    let expected = "\
NAMESPACE POD NAME ADDRESS  NODE     WAYPOINT PROTOCOL
shop      cart-7f  10.0.0.1 worker-1 None     HBONE
shop      till-1   10.0.0.2 worker-2 None     HBONE
";
    assert_eq!((all.code, all.out.as_str()), (0, expected), "{}", all.errors);
    // Of a pod, only its own row is printed.
    let of_pod = cluster.ctl(&["zc", "workload", "till-1.shop"]).await;
    assert_eq!(of_pod.out.lines().count(), 2, "{}{}", of_pod.out, of_pod.errors);
    assert!(of_pod.out.contains("till-1"), "{}", of_pod.out);
    for arguments in [&["--node", "worker-2"][..], &["ztunnel-b.istio-system"], &["till-1.shop"]] {
        let certificates = cluster.ctl(&[&["zc", "certificate"], arguments].concat()).await;
        assert_eq!(certificates.code, 0, "{arguments:?}: {}", certificates.errors);
        assert!(certificates.out.contains("spiffe://td/ns/shop/sa/worker-2"), "{arguments:?}: {}", certificates.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ztunnel_that_is_not_there_is_an_error() {
    let cluster = nodes().await;
    for (arguments, code, reason) in [
        (&["certificate"][..], 2, "there are several ztunnels: name one, or use --node: ztunnel-a, ztunnel-b"),
        (&["workload", "--node", "worker-4"], 1, "no ztunnel runs on node \"worker-4\"; did you mean \"worker-"),
        (&["workload", "menu-2.shop"], 1, "no ztunnel runs on node \"worker-3\""),
        (&["workload", "--istioNamespace", "shop"], 3, "no running pods in \"shop\" have the label app=ztunnel"),
    ] {
        let answer = cluster.ctl(&[&["zc"], arguments].concat()).await;
        assert_eq!((answer.code, answer.out.as_str()), (code, ""), "{arguments:?}: {}", answer.errors);
        assert!(answer.errors.contains(reason), "{arguments:?}: {}", answer.errors);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_levels_of_all_ztunnels_are_set() {
    let cluster = nodes().await;
    let set = cluster.ctl(&["zc", "log", "--level", "access:debug,warning"]).await;
    let expected = "\
ztunnel-a.istio-system:
worker-1 is set by /logging?level=access%3Adebug%2Cwarn
ztunnel-b.istio-system:
worker-2 is set by /logging?level=access%3Adebug%2Cwarn
";
    let normalized = set.out.replace("&reset=", "");
    assert_eq!((set.code, normalized.as_str()), (0, expected), "{}", set.errors);
    let one = cluster.ctl(&["zc", "log", "cart-7f.shop", "--reset"]).await;
    assert_eq!(one.code, 0, "{}", one.errors);
    assert!(one.out.contains("worker-1 is set by /logging?level=info&reset=true"), "{}", one.out);
    assert!(!one.out.contains("ztunnel-b"), "{}", one.out);
}
