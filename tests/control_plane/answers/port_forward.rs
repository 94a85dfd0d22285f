//! Commands that reach pods by the port-forward of an API server. The fake one forwards as a kubelet does.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use sluice_testkit::api_server::ApiServer;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use super::mesh::{Answer, AnswersFixture, RATINGS_V1, run};

const SYSTEM: &str = "istio-system";
/// The longest time until a command notices that its pod is gone. It would wait 30 seconds for an answer otherwise.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(20);

/// An API server with pods, and its kubeconfig.
pub(super) struct ForwardingCluster {
    pub(super) api: ApiServer,
    directory: TempDir,
}

impl ForwardingCluster {
    pub(super) async fn start() -> Self {
        let (api, directory) = (ApiServer::start().await.expect("a server"), tempfile::tempdir().expect("a directory"));
        api.write_kubeconfig(&directory.path().join("kubeconfig")).expect("written");
        Self { api, directory }
    }

    /// Creates a running pod.
    pub(super) fn run_pod(&self, namespace: &str, name: &str, app: &str) {
        let container = if app == "istiod" { "discovery" } else { "istio-proxy" };
        self.api.apply(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name, "labels": {"app": app, "istio.io/rev": "default"}},
            "spec": {"containers": [{"name": container}]},
            "status": {"phase": "Running"},
        }));
    }

    /// A pod of the control plane whose ports are those of a server.
    pub(super) fn run_control_plane(&self, name: &str, mesh: &AnswersFixture) {
        self.run_pod(SYSTEM, name, "istiod");
        for (port, address) in [(8_080, mesh.server.http), (9_876, mesh.server.controlz)] {
            self.api.forward_port(SYSTEM, name, port, address);
        }
    }

    pub(super) fn kubeconfig(&self) -> String {
        format!("--kubeconfig={}", self.directory.path().join("kubeconfig").display())
    }

    pub(super) async fn ctl(&self, arguments: &[&str]) -> Answer {
        run(&[arguments, &[&self.kubeconfig()]].concat()).await
    }
}

/// An HTTP server that answers each request with a text; `None` never answers.
pub(super) async fn serve_text(text: Option<&'static str>) -> SocketAddr {
    serve_pages(move |_| text.map(|text| ("200 OK", text.to_owned()))).await
}

