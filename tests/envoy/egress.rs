//! Hosts outside the mesh: they are reachable by default, by ServiceEntries, or over TLS that Envoy originates, and
//! unreachable with REGISTRY_ONLY.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::{AppReply, AppRequest, Tls};
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, eventually, once, until, until_counted};

const NAMES: [&str; 4] = ["api.example.com", "secure.example.com", "mutual.example.com", "late.example.com"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn egress() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let mesh = family::mesh_of(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Delta)),
        Workload::new("tea", "tea", PodRole::Sidecar(Protocol::Sotw)),
        Workload::new("world", "world", PodRole::External(&NAMES))
            .port("http", 8080, PortProtocol::Http)
            .port("https", 8443, PortProtocol::Https)
            .port("lines", 9000, PortProtocol::Lines),
        Workload::new("moon", "moon", PodRole::External(&["moon.example.org"]))
            .port("http", 8080, PortProtocol::Http)
            .port("https", 8443, PortProtocol::Https),
    ])
    .await?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("an unknown host", Box::pin(unknown_host(mesh))),
            ("a ServiceEntry with addresses", Box::pin(entry_with_addresses(mesh))),
            ("a ServiceEntry by DNS", Box::pin(entry_by_dns(mesh))),
            ("TLS passes through", Box::pin(tls_passes_through(mesh))),
            ("TLS that Envoy adds", Box::pin(tls_origination(mesh))),
            ("a ServiceEntry with a selector", Box::pin(entry_with_selector(mesh))),
        ],
    )
    .await?;
    // Scenarios that change the whole mesh run after the others.
    family::run(mesh, vec![("REGISTRY_ONLY", Box::pin(registry_only(mesh)))]).await
}

fn ip_of(mesh: &Mesh, pod: &str) -> String {
    mesh.pods.pod(pod).net.ip.to_string()
}

/// The client's counter of responses with status 200 from a cluster.
async fn successes_of(mesh: &Mesh, cluster: &str) -> Result<usize> {
    let envoy = mesh.pods.pod("client").envoy.as_ref().context("a sidecar")?;
    let name = format!("cluster.{cluster};.upstream_rq_200");
    Ok(usize::try_from(envoy.stat(&name).await?).unwrap_or(0))
}

async fn unknown_host(mesh: &Mesh) -> Result<()> {
    // With an HTTP service on the same port there is a route table, whose last entry matches every other host.
    mesh.apply("tea.yaml", &Host("tea", 1).service_with("app: tea", "[{name: http, port: 8080}]"))?;
    eventually(mesh, "client", &AppRequest::get(vip("10.200.1.1", 8080), "tea:8080"), "tea v1").await?;
    let call = AppRequest::get(vip(&ip_of(mesh, "moon"), 8080), "unknown.example.org");
    eventually(mesh, "client", &call, "moon v1").await?;
    always(mesh, "client", &call, 10, "moon v1").await?;
    ensure!(
        successes_of(mesh, "PassthroughCluster").await? >= 10,
        "the requests pass through the PassthroughCluster\n{}",
        mesh.pods.pod("client").stats_of("Passthrough").await
    );
    Ok(())
}

async fn entry_with_addresses(mesh: &Mesh) -> Result<()> {
    mesh.apply(
        "entry-with-addresses.yaml",
        r"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: static, namespace: shop}
spec:
  hosts: [static.example.com]
  addresses: [10.200.2.1]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports:
  - {number: 8000, name: http, protocol: HTTP, targetPort: 8080}
  - {number: 9001, name: tcp, protocol: TCP, targetPort: 9000}
  endpoints: [{address: $IP_OF_world}]
",
    )?;
    let call = AppRequest::get(vip("10.200.2.1", 8000), "static.example.com:8000");
    eventually(mesh, "client", &call, "world v1").await?;
    let cluster = "outbound|8000||static.example.com";
    ensure!(successes_of(mesh, cluster).await? > 0, "{}", mesh.pods.pod("client").stats_of("static").await);
    eventually(mesh, "client", &AppRequest::raw(vip("10.200.2.1", 9001)), "world v1").await?;
    Ok(())
}

async fn entry_by_dns(mesh: &Mesh) -> Result<()> {
    mesh.apply(
        "entry-by-dns.yaml",
        r"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: shop}
spec:
  hosts: [api.example.com]
  addresses: [10.200.2.2]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: api, namespace: shop}
spec:
  hosts: [api.example.com]
  http:
  - timeout: 300ms
    retries: {attempts: 0}
    headers: {request: {set: {x-from: mesh}}}
    route: [{destination: {host: api.example.com}}]
",
    )?;
    let call = AppRequest::get(vip("10.200.2.2", 80), "api.example.com");
    eventually(mesh, "client", &call, "world v1").await?;
    once(mesh, "client", &call, "the route's header", |reply| {
        reply.outcome.as_ref().is_ok_and(|answer| answer.received_request()["headers"]["x-from"] == "mesh")
    })
    .await?;
    // The host selects the route, whatever address the client uses.
    let by_address = AppRequest { address: vip(&ip_of(mesh, "moon"), 80), ..call.clone() };
    once(mesh, "client", &by_address, "world v1", |reply| reply.responder() == "world v1").await?;
    once(mesh, "client", &call.path("/?delay-ms=3000"), "a timeout", |reply| {
        reply.responder() == "status 504" && reply.elapsed() < Duration::from_secs(2)
    })
    .await?;
    Ok(())
}

fn tls(mesh: &Mesh, name: &str) -> Tls {
    Tls { server_name: name.to_owned(), roots: mesh.pods.authority.root().to_owned(), ..Tls::default() }
}

