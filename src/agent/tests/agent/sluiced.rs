//! The agent with `sluiced`: its certificate authority, tokens and configuration.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::pods::token::TokenIssuer;
use sluice_testkit::ports::free_ports;
use sluice_testkit::server::{Options, Sluiced};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::control_plane::IDENTITY;
use crate::test_pod::{ControlPlaneAddress, TestPod, until};

/// A gateway that presents the workload's certificate on one port, and responds in plaintext on another.
fn objects(port: u16, plain: u16) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: gate, namespace: shop}}
spec:
  selector: {{istio: gate}}
  servers:
  - port: {{number: {port}, name: mutual, protocol: HTTPS}}
    hosts: ['*']
    tls: {{mode: ISTIO_MUTUAL}}
  - port: {{number: {plain}, name: http, protocol: HTTP}}
    hosts: ['*']
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: answer, namespace: shop}}
spec:
  hosts: ['*']
  gateways: [gate]
  http:
  - directResponse: {{status: 200, body: {{string: served}}}}
"
    )
}

/// A control plane with these objects, and its gateway, which is not started yet.
struct GatewayMesh {
    directory: tempfile::TempDir,
    server: Sluiced,
    pod: TestPod,
}

impl GatewayMesh {
    async fn start(objects: &str, port: u16) -> Result<Self> {
        let directory = tempfile::tempdir().context("make a directory")?;
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir(path("objects"))?;
        std::fs::write(path("objects/objects.yaml"), objects)?;
        let issuer = TokenIssuer::new()?;
        std::fs::write(path("keys.json"), issuer.key_set())?;
        let options = Options {
            args: vec![
                "--secureGRPCAddr=127.0.0.1:0".to_owned(),
                "--createCA".to_owned(),
                format!("--tokenKeys={}", path("keys.json").display()),
                "--tokenIssuer=https://issuer".to_owned(),
            ],
            env: vec![
                ("ROOT_CA_DIR".to_owned(), path("authority").display().to_string()),
                // The default in a cluster.
                ("CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE".to_owned(), "2048".to_owned()),
            ],
            log: Some(path("log")),
            ..Options::new(&path("objects"))
        };
        let server = Sluiced::start(&options).await?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
        let subject = "system:serviceaccount:shop:tea";
        let claims = json!({"iss": "https://issuer", "sub": subject, "aud": ["istio-ca"], "exp": now + 600});
        let upstream = ControlPlaneAddress {
            address: server.secure.context("the port is open")?,
            secure: true,
            root: std::fs::read_to_string(path("authority/root-cert.pem"))?,
            token: issuer.sign(&claims)?,
            listener: port,
        };
        let mut pod = TestPod::new("router", upstream)?;
        pod.variables.insert("ISTIO_META_CLUSTER_ID", "Kubernetes".to_owned());
        pod.variables.insert("ISTIO_METAJSON_LABELS", json!({"istio": "gate"}).to_string());
        Ok(Self { directory, server, pod })
    }

    /// Adds a file of objects.
    fn put(&self, objects: &str) -> Result<()> {
        Ok(std::fs::write(self.directory.path().join("objects/more.yaml"), objects)?)
    }

    fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.directory.path().join("log"))?)
    }
}

#[tokio::test]
async fn gateway_is_certified_and_configured() -> Result<()> {
    let [port, plain] = free_ports()?;
    let mut mesh = GatewayMesh::start(&objects(port, plain), port).await?;
    let pod = &mut mesh.pod;
    pod.variables.insert("SECRET_TTL", "10s".to_owned());
    pod.start()?;
    pod.ready().await?;
    let certificate = until("a certificate", async || pod.certificate().await.ok()).await?;
    ensure!(certificate.uris == [IDENTITY], "{:?}", certificate.uris);
    let mut client = pod.plain_client(plain).await?;
    client.get().await?;
    until("another certificate", async || (pod.certificate().await.ok()?.serial != certificate.serial).then_some(()))
        .await?;
    pod.signal("TERM").await?;
    ensure!(pod.exit_code().await? == Some(0));
    pod.assert_no_secrets()?;
    let log = mesh.log()?;
    ensure!(log.contains("listening") && !log.contains("PRIVATE KEY"), "{log}");
    Ok(())
}

