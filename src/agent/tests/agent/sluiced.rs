//! The agent and the real control plane: its authority, its tokens, its configuration.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sluice_testkit::pods::token::TokenIssuer;
use sluice_testkit::server::{Options, Sluiced};

use crate::control_plane::IDENTITY;
use crate::machine::{Machine, Upstream, free_ports, until};

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

#[tokio::test]
async fn the_control_plane_certifies_and_configures_a_gateway() -> Result<()> {
    let directory = tempfile::tempdir().context("make a directory")?;
    let path = |name: &str| directory.path().join(name);
    let [port, plain] = free_ports()?;
    std::fs::create_dir(path("objects"))?;
    std::fs::write(path("objects/objects.yaml"), objects(port, plain))?;
    let issuer = TokenIssuer::new()?;
    std::fs::write(path("keys.json"), issuer.key_set())?;
    let options = Options {
        args: vec![
            "--secureGRPCAddr=127.0.0.1:0".to_owned(),
            "--createCA".to_owned(),
            format!("--tokenKeys={}", path("keys.json").display()),
            "--tokenIssuer=https://issuer".to_owned(),
        ],
        env: vec![("ROOT_CA_DIR".to_owned(), path("authority").display().to_string())],
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
    machine.variables.insert("SECRET_TTL", "10s".to_owned());
    machine.variables.insert("ISTIO_METAJSON_LABELS", json!({"istio": "gate"}).to_string());
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
    let log = std::fs::read_to_string(path("log"))?;
    ensure!(log.contains("listening") && !log.contains("PRIVATE KEY"), "{log}");
    Ok(())
}