/// An HTTP server that answers a request, by its request line, with a status and a text; `None` never answers.
pub(super) async fn serve_pages(
    answer: impl Fn(&str) -> Option<(&'static str, String)> + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let (mut request, mut header) = (String::new(), String::new());
                let _ = stream.read_line(&mut request).await;
                while stream.read_line(&mut header).await.is_ok_and(|count| count > 2) {
                    header.clear();
                }
                match answer(&request) {
                    Some((status, text)) => {
                        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", text.len());
                        let _ = stream.write_all(format!("{head}{text}").as_bytes()).await;
                    }
                    None => std::future::pending().await,
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_reach_each_replica_through_its_pod() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let cluster = ForwardingCluster::start().await;
    cluster.run_control_plane("istiod-1", &mesh);
    let status = cluster.ctl(&["proxy-status"]).await;
    assert_eq!(status.code, 0, "{}", status.errors);
    assert!(status.out.contains("cart-7f.shop") && status.out.contains("istiod-1"), "{}", status.out);

    cluster.run_control_plane("istiod-2", &mesh);
    let before = cluster.api.forwarded();
    let version = cluster.ctl(&["version", "-o", "json"]).await;
    let replicas: Vec<String> = version.json()["meshVersion"]
        .as_array()
        .expect("replicas")
        .iter()
        .map(|replica| replica["ID"].as_str().expect("an ID").to_owned())
        .collect();
    assert_eq!(replicas, ["istiod-1", "istiod-2"], "{}", version.errors);
    // Two pages of each replica, a stream each.
    assert_eq!(cluster.api.forwarded() - before, 4);
    let pages = cluster.ctl(&["internal-debug", "syncz", "--all"]).await;
    assert!(pages.out.contains("istiod-1") && pages.out.contains("istiod-2"), "{}{}", pages.out, pages.errors);
    let clusters = cluster.ctl(&["remote-clusters"]).await;
    assert_eq!(clusters.out.lines().count(), 3, "{}{}", clusters.out, clusters.errors);
    let log = cluster.ctl(&["admin", "log", "--level", "ads:debug"]).await;
    assert_eq!(log.code, 0, "{}", log.errors);
    let clusters = cluster
        .ctl(&["pc", "cluster", "cart-7f.shop", "--from", "control-plane", "--subset", "v1", "-o", "json"])
        .await;
    assert_eq!(clusters.json()[0]["name"], RATINGS_V1);

    // A stream that is as long as its recording.
    let file = cluster.directory.path().join("recording");
    let out = format!("--out={}", file.display());
    let recorded = cluster.ctl(&["record", &out, "--duration", "1s"]).await;
    assert_eq!(recorded.code, 0, "{}", recorded.errors);
    let replayed = run(&["replay", file.to_str().expect("UTF-8")]).await;
    assert_eq!(replayed.code, 0, "{}{}", replayed.out, replayed.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_interface_of_a_proxy_is_reached_through_its_pod() {
    let cluster = ForwardingCluster::start().await;
    cluster.run_pod("shop", "web-1", "web");
    let dump = include_str!("../../../src/ctl/tests/recorded/config_dump.web.json");
    cluster.api.forward_port("shop", "web-1", 15_000, serve_text(Some(dump)).await);
    let clusters = cluster.ctl(&["proxy-config", "cluster", "web-1.shop"]).await;
    let recorded = include_str!("../../../src/ctl/tests/recorded/pc-clusters.txt");
    assert_eq!((clusters.code, clusters.out.as_str()), (0, recorded), "{}", clusters.errors);
    let other = cluster.ctl(&["proxy-config", "cluster", "web-2.shop"]).await;
    assert_eq!(other.code, 1, "{}", other.errors);
    assert!(other.errors.contains("did you mean \"web-1\"?"), "{}", other.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_and_roots_of_proxies_are_read_through_their_pods() {
    let cluster = ForwardingCluster::start().await;
    let pem = include_str!("../../../src/ctl/tests/recorded/certificate.pem");
    let with_roots = json!({"configs": [{
        "@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump",
        "dynamic_active_secrets": [{"name": "ROOTCA", "secret": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            "name": "ROOTCA", "validation_context": {"trusted_ca": {"inline_string": pem}},
        }}],
    }]});
    for (name, dump) in [("web-1", &with_roots), ("web-2", &with_roots), ("web-3", &json!({"configs": []}))] {
        cluster.run_pod("shop", name, "web");
        let dump = dump.to_string();
        let admin = serve_pages(move |request| {
            let text = match request.split(' ').nth(1)? {
                "/config_dump" => dump.clone(),
                "/stats" => "server.live: 1\n".to_owned(),
                "/stats?format=json" => json!({"stats": [{"name": "server.live", "value": 1}]}).to_string(),
                "/stats/prometheus" => "envoy_server_live{} 1\n".to_owned(),
                _ => return Some(("404 Not Found", String::new())),
            };
            Some(("200 OK", text))
        });
        cluster.api.forward_port("shop", name, 15_000, admin.await);
    }
    let agent = serve_pages(|request| {
        request.contains(" /stats/prometheus ").then(|| ("200 OK", "istio_agent_pilot_xds 1\n".to_owned()))
    });
    cluster.api.forward_port("shop", "web-1", 15_020, agent.await);

    let stats = async |flags: &[&str]| {
        let answer = cluster.ctl(&[&["proxy-config", "envoy-stats", "web-1.shop"], flags].concat()).await;
        assert_eq!(answer.code, 0, "{flags:?}: {}", answer.errors);
        answer
    };
    assert_eq!(stats(&[]).await.out, "server.live: 1\n");
    assert_eq!(stats(&["-o", "json"]).await.json()["stats"][0]["value"], 1);
    assert_eq!(stats(&["-o", "yaml"]).await.out, "stats:\n- name: server.live\n  value: 1\n");
    assert_eq!(stats(&["-o", "prom"]).await.out, "envoy_server_live{} 1\n");
    assert_eq!(stats(&["-o", "prom-merged"]).await.out, "istio_agent_pilot_xds 1\n");
    let invalid = cluster.ctl(&["pc", "es", "web-1.shop", "--type", "clusters", "-o", "prom"]).await;
    assert_eq!(invalid.code, 2, "{}", invalid.errors);

    let same = cluster.ctl(&["pc", "rootca-compare", "web-1.shop", "web-2.shop"]).await;
    assert_eq!(same.code, 0, "{}{}", same.out, same.errors);
    let none = cluster.ctl(&["pc", "rc", "web-1", "web-3", "-n", "shop"]).await;
    assert_eq!(none.code, 1, "{}", none.out);
    assert!(none.errors.contains("has no root certificates"), "{}", none.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_port_is_an_error_with_the_reason_of_the_kubelet() {
    let cluster = ForwardingCluster::start().await;
    cluster.run_pod(SYSTEM, "istiod-1", "istiod");
    // The reason arrives before the end of the stream, however these race.
    for _ in 0..5 {
        let status = cluster.ctl(&["proxy-status"]).await;
        assert_eq!((status.code, status.out.as_str()), (3, ""), "{}", status.errors);
        let expected = "istiod-1: port-forward: error forwarding port 8080 to pod istiod-1: ";
        assert!(status.errors.contains(expected), "{}", status.errors);
        assert!(status.errors.contains("connection refused"), "{}", status.errors);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_that_does_not_answer_is_named_and_the_others_answer() {
    let mesh = AnswersFixture::start().await;
    let mut cart = mesh.connect("cart-7f", "cart").await;
    let updates = cart.updates();
    mesh.route_to(2, "v2");
    cart.updated_after(updates).await;
    let cluster = ForwardingCluster::start().await;
    // The first replica that is asked, and the last one.
    cluster.run_pod(SYSTEM, "istiod-0", "istiod");
    cluster.run_control_plane("istiod-1", &mesh);
    cluster.run_pod(SYSTEM, "istiod-2", "istiod");
    let directory = tempfile::tempdir().expect("a directory");
    let change = directory.path().join("change.yaml");
    let service =
        "{apiVersion: v1, kind: Service, metadata: {name: extra, namespace: shop}, spec: {ports: [{port: 80}]}}";
    std::fs::write(&change, service).expect("written");
    let change = change.display().to_string();
    for (arguments, field) in [
        (&["proxy-status"][..], None),
        (&["remote-clusters"], None),
        (&["internal-debug", "syncz", "--all"], None),
        (&["why", "cart-7f.shop", "cds", RATINGS_V1, "-o", "json"], Some("/holders/acked")),
        (&["wait", "vs/shop/ratings", "--generation=2", "-o", "json"], Some("/proxies/acked")),
        (&["preview", "-f", &change, "-o", "json"], Some("/proxies/connected")),
    ] {
        let answer = cluster.ctl(arguments).await;
        assert_eq!(answer.code, 5, "{arguments:?}: {}{}", answer.out, answer.errors);
        for missing in ["istiod-0", "istiod-2"] {
            let expected = format!("sluicectl: {missing} does not answer: {missing}: port-forward: ");
            assert_eq!(answer.errors.matches(&expected).count(), 1, "{arguments:?}: {}", answer.errors);
        }
        match field {
            None => assert!(answer.out.contains("istiod-1"), "{arguments:?}: {}", answer.out),
            Some(field) => {
                let json = answer.json();
                assert_eq!(json.pointer(field), Some(&json!(1)), "{arguments:?}: {json}");
                assert_eq!(json["unansweredReplicas"].as_array().map(Vec::len), Some(2), "{arguments:?}: {json}");
            }
        }
    }
    // What a proxy has is the answer of its replica, whatever the others say.
    let clusters = cluster.ctl(&["pc", "cluster", "cart-7f.shop", "--from", "control-plane"]).await;
    assert_eq!(clusters.code, 0, "{}", clusters.errors);
    let unknown = cluster.ctl(&["why", "other.shop", "cds", RATINGS_V1]).await;
    assert_eq!(unknown.code, 3, "a replica that does not answer may have it: {}", unknown.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_that_goes_away_ends_the_command() {
    let cluster = ForwardingCluster::start().await;
    cluster.run_pod(SYSTEM, "istiod-1", "istiod");
    cluster.api.forward_port(SYSTEM, "istiod-1", 8_080, serve_text(None).await);
    let command = cluster.ctl(&["proxy-status"]);
    let removal = async {
        while cluster.api.forwarded() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cluster.api.delete("pods", SYSTEM, "istiod-1");
    };
    let (status, ()) = tokio::time::timeout(NOTICE_TIMEOUT, async { tokio::join!(command, removal) })
        .await
        .expect("the command ends with its pod");
    assert_eq!(status.code, 3, "{}{}", status.out, status.errors);
    assert!(status.errors.contains("istiod-1: port-forward: "), "{}", status.errors);
    let without_pods = cluster.ctl(&["proxy-status"]).await;
    assert_eq!(without_pods.code, 3, "{}", without_pods.errors);
    assert!(without_pods.errors.contains("no running Istio pods in \"istio-system\""), "{}", without_pods.errors);
}
