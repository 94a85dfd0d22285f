//! The webhooks of a real `sluiced`, called as the API server calls them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use sluice_testkit::api_server::ApiServer;
use sluice_testkit::server::{Options, Sluiced, get};
use sluice_testkit::wait::until;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The name of the Service that the webhook configurations refer to.
const SERVER_NAME: &str = "istiod.istio-system.svc";

/// A control plane of a cluster, with its webhooks.
struct Fixture {
    api: ApiServer,
    server: Sluiced,
    /// The roots in the webhook configurations; empty if there is no port with TLS.
    roots: String,
    _directory: TempDir,
}

/// The configuration of the injector.
fn injector(template: &str) -> Value {
    let config = json!({"policy": "enabled", "templates": {"sidecar": template}}).to_string();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "istio-system", "name": "istio-sidecar-injector"},
        "data": {"config": config, "values": "global: {hub: example.com, tag: one}"},
    })
}

/// A template with an image, and with parts of the mesh config and of the cluster.
fn template(image: &str) -> String {
    format!(
        "spec:\n  containers:\n  - name: istio-proxy\n    image: {image}\n    env:\n    - {{name: DOMAIN, value: \
         \"{{{{ .MeshConfig.TrustDomain }}}}\"}}\n    - {{name: NATIVE, value: \"{{{{ .NativeSidecars }}}}\"}}\n"
    )
}

fn configuration(kind: &str, webhook: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": {"name": "istio", "labels": {"istio.io/rev": "default"}},
        "webhooks": [{"name": webhook, "clientConfig": {"service": {"name": "istiod", "namespace": "istio-system"}}}],
    })
}

fn roots_of(api: &ApiServer, resource: &str) -> Option<String> {
    let object = api.get("admissionregistration.k8s.io", resource, "", "istio")?;
    let encoded = object["webhooks"][0]["clientConfig"]["caBundle"].as_str()?;
    Some(String::from_utf8(STANDARD.decode(encoded).expect("base64")).expect("PEM"))
}

impl Fixture {
    async fn start(injection: Option<Value>, args: &[&str]) -> Self {
        let (api, directory) = (ApiServer::start().await.expect("a server"), tempfile::tempdir().expect("a directory"));
        if let Some(object) = injection {
            api.apply(object);
        }
        api.apply(configuration("MutatingWebhookConfiguration", "rev.object.sidecar-injector.istio.io"));
        api.apply(configuration("ValidatingWebhookConfiguration", "rev.validation.istio.io"));
        let kubeconfig = directory.path().join("kubeconfig");
        api.write_kubeconfig(&kubeconfig).expect("written");
        let mut options = Options { kubeconfig: Some(kubeconfig), ..Options::new(Path::new("/none")) };
        options.args = args.iter().map(|argument| (*argument).to_owned()).collect();
        let server = Sluiced::start(&options).await.expect("a server");
        let mut roots = String::new();
        if server.https.is_some() {
            roots = until("the roots are written", || roots_of(&api, "mutatingwebhookconfigurations")).await;
        }
        Self { api, server, roots, _directory: directory }
    }

