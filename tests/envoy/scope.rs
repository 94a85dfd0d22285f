//! Sidecar resources: the services that a proxy imports, and the ports that it listens on.

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, eventually, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scope() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let app = |name, namespace| Workload::new(name, name, PodRole::Sidecar(Protocol::Delta)).namespace(namespace);
    let mesh = family::mesh_of(&[
        app("client", "shop"),
        app("tea", "shop"),
        app("cup", "kitchen").port("http", 8080, PortProtocol::Http),
        Workload::new("narrow", "narrow", PodRole::Sidecar(Protocol::Sotw)).namespace("kitchen"),
        app("inner", "shop").port("http", 8080, PortProtocol::Http),
    ])
    .await?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("egress hosts", Box::pin(egress_hosts(mesh))),
            ("an egress listener of its own", Box::pin(egress_listener(mesh))),
            ("an ingress listener", Box::pin(ingress_listener(mesh))),
        ],
    )
    .await
}

const TEA: Host = Host("tea", 1);

async fn egress_hosts(mesh: &Mesh) -> Result<()> {
    const CUP: &str = "10.200.2.1";
    let cup = r"
apiVersion: v1
kind: Service
metadata: {name: cup, namespace: kitchen}
spec:
  clusterIP: 10.200.2.1
  clusterIPs: [10.200.2.1]
  selector: {app: cup}
  ports: [{name: http, port: 80, targetPort: http}]
---
";
    mesh.apply("services.yaml", &(TEA.service("app: tea") + cup))?;
    let tea = AppRequest { host: "tea.shop".to_owned(), ..TEA.get() };
    let cup = AppRequest::get(vip(CUP, 80), "cup.kitchen");
    for from in ["client", "narrow"] {
        eventually(mesh, from, &tea, "tea v1").await?;
        eventually(mesh, from, &cup, "cup v1").await?;
    }
    let sidecar = r"
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: narrow, namespace: kitchen}
spec:
  workloadSelector: {labels: {app: narrow}}
  outboundTrafficPolicy: {mode: REGISTRY_ONLY}
  egress: [{hosts: [./*]}]
";
    mesh.apply("narrow.yaml", sidecar)?;
    eventually(mesh, "narrow", &tea, "status 502").await?;
    always(mesh, "narrow", &tea, 5, "status 502").await?;
    always(mesh, "narrow", &cup, 5, "cup v1").await?;
    always(mesh, "client", &tea, 5, "tea v1").await?;
    let envoy = mesh.pods.pod("narrow").envoy.as_ref().context("a sidecar")?;
    let clusters = envoy.admin("/config_dump?resource=dynamic_active_clusters").await?;
    ensure!(!clusters.contains(".shop.svc.cluster.local"), "no cluster of namespace shop is left");
    // One more host is visible.
    mesh.apply("narrow.yaml", &sidecar.replace("[./*]", "[./*, shop/tea.shop.svc.cluster.local]"))?;
    eventually(mesh, "narrow", &tea, "tea v1").await?;
    Ok(())
}

/// The application calls its own loopback.
async fn egress_listener(mesh: &Mesh) -> Result<()> {
    let sidecar = r"
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: client, namespace: shop}
spec:
  workloadSelector: {labels: {app: client}}
  egress:
  - port: {number: 7000, name: http, protocol: HTTP}
    bind: 127.0.0.1
    captureMode: NONE
    hosts: ['*/*']
  - hosts: ['*/*']
";
    mesh.apply("client.yaml", sidecar)?;
    // The Service that the listener on that port routes to.
    let service = Host("local", 2).service_with("app: tea", "[{name: http, port: 7000, targetPort: http}]");
    mesh.apply("local.yaml", &service)?;
    let call = AppRequest::get(vip("127.0.0.1", 7000), "local.shop.svc.cluster.local:7000");
    eventually(mesh, "client", &call, "tea v1").await?;
    Ok(())
}

/// The proxy listens on a declared port and forwards to the application's port.
async fn ingress_listener(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("inner", 3);
    let sidecar = r"
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: inner, namespace: shop}
spec:
  workloadSelector: {labels: {app: inner}}
  ingress:
  - port: {number: 9080, name: http, protocol: HTTP}
    defaultEndpoint: 127.0.0.1:8080
";
    mesh.apply(
        "inner.yaml",
        &(HOST.service_with("app: inner", "[{name: http, port: 80, targetPort: 9080}]") + sidecar),
    )?;
    until(mesh, "client", &HOST.get(), "inner over mutual TLS", |reply| {
        let received = reply.outcome.as_ref().map(|answer| answer.received_request()).unwrap_or_default();
        reply.responder() == "inner v1" && received["headers"]["x-forwarded-client-cert"].is_string()
    })
    .await?;
    Ok(())
}