#[tokio::test]
async fn debug_pages_show_what_the_proxy_is_allowed_to_see() -> Result<()> {
    let [port, plain] = free_ports()?;
    let mut mesh = GatewayMesh::start(&objects(port, plain), port).await?;
    let pod = &mut mesh.pod;
    pod.start()?;
    pod.ready().await?;
    let (status, text) = pod.debug("GET", "/debug/syncz").await?;
    let sync: Value = serde_json::from_str(&text).context("JSON")?;
    ensure!(status == 200 && sync["typeUrl"] == "istio.io/debug/syncz", "{status} {text}");
    let id = sync["resources"][0]["node"]["id"].as_str().context("the proxy itself")?;
    ensure!(id == "tea-1.shop", "{text}");
    let (status, text) = pod.debug("POST", "/debug/config_dump?resourceName=tea-1.shop").await?;
    ensure!(status == 200 && text.contains("envoy.admin.v3.ListenersConfigDump"), "{status} {text}");
    let (status, text) = pod.debug("GET", "/debug/config_dump?proxyID=tea-1.shop").await?;
    let page: Value = serde_json::from_str(&text).context("JSON")?;
    ensure!(status == 200 && page["configs"].is_array(), "the page is unchanged: {status} {text}");
    // A rejected request has a reason, and does not end Envoy's stream.
    let (status, text) = pod.debug("GET", "/debug/connections").await?;
    ensure!(status == 403 && text.contains("connections"), "{status} {text}");
    let (status, text) = pod.debug("GET", "/debug").await?;
    ensure!(status == 400 && text.contains("exactly one"), "{status} {text}");
    ensure!(!pod.log().contains("stream ended"), "{}", pod.log());
    mesh.server.kill().await?;
    let (status, text) = pod.debug("GET", "/debug/syncz").await?;
    ensure!(status == 503 && text.contains("connect to"), "{status} {text}");
    Ok(())
}

fn plugin(url: &str, strategy: &str) -> String {
    format!(
        "
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {{name: guard, namespace: shop}}
spec:
  selector: {{matchLabels: {{istio: gate}}}}
  url: {url}
  failStrategy: {strategy}
"
    )
}

/// A module without effect: a function that names the ABI version, one that allocates memory, and memory.
fn idle_module() -> Vec<u8> {
    let parts: [&[u8]; 10] = [
        b"\0asm\x01\0\0\0",
        b"\x01\x09\x02\x60\0\0\x60\x01\x7f\x01\x7f",
        b"\x03\x03\x02\0\x01",
        b"\x05\x03\x01\0\x01",
        b"\x07\x3f\x03",
        b"\x06memory\x02\0",
        b"\x17proxy_abi_version_0_2_1\0\0",
        b"\x18proxy_on_memory_allocate\0\x01",
        b"\x0a\x09\x02\x02\0\x0b",
        b"\x04\0\x41\0\x0b",
    ];
    parts.concat()
}

/// Serves the same bytes to all clients.
async fn serve(body: Vec<u8>) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
        }
    });
    Ok(port)
}

/// Envoy runs a plugin's module. Without the module all requests are denied, or allowed if the plugin fails open.
#[tokio::test]
async fn plugin_without_module_denies_or_allows_requests() -> Result<()> {
    let [port, plain] = free_ports()?;
    let mut mesh = GatewayMesh::start(&objects(port, plain), port).await?;
    // No server listens on this port.
    let [unused_port] = free_ports()?;
    let url = format!("http://127.0.0.1:{unused_port}/m.wasm");
    mesh.put(&plugin(&url, "FAIL_CLOSE"))?;
    mesh.pod.variables.insert("WASM_HTTP_REQUEST_MAX_RETRIES", "1".to_owned());
    mesh.pod.start()?;
    mesh.pod.ready().await?;
    let pod = &mesh.pod;
    let responds_with = async |expected: u16| {
        let what = format!("requests have status {expected}");
        until(&what, async || (pod.request(plain).await.ok()?.0 == expected).then_some(())).await
    };
    responds_with(403).await.with_context(|| pod.log())?;
    mesh.put(&plugin(&url, "FAIL_OPEN"))?;
    responds_with(200).await.with_context(|| pod.log())?;
    let url = format!("http://127.0.0.1:{}/m.wasm", serve(idle_module()).await?);
    mesh.put(&plugin(&url, "FAIL_CLOSE"))?;
    // The plugin fails closed: if Envoy rejected the module, all requests would be denied.
    let names_file = async || {
        let filters = pod.admin("/config_dump?resource=ecds_filters").await.ok()?;
        (filters.contains("/var/lib/istio/data/") && !filters.contains("remote")).then_some(())
    };
    until("Envoy loads a file", names_file).await.with_context(|| pod.log())?;
    responds_with(200).await.with_context(|| pod.log())?;
    let dump = mesh.server.get("/debug/syncz").await?.1;
    ensure!(!dump.contains("lastError"), "no resource is rejected: {dump}");
    let (_, metrics) = pod.status("/stats/prometheus").await?;
    ensure!(metrics.contains("istio_agent_wasm_config_conversion_count_total{result=\"fetch_failure\"}"), "{metrics}");
    Ok(())
}