    async fn connect(&self) -> tokio_rustls::client::TlsStream<TcpStream> {
        let mut store = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(self.roots.as_bytes()) {
            store.add(root.expect("a certificate")).expect("a root");
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = config.expect("versions").with_root_certificates(store).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let stream = TcpStream::connect(self.server.https.expect("the port")).await.expect("connect");
        let name = ServerName::try_from(SERVER_NAME).expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("a handshake with the roots")
    }

    /// The status and the body of the response.
    async fn post(&self, path: &str, body: &[u8]) -> (u16, String) {
        exchange(self.connect().await, path, "application/json", body).await
    }

    /// The `response` of the review.
    async fn review(&self, path: &str, request: Value) -> Value {
        let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let (status, text) = self.post(path, body.to_string().as_bytes()).await;
        assert_eq!(status, 200, "{text}");
        let review: Value = serde_json::from_str(&text).expect("a review");
        assert_eq!((&review["kind"], &review["response"]["uid"]), (&json!("AdmissionReview"), &json!("u-1")));
        review["response"].clone()
    }

    /// The patch for a pod as text. `None` before a configuration is read.
    async fn inject(&self) -> Option<String> {
        let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": pod(&json!({}))});
        let (status, text) = self.post("/inject/cluster/Kubernetes/net/n1", body.to_string().as_bytes()).await;
        if status == 500 {
            return None;
        }
        let review: Value = serde_json::from_str(&text).expect("a review");
        assert_eq!((status, &review["response"]["allowed"]), (200, &json!(true)), "{review}");
        let patch = STANDARD.decode(review["response"]["patch"].as_str().unwrap_or_default()).expect("base64");
        Some(String::from_utf8(patch).expect("JSON"))
    }

    /// Injects pods until the patch contains a text.
    async fn injects(&self, part: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let patch = self.inject().await;
            if patch.as_ref().is_some_and(|patch| patch.contains(part)) {
                return;
            }
            assert!(Instant::now() < deadline, "{part} is not in {patch:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn metric(&self, line: &str) -> f64 {
        let (_, text) = get(self.server.monitoring, "/metrics").await.expect("metrics");
        let value = text.lines().find_map(|it| it.strip_prefix(line)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().expect("a number"))
    }
}

fn pod(annotations: &Value) -> Value {
    json!({
        "uid": "u-1", "operation": "CREATE", "namespace": "shop",
        "object": {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "cart", "annotations": annotations},
            "spec": {"containers": [{"name": "app", "image": "app"}]},
        },
    })
}

/// Sends a request, and reads until the server closes the connection.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    content_type: &str,
    body: &[u8],
) -> (u16, String) {
    exchange_declared(stream, path, content_type, (body.len(), body)).await
}

/// The same with a declared length of the body.
async fn exchange_declared(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    content_type: &str,
    (length, body): (usize, &[u8]),
) -> (u16, String) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {SERVER_NAME}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n"
    );
    // The server may respond before it has read the body.
    if stream.write_all(head.as_bytes()).await.is_ok() {
        let _ = stream.write_all(body).await;
        let _ = stream.flush().await;
    }
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await.expect("an end");
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    (status.unwrap_or_else(|| panic!("a status: {text}")), body.unwrap_or_default())
}

