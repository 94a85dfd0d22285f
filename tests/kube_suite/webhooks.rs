//! The webhooks of a real `sluiced`, called as the API server calls them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use sluice_testkit::kube_api::{KubeApi, Route};
use sluice_testkit::server::{Options, Sluiced, get};
use sluice_testkit::wait::until_async;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const SYSTEM: &str = "istio-system";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const MUTATING: &str = "MutatingWebhookConfiguration";
const VALIDATING: &str = "ValidatingWebhookConfiguration";
/// The name of the Service that the webhook configurations refer to.
const SERVER_NAME: &str = "istiod.istio-system.svc";

/// A control plane of a cluster, with its webhooks.
pub(crate) struct WebhookFixture {
    api: KubeApi,
    pub(crate) server: Sluiced,
    /// The roots in the webhook configurations; empty if there is no port with TLS.
    roots: String,
    _directory: TempDir,
}

/// The configuration of the injector.
pub(crate) fn injector(template: &str) -> Value {
    let config = json!({"policy": "enabled", "templates": {"sidecar": template}}).to_string();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": SYSTEM, "name": "istio-sidecar-injector"},
        "data": {"config": config, "values": "global: {hub: example.com, tag: one}"},
    })
}

/// A template with an image, and with parts of the mesh config and of the cluster.
pub(crate) fn template(image: &str) -> String {
    format!(
        "spec:\n  containers:\n  - name: istio-proxy\n    image: {image}\n    env:\n    - {{name: DOMAIN, value: \
         \"{{{{ .MeshConfig.TrustDomain }}}}\"}}\n    - {{name: NATIVE, value: \"{{{{ .NativeSidecars }}}}\"}}\n"
    )
}

fn configuration(kind: &str, webhook: &str) -> Value {
    json!({
        "apiVersion": ADMISSION, "kind": kind,
        "metadata": {"name": "istio", "labels": {"istio.io/rev": "default"}},
        "webhooks": [{
            "name": webhook, "clientConfig": {"service": {"name": "istiod", "namespace": SYSTEM}},
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    })
}

async fn roots_of(api: &KubeApi, kind: &str) -> Option<String> {
    let object = api.get(ADMISSION, kind, "", "istio").await?;
    let encoded = object["webhooks"][0]["clientConfig"]["caBundle"].as_str()?;
    Some(String::from_utf8(STANDARD.decode(encoded).expect("base64")).expect("PEM"))
}

impl WebhookFixture {
    pub(crate) async fn start(api: KubeApi, injection: Option<Value>, args: &[&str]) -> Self {
        Self::start_with(api, injection, args, &[]).await
    }

    /// The same with environment variables.
    pub(crate) async fn start_with(
        api: KubeApi,
        injection: Option<Value>,
        args: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        api.create_namespace(SYSTEM).await;
        if let Some(object) = injection {
            api.apply(object).await;
        }
        api.apply(configuration(MUTATING, "rev.object.sidecar-injector.istio.io")).await;
        api.apply(configuration(VALIDATING, "rev.validation.istio.io")).await;
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, api.kubeconfig(Route::Direct).to_string()).expect("written");
        let mut options = Options { kubeconfig: Some(kubeconfig), ..Options::new(Path::new("/none")) };
        options.args = args.iter().map(|argument| (*argument).to_owned()).collect();
        options.env = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let server = Sluiced::start(&options).await.expect("a server");
        let mut roots = String::new();
        if server.https.is_some() {
            roots = until_async("the roots are written", async || roots_of(&api, MUTATING).await).await;
        }
        Self { api, server, roots, _directory: directory }
    }

    pub(crate) async fn connect(&self) -> tokio_rustls::client::TlsStream<TcpStream> {
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
    pub(crate) async fn post(&self, path: &str, body: &[u8]) -> (u16, String) {
        exchange(self.connect().await, path, "application/json", body).await
    }

    /// The `response` of the review.
    pub(crate) async fn review(&self, path: &str, request: Value) -> Value {
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
    pub(crate) async fn injects(&self, part: &str) {
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

    pub(crate) async fn metric(&self, line: &str) -> f64 {
        let (_, text) = get(self.server.monitoring, "/metrics").await.expect("metrics");
        let value = text.lines().find_map(|it| it.strip_prefix(line)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().expect("a number"))
    }
}

pub(crate) fn pod(annotations: &Value) -> Value {
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
pub(crate) async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    content_type: &str,
    body: &[u8],
) -> (u16, String) {
    exchange_declared(stream, path, content_type, (body.len(), body)).await
}

/// The same with a declared length of the body.
pub(crate) async fn exchange_declared(
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

pub(crate) const HTTPS: &str = "--httpsAddr=127.0.0.1:0";

with_api_server!(pods_are_injected_by_the_config_map_and_its_changes, own);
async fn pods_are_injected_by_the_config_map_and_its_changes(api: KubeApi) {
    let mesh = WebhookFixture::start(api, Some(injector(&template("proxy:one"))), &[HTTPS]).await;
    mesh.injects("proxy:one").await;
    mesh.injects(r#""value":"n1""#).await;
    mesh.injects(r#""value":"cluster.local""#).await;
    until_async("the roots are written", async || roots_of(&mesh.api, VALIDATING).await.filter(|it| *it == mesh.roots))
        .await;

    mesh.api.apply(injector(&template("proxy:two"))).await;
    mesh.injects("proxy:two").await;
    // A template that does not parse leaves the former one in use.
    mesh.api.apply(injector("{{")).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while mesh.metric("sluice_injection_config_errors").await < 1.0 {
        assert!(Instant::now() < deadline, "the error is counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    mesh.injects("proxy:two").await;
    // The mesh config is followed meanwhile.
    mesh.api
        .apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": SYSTEM, "name": "istio"},
            "data": {"mesh": "trustDomain: example.org"},
        }))
        .await;
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

with_api_server!(kubelets_decide_about_native_sidecars, own);
async fn kubelets_decide_about_native_sidecars(api: KubeApi) {
    let mesh = WebhookFixture::start(api, Some(injector(&template("proxy:one"))), &[HTTPS]).await;
    let node = |name: &str, version: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"nodeInfo": {"kubeletVersion": version}},
        })
    };
    let native = |value: bool| format!(r#"{{"name":"NATIVE","value":"{value}"}}"#);
    mesh.injects(&native(false)).await;
    mesh.api.apply(node("one", "v1.33.1")).await;
    mesh.injects(&native(true)).await;
    mesh.api.apply(node("two", "v1.32.9")).await;
    mesh.injects(&native(false)).await;
}
