//! The agent and the real control plane: its authority, its tokens, its configuration.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::pods::token::TokenIssuer;
use sluice_testkit::ports::free_ports;
use sluice_testkit::server::{Options, Sluiced};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::control_plane::IDENTITY;
use crate::machine::{Machine, Upstream, until};

/// A gateway that shows the workload's certificate on one port and answers by itself on another.
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

/// A control plane with these objects, and a gateway of it that was not started yet.
struct Mesh {
    directory: tempfile::TempDir,
    server: Sluiced,
    machine: Machine,
}

impl Mesh {
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
                // As a root in a cluster has it.
                ("CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE".to_owned(), "2048".to_owned()),
            ],
            log: Some(path("log")),
            ..Options::new(&path("objects"))
        };
        let server = Sluiced::start(&options).await?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
        let subject = "system:serviceaccount:shop:tea";
        let claims = json!({"iss": "https://issuer", "sub": subject, "aud": ["istio-ca"], "exp": now + 600});
        let upstream = Upstream {
            address: server.secure.context("the port is open")?,
            secure: true,
            root: std::fs::read_to_string(path("authority/root-cert.pem"))?,
            token: issuer.sign(&claims)?,
            listener: port,
        };
        let mut machine = Machine::new("router", upstream)?;
        machine.variables.insert("ISTIO_META_CLUSTER_ID", "Kubernetes".to_owned());
        machine.variables.insert("ISTIO_METAJSON_LABELS", json!({"istio": "gate"}).to_string());
        Ok(Self { directory, server, machine })
    }

    /// Puts other objects beside the first ones.
    fn put(&self, objects: &str) -> Result<()> {
        Ok(std::fs::write(self.directory.path().join("objects/more.yaml"), objects)?)
    }

    fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.directory.path().join("log"))?)
    }
}

#[tokio::test]
async fn the_control_plane_certifies_and_configures_a_gateway() -> Result<()> {
    let [port, plain] = free_ports()?;
    let mut mesh = Mesh::start(&objects(port, plain), port).await?;
    let machine = &mut mesh.machine;
    machine.variables.insert("SECRET_TTL", "10s".to_owned());
    machine.start()?;
    machine.ready().await?;
    let shown = until("a certificate", async || machine.certificate().await.ok()).await?;
    ensure!(shown.uris == [IDENTITY], "{:?}", shown.uris);
    let mut client = machine.plain_client(plain).await?;
    client.get().await?;
    until("another certificate", async || (machine.certificate().await.ok()?.serial != shown.serial).then_some(()))
        .await?;
    machine.signal("TERM").await?;
    ensure!(machine.end().await? == Some(0));
    machine.assert_no_secrets()?;
    let log = mesh.log()?;
    ensure!(log.contains("listening") && !log.contains("PRIVATE KEY"), "{log}");
    Ok(())
}

#[tokio::test]
async fn debug_pages_are_shown_on_the_machine_as_the_proxy_may_see_them() -> Result<()> {
    let [port, plain] = free_ports()?;
    let mut mesh = Mesh::start(&objects(port, plain), port).await?;
    let machine = &mut mesh.machine;
    machine.start()?;
    machine.ready().await?;
    let (status, text) = machine.debug("GET", "/debug/syncz").await?;
    let sync: Value = serde_json::from_str(&text).context("JSON")?;
    ensure!(status == 200 && sync["typeUrl"] == "istio.io/debug/syncz", "{status} {text}");
    let id = sync["resources"][0]["node"]["id"].as_str().context("the proxy itself")?;
    ensure!(id.contains("~tea-1.shop~"), "{text}");
    let (status, text) = machine.debug("POST", "/debug/config_dump?resourceName=tea-1.shop").await?;
    ensure!(status == 200 && text.contains("envoy.admin.v3.ListenersConfigDump"), "{status} {text}");
    let (status, text) = machine.debug("GET", "/debug/config_dump?proxyID=tea-1.shop").await?;
    let page: Value = serde_json::from_str(&text).context("JSON")?;
    ensure!(status == 200 && page["configs"].is_array(), "the page as it is: {status} {text}");
    // What is refused says why, and Envoy's own stream does not end of it.
    let (status, text) = machine.debug("GET", "/debug/connections").await?;
    ensure!(status == 403 && text.contains("connections"), "{status} {text}");
    let (status, text) = machine.debug("GET", "/debug").await?;
    ensure!(status == 400 && text.contains("exactly one"), "{status} {text}");
    ensure!(!machine.log().contains("a stream ended"), "{}", machine.log());
    mesh.server.kill().await?;
    let (status, text) = machine.debug("GET", "/debug/syncz").await?;
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

/// A module that does nothing: a function that names the version of the interface, one that gives memory, and memory.
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

/// Serves bytes to whoever connects.
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

/// Envoy runs a plugin's module. Without it the plugin lets nothing pass, or everything if it may; Envoy takes both.
#[tokio::test]
async fn a_plugin_without_module_denies_or_allows() -> Result<()> {
    let [port, plain] = free_ports()?;
    let mut mesh = Mesh::start(&objects(port, plain), port).await?;
    // Nobody is there.
    let [nobody] = free_ports()?;
    let url = format!("http://127.0.0.1:{nobody}/m.wasm");
    mesh.put(&plugin(&url, "FAIL_CLOSE"))?;
    mesh.machine.variables.insert("WASM_HTTP_REQUEST_MAX_RETRIES", "1".to_owned());
    mesh.machine.start()?;
    mesh.machine.ready().await?;
    let machine = &mesh.machine;
    let answers = async |wanted: u16| {
        let what = format!("requests are answered {wanted}");
        until(&what, async || (machine.request(plain).await.ok()?.0 == wanted).then_some(())).await
    };
    answers(403).await.with_context(|| machine.log())?;
    mesh.put(&plugin(&url, "FAIL_OPEN"))?;
    answers(200).await.with_context(|| machine.log())?;
    let url = format!("http://127.0.0.1:{}/m.wasm", serve(idle_module()).await?);
    mesh.put(&plugin(&url, "FAIL_CLOSE"))?;
    // The plugin fails closed: were Envoy not content with the module, nothing would pass.
    let names_file = async || {
        let filters = machine.admin("/config_dump?resource=ecds_filters").await.ok()?;
        (filters.contains("/var/lib/istio/data/") && !filters.contains("remote")).then_some(())
    };
    until("Envoy is told of a file", names_file).await.with_context(|| machine.log())?;
    answers(200).await.with_context(|| machine.log())?;
    let dump = mesh.server.get("/debug/syncz").await?.1;
    ensure!(!dump.contains("lastError"), "nothing was refused: {dump}");
    let (_, metrics) = machine.status("/stats/prometheus").await?;
    ensure!(metrics.contains("istio_agent_wasm_config_conversion_count_total{result=\"fetch_failure\"}"), "{metrics}");
    Ok(())
}