const HTTPS: &str = "--httpsAddr=127.0.0.1:0";

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_injected_by_the_config_map_and_its_changes() {
    let mesh = Fixture::start(Some(injector(&template("proxy:one"))), &[HTTPS]).await;
    mesh.injects("proxy:one").await;
    mesh.injects(r#""value":"n1""#).await;
    mesh.injects(r#""value":"cluster.local""#).await;
    assert_eq!(roots_of(&mesh.api, "validatingwebhookconfigurations").as_ref(), Some(&mesh.roots));

    mesh.api.apply(injector(&template("proxy:two")));
    mesh.injects("proxy:two").await;
    // A template that does not parse leaves the former one in use.
    mesh.api.apply(injector("{{"));
    let deadline = Instant::now() + Duration::from_secs(20);
    while mesh.metric("sluice_injection_config_errors").await < 1.0 {
        assert!(Instant::now() < deadline, "the error is counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    mesh.injects("proxy:two").await;
    // The mesh config is followed meanwhile.
    mesh.api.apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "istio-system", "name": "istio"},
        "data": {"mesh": "trustDomain: example.org"},
    }));
    mesh.injects(r#""value":"example.org""#).await;

    assert!(mesh.metric("sidecar_injection_success_total").await >= 6.0);
    let failures = mesh.metric("sidecar_injection_failure_total").await;
    let skipped = mesh.review("/inject", pod(&json!({"sidecar.istio.io/inject": "false"}))).await;
    assert_eq!(skipped, json!({"uid": "u-1", "allowed": true}));
    assert_eq!(mesh.metric("sidecar_injection_skip_total").await, 1.0);
    let denied = mesh.review("/inject", pod(&json!({"sidecar.istio.io/interceptionMode": "SIDEWAYS"}))).await;
    assert_eq!(denied["allowed"], false);
    assert!(denied["status"]["message"].as_str().is_some_and(|it| it.contains("interceptionMode")), "{denied}");
    assert_eq!(mesh.metric("sidecar_injection_failure_total").await, failures + 1.0);
    let (requests, timed) = (
        mesh.metric("sidecar_injection_requests_total").await,
        mesh.metric("sidecar_injection_time_seconds_count").await,
    );
    assert!(requests >= 8.0 && requests == timed, "{requests} {timed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelets_decide_about_native_sidecars() {
    let mesh = Fixture::start(Some(injector(&template("proxy:one"))), &[HTTPS]).await;
    let node = |name: &str, version: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"nodeInfo": {"kubeletVersion": version}},
        })
    };
    let native = |value: bool| format!(r#"{{"name":"NATIVE","value":"{value}"}}"#);
    mesh.injects(&native(false)).await;
    mesh.api.apply(node("one", "v1.33.1"));
    mesh.injects(&native(true)).await;
    mesh.api.apply(node("two", "v1.32.9"));
    mesh.injects(&native(false)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_no_reviews_are_rejected() {
    let mesh = Fixture::start(None, &[HTTPS]).await;
    for path in ["/inject", "/validate"] {
        let (status, text) = mesh.post(path, br#"{"kind": "Pod", "apiVersion": "v1"}"#).await;
        let review: Value = serde_json::from_str(&text).expect("a review");
        assert_eq!((status, &review["response"]["allowed"]), (200, &json!(false)), "{path}");
        let message = review["response"]["status"]["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("could not decode body: expected an AdmissionReview"), "{message}");
        assert_eq!(mesh.post(path, b"").await, (400, "no body found\n".to_owned()));
        let other = exchange(mesh.connect().await, path, "text/plain", b"{}").await;
        assert_eq!(other, (415, "invalid Content-Type, want `application/json`\n".to_owned()));
        // The request is refused by its headers.
        let large = exchange_declared(mesh.connect().await, path, "application/json", (9 << 20, b"")).await;
        assert_eq!(large.0, 413, "{path}");
        // A large one within the limit is read.
        let large = format!("{{\"kind\": \"{}\"}}", "x".repeat(7 << 20));
        assert_eq!(mesh.post(path, large.as_bytes()).await.0, 200, "{path}");
    }
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": pod(&json!({}))});
    let without_configuration = mesh.post("/inject", review.to_string().as_bytes()).await;
    assert_eq!(without_configuration, (500, "no valid injection configuration has been read yet\n".to_owned()));
    assert_eq!(mesh.metric("galley_validation_http_error{status=\"415\"}").await, 1.0);
    let ready = exchange(mesh.connect().await, "/ready", "text/plain", b"").await;
    assert_eq!(ready.0, 405, "it is read by GET");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_validated_by_the_rules_of_their_kind() {
    let mesh = Fixture::start(None, &[HTTPS]).await;
    let request = |group: &str, kind: &str, resource: &str, spec: Value, annotations: Value| {
        json!({
            "uid": "u-1", "operation": "UPDATE", "namespace": "shop", "name": "a", "dryRun": false,
            "resource": {"group": group, "version": "v1", "resource": resource},
            "object": {
                "apiVersion": format!("{group}/v1"), "kind": kind,
                "metadata": {"namespace": "shop", "name": "a", "annotations": annotations}, "spec": spec,
            },
        })
    };
    let networking = "networking.istio.io";
    let servers = json!({"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]});
    let valid = [
        request(networking, "Gateway", "gateways", servers.clone(), json!({})),
        request(
            networking,
            "ServiceEntry",
            "serviceentries",
            json!({
                "hosts": ["a.example"], "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}], "resolution": "DNS",
            }),
            json!({}),
        ),
        request(
            "security.istio.io",
            "PeerAuthentication",
            "peerauthentications",
            json!({"mtls": {"mode": "STRICT"}}),
            json!({}),
        ),
    ];
    for valid in valid {
        let response = mesh.review("/validate", valid).await;
        assert_eq!(response["allowed"], true, "{response}");
    }
    let always = json!({"internal.istio.io/webhook-always-reject": "true"});
    let mut dry_run = request(networking, "Gateway", "gateways", servers.clone(), always);
    dry_run["dryRun"] = json!(true);
    let mut extra = request(networking, "Gateway", "gateways", servers, json!({}));
    extra["object"]["extra"] = json!({});
    let refused = [
        (
            request(networking, "Gateway", "gateways", json!({"servers": []}), json!({})),
            "configuration is invalid: spec.servers",
        ),
        (
            request(networking, "DestinationRule", "destinationrules", json!({}), json!({})),
            "configuration is invalid: spec.host",
        ),
        (
            request(
                "security.istio.io",
                "AuthorizationPolicy",
                "authorizationpolicies",
                json!({"action": "MAYBE"}),
                json!({}),
            ),
            "configuration is invalid: spec.action",
        ),
        (
            request(networking, "Harbor", "harbors", json!({}), json!({})),
            "unrecognized type networking.istio.io/v1/Harbor",
        ),
        (extra, "unknown field \"extra\" on Gateway resource shop/a"),
        (dry_run, "configuration is invalid: \"internal.istio.io/webhook-always-reject\" annotation found, rejecting"),
    ];
    for (refused, message) in refused {
        let response = mesh.review("/validate/path", refused).await;
        assert_eq!(response["allowed"], false, "{message}");
        let found = response["status"]["message"].as_str().unwrap_or_default();
        assert!(found.starts_with(message), "{found}");
    }
    let passed = "galley_validation_passed{group=\"networking.istio.io\",version=\"v1\",resource=\"gateways\"}";
    assert_eq!(mesh.metric(passed).await, 1.0);
    let failed = "galley_validation_failed{group=\"networking.istio.io\",version=\"v1\",resource=\"gateways\",reason=\"invalid_resource\"}";
    assert_eq!(mesh.metric(failed).await, 2.0, "the dry run is not counted");
    let unknown =
        "galley_validation_failed{group=\"other\",version=\"other\",resource=\"other\",reason=\"unknown_type\"}";
    assert_eq!(mesh.metric(unknown).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_do_not_keep_the_api_server_from_the_webhooks() {
    let args = [HTTPS, "--handshakeTimeout=1s", "--firstRequestTimeout=1s", "--maxPendingConnectionsPerAddress=4"];
    let mesh = Fixture::start(Some(injector(&template("proxy:one"))), &args).await;
    let address: SocketAddr = mesh.server.https.expect("the port");
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(address).await.expect("connect"));
    }
    // The silent ones are closed, those that wait for their turn as well.
    for socket in &mut silent {
        let mut end = [0];
        let _ = tokio::time::timeout(Duration::from_secs(20), socket.read(&mut end)).await.expect("an end");
    }
    mesh.injects("proxy:one").await;
    let mut handshaken = mesh.connect().await;
    let mut end = [0];
    let _ = tokio::time::timeout(Duration::from_secs(20), handshaken.read(&mut end)).await.expect("an end");
    let closed = "sluice_closed_connections{port=\"https\",reason=\"first_request\"}";
    assert_eq!(mesh.metric(closed).await, 1.0);
    assert!(mesh.metric("sluice_closed_connections{port=\"https\",reason=\"handshake\"}").await >= 4.0);
    mesh.injects("proxy:one").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_on_the_http_port_without_an_address_of_their_own() {
    let mesh = Fixture::start(Some(injector(&template("proxy:one"))), &["--httpsAddr="]).await;
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": pod(&json!({}))});
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let stream = TcpStream::connect(mesh.server.http).await.expect("connect");
        let (status, text) = exchange(stream, "/inject", "application/json", body.to_string().as_bytes()).await;
        if status == 200 {
            assert!(text.contains("\"patch\""), "{text}");
            break;
        }
        assert!(status == 500 && Instant::now() < deadline, "{status} {text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
