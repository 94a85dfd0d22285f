//! `sluicectl dashboard`: each dashboard finds its pod, and its port is reached from this machine.

use std::process::Stdio;

use serde_json::json;
use sluice_testkit::binary::workspace_binary;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;

use super::mesh::AnswersFixture;
use super::port_forward::{ForwardingCluster, serve_text};

const SYSTEM: &str = "istio-system";

/// The add-ons of Istio's samples: name, label of the pod, port and path.
const ADD_ONS: [(&str, &str, &str, u16, &str); 6] = [
    ("prometheus", "app.kubernetes.io/name", "prometheus", 9_090, "/"),
    ("grafana", "app.kubernetes.io/name", "grafana", 3_000, "/"),
    ("kiali", "app", "kiali", 20_001, "/kiali"),
    ("jaeger", "app", "jaeger", 16_686, "/"),
    ("zipkin", "app", "zipkin", 9_411, "/"),
    ("skywalking", "app", "skywalking-ui", 8_080, "/"),
];

/// A dashboard that is open, and its address.
struct Dashboard {
    _process: Child,
    url: String,
}

impl Dashboard {
    async fn open(cluster: &ForwardingCluster, arguments: &[&str]) -> Self {
        let mut process = tokio::process::Command::new(workspace_binary("sluicectl").expect("it is built"))
            .arg("dashboard")
            .args(arguments)
            .arg(cluster.kubeconfig())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("it runs");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let url = lines.next_line().await.expect("read");
        Self { _process: process, url: url.unwrap_or_else(|| panic!("{arguments:?} prints an address")) }
    }

    /// Host with port, and path.
    fn parts(&self) -> (&str, &str) {
        let rest = self.url.strip_prefix("http://").expect("a URL");
        rest.split_at(rest.find('/').expect("a path"))
    }
}

/// The answer to a request for a path; empty if the connection ends without one.
async fn fetch(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connect");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let mut answer = String::new();
    let exchanged = async {
        stream.write_all(request.as_bytes()).await?;
        stream.read_to_string(&mut answer).await
    };
    // A connection that is closed with unread data is reset.
    let _: std::io::Result<usize> = exchanged.await;
    answer
}

/// Creates a pod of an add-on.
fn run_add_on(cluster: &ForwardingCluster, namespace: &str, name: &str, (label, value): (&str, &str), phase: &str) {
    cluster.api.apply(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {label: value}},
        "spec": {"containers": []},
        "status": {"phase": phase},
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn dashboard_forwards_connections_in_turn_and_together() {
    let mesh = AnswersFixture::start().await;
    let cluster = ForwardingCluster::start().await;
    cluster.run_control_plane("istiod-1", &mesh);
    let dashboard = Dashboard::open(&cluster, &["istiod-debug"]).await;
    let (address, path) = dashboard.parts();
    assert_eq!(path, "/debug");
    for _ in 0..3 {
        let answer = fetch(address, "/debug/syncz").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let (one, two) = tokio::join!(fetch(address, "/debug/registryz"), fetch(address, "/ready"));
    assert!(one.contains("ratings.shop") && two.starts_with("HTTP/1.1 200 "), "{one}{two}");
    assert_eq!(cluster.api.forwarded(), 5);
    // The next connection finds the pod again.
    cluster.api.delete("pods", SYSTEM, "istiod-1");
    assert_eq!(fetch(address, "/ready").await, "");
    cluster.run_control_plane("istiod-1", &mesh);
    assert!(fetch(address, "/ready").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn dashboards_of_pods_are_those_that_are_named() {
    let mesh = AnswersFixture::start().await;
    let cluster = ForwardingCluster::start().await;
    cluster.run_control_plane("istiod-1", &mesh);
    cluster.run_pod(SYSTEM, "istiod-2", "istiod");
    cluster.api.forward_port(SYSTEM, "istiod-2", 9_876, serve_text(Some("ControlZ of the second pod")).await);
    cluster.run_pod("shop", "web-1", "web");
    cluster.api.forward_port("shop", "web-1", 15_000, serve_text(Some("Envoy of web-1")).await);
    for (arguments, page, expected) in [
        (&["controlz"][..], "/scopej", "200 OK"),
        (&["controlz", "istiod-2"], "/", "ControlZ of the second pod"),
        (&["envoy", "web-1.shop"], "/", "Envoy of web-1"),
        (&["proxy", "web-1", "-n", "shop", "--browser=false"], "/", "Envoy of web-1"),
    ] {
        let dashboard = Dashboard::open(&cluster, arguments).await;
        let (address, path) = dashboard.parts();
        assert_eq!(path, "/", "{arguments:?}");
        // ControlZ redirects to the page with a slash at its end.
        let answer = fetch(address, &format!("{page}/").replace("//", "/")).await;
        assert!(answer.contains(expected), "{arguments:?}: {answer}");
    }
    for (arguments, code, reason) in [
        (&["controlz", "istiod-3"][..], 1, "did you mean \"istiod-"),
        (&["istiod-debug", "istiod-1", "--revision", "default"], 2, "cannot be used with"),
        (&["envoy"], 2, "<PROXY>"),
        (&["envoy", "web-2.shop"], 1, "did you mean \"web-1\"?"),
        (&["istiod-debug", "--revision", "none"], 3, "no running Istio pods in \"istio-system\""),
    ] {
        let refused = cluster.ctl(&[&["dashboard"], arguments].concat()).await;
        assert_eq!((refused.code, refused.out.as_str()), (code, ""), "{arguments:?}: {}", refused.errors);
        assert!(refused.errors.contains(reason), "{arguments:?}: {}", refused.errors);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn add_ons_are_found_by_the_labels_of_their_pods() {
    let cluster = ForwardingCluster::start().await;
    for (name, label, value, port, path) in ADD_ONS {
        let without = cluster.ctl(&["dashboard", name]).await;
        assert_eq!((without.code, without.out.as_str()), (1, ""), "{name}: {}", without.errors);
        let expected = format!("no running pod in namespace istio-system or default has the label {label}={value}");
        assert!(without.errors.contains(&expected), "{name}: {}", without.errors);

        run_add_on(&cluster, SYSTEM, &format!("{name}-0"), (label, value), "Pending");
        run_add_on(&cluster, SYSTEM, &format!("{name}-1"), (label, value), "Running");
        cluster.api.forward_port(SYSTEM, &format!("{name}-1"), port, serve_text(Some(name)).await);
        let dashboard = Dashboard::open(&cluster, &[name]).await;
        let (address, found) = dashboard.parts();
        assert_eq!(found, path, "{name}");
        assert!(fetch(address, path).await.ends_with(name), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_and_ports_of_an_add_on_can_be_stated() {
    let cluster = ForwardingCluster::start().await;
    run_add_on(&cluster, "monitoring", "grafana-1", ("app.kubernetes.io/name", "grafana"), "Running");
    cluster.api.forward_port("monitoring", "grafana-1", 8_300, serve_text(Some("of monitoring")).await);
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address").port();
    let arguments = ["grafana", "-n", "monitoring", "--ui-port", "8300", "--port", &free.to_string()];
    let dashboard = Dashboard::open(&cluster, &arguments).await;
    assert_eq!(dashboard.parts().0, format!("127.0.0.1:{free}"));
    assert!(fetch(dashboard.parts().0, "/").await.ends_with("of monitoring"));

    let used = cluster.ctl(&[&["dashboard"], &arguments[..]].concat()).await;
    assert_eq!((used.code, used.out.as_str()), (3, ""), "{}", used.errors);
    assert!(used.errors.contains("in use"), "{}", used.errors);
}