fn received_tls(reply: &AppReply, field: &str) -> serde_json::Value {
    reply.outcome.as_ref().map(|answer| answer.received_request()["tls"][field].clone()).unwrap_or_default()
}

async fn tls_passes_through(mesh: &Mesh) -> Result<()> {
    mesh.apply(
        "tls-passes-through.yaml",
        r"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: secure, namespace: shop}
spec:
  hosts: [secure.example.com]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 443, name: tls, protocol: TLS, targetPort: 8443}]
",
    )?;
    let call =
        AppRequest::get(vip(&ip_of(mesh, "world"), 443), "secure.example.com").tls(tls(mesh, "secure.example.com"));
    until(mesh, "client", &call, "the application's own TLS at world", |reply| {
        reply.responder() == "world v1" && received_tls(reply, "serverName") == "secure.example.com"
    })
    .await?;
    until_counted("connections of its own cluster", 1, async || {
        mesh.pods.pod("client").call(call.clone()).await?;
        let envoy = mesh.pods.pod("client").envoy.as_ref().context("a sidecar")?;
        let name = "cluster.outbound|443||secure.example.com;.upstream_cx_total";
        Ok(usize::try_from(envoy.stat(name).await?).unwrap_or(0))
    })
    .await
}

async fn tls_origination(mesh: &Mesh) -> Result<()> {
    mesh.pods.write_certificate("client-identity", &["client.example.com".to_owned()])?;
    mesh.apply(
        "tls-origination.yaml",
        r"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mutual, namespace: shop}
spec:
  hosts: [mutual.example.com]
  addresses: [10.200.2.3]
  location: MESH_EXTERNAL
  resolution: DNS
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: 8443}
  - {number: 81, name: http-simple, protocol: HTTP, targetPort: 8443}
  - {number: 82, name: http-wrong, protocol: HTTP, targetPort: 8443}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: mutual, namespace: shop}
spec:
  host: mutual.example.com
  trafficPolicy:
    portLevelSettings:
    - port: {number: 80}
      tls:
        mode: MUTUAL
        clientCertificate: $DIRECTORY/client-identity.pem
        privateKey: $DIRECTORY/client-identity-key.pem
        caCertificates: $DIRECTORY/root.pem
        sni: mutual.example.com
        subjectAltNames: [mutual.example.com]
    - port: {number: 81}
      tls: {mode: SIMPLE, caCertificates: $DIRECTORY/root.pem, sni: late.example.com}
    - port: {number: 82}
      tls: {mode: SIMPLE, caCertificates: $DIRECTORY/root.pem, subjectAltNames: [other.example.com]}
",
    )?;
    for (port, name, certificate) in [(80, "mutual.example.com", true), (81, "late.example.com", false)] {
        let host = if port == 80 { "mutual.example.com".to_owned() } else { format!("mutual.example.com:{port}") };
        let call = AppRequest::get(vip("10.200.2.3", port), &host);
        until(mesh, "client", &call, &format!("TLS to {name}, client certificate: {certificate}"), |reply| {
            reply.responder() == "world v1"
                && received_tls(reply, "serverName") == name
                && received_tls(reply, "clientCertificate") == certificate
        })
        .await?;
    }
    // A certificate of another name is rejected.
    let call = AppRequest::get(vip("10.200.2.3", 82), "mutual.example.com:82");
    until(mesh, "client", &call, "503, the certificate is not of that name", |reply| reply.responder() == "status 503")
        .await?;
    Ok(())
}

async fn entry_with_selector(mesh: &Mesh) -> Result<()> {
    mesh.apply(
        "entry-with-selector.yaml",
        r"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: inside, namespace: shop}
spec:
  hosts: [inside.example.com]
  addresses: [10.200.2.4]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  workloadSelector: {labels: {app: tea}}
",
    )?;
    let call = AppRequest::get(vip("10.200.2.4", 80), "inside.example.com");
    until(mesh, "client", &call, "tea over mutual TLS", |reply| {
        let received = reply.outcome.as_ref().map(|answer| answer.received_request()).unwrap_or_default();
        let certificate = received["headers"]["x-forwarded-client-cert"].as_str().unwrap_or_default();
        reply.responder() == "tea v1" && certificate.contains("/ns/shop/sa/client")
    })
    .await?;
    Ok(())
}

async fn registry_only(mesh: &Mesh) -> Result<()> {
    let unknown = AppRequest::get(vip(&ip_of(mesh, "moon"), 8080), "unknown.example.org");
    let raw = AppRequest::raw(vip(&ip_of(mesh, "world"), 9000));
    let known = AppRequest::get(vip("10.200.2.2", 80), "api.example.com");
    eventually(mesh, "client", &unknown, "moon v1").await?;
    eventually(mesh, "client", &raw, "world v1").await?;
    let config = r"
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'outboundTrafficPolicy: {mode: REGISTRY_ONLY}'}
";
    mesh.apply("mesh.yaml", config)?;
    eventually(mesh, "client", &unknown, "status 502").await?;
    always(mesh, "client", &unknown, 10, "status 502").await?;
    until(mesh, "client", &raw, "a closed connection", |reply| reply.outcome.is_err()).await?;
    always(mesh, "client", &known, 10, "world v1").await?;
    // The setting is reverted.
    std::fs::remove_file(mesh.config_file("mesh.yaml"))?;
    eventually(mesh, "client", &unknown, "moon v1").await?;
    eventually(mesh, "client", &raw, "world v1").await?;
    Ok(())
}
