//! TCP and TLS routes.

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::{AppRequest, Tls};
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, eventually, share, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layer4() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let lines = |name, proxy| {
        Workload::new(name, "lines", proxy)
            .port("http", 8080, PortProtocol::Http)
            .port("lines", 9000, PortProtocol::Lines)
            .port("https", 8443, PortProtocol::Https)
    };
    let mesh = family::mesh_of(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Delta)),
        lines("lines-v1", PodRole::Sidecar(Protocol::Delta)),
        lines("lines-v2", PodRole::Sidecar(Protocol::Sotw)).version("v2"),
        lines("lines-v3", PodRole::NoProxy).version("v3"),
        Workload::new("west", "west", PodRole::External(&["one.example.com", "two.example.com"])).port(
            "https",
            8443,
            PortProtocol::Https,
        ),
        Workload::new("east", "east", PodRole::External(&["one.example.com", "two.example.com"])).port(
            "https",
            8443,
            PortProtocol::Https,
        ),
    ])
    .await?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("TCP", Box::pin(tcp(mesh))),
            ("TCP weights", Box::pin(tcp_weights(mesh))),
            ("TCP by port", Box::pin(tcp_by_port(mesh))),
            ("a protocol that is not said", Box::pin(sniffing(mesh))),
            ("TLS of the application", Box::pin(tls_of_the_application(mesh))),
            ("SNI routing", Box::pin(sni_routing(mesh))),
            ("a headless Service", Box::pin(headless(mesh))),
        ],
    )
    .await
}

const LINES: &str = "[{name: tcp-lines, port: 9000, targetPort: lines}]";

/// Subsets for v1, v2 and v3.
const SUBSETS: &str = "subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}, \
                       {name: v3, labels: {version: v3}}]";

fn subsets(host: Host) -> String {
    let name = host.0;
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{host: {name}, {SUBSETS}}}\n---\n"
    )
}

fn raw(host: Host, port: u16) -> AppRequest {
    AppRequest::raw(vip(&host.ip(), port))
}

async fn tcp(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("plain-tcp", 1);
    mesh.apply("tcp.yaml", &HOST.service_with("app: lines", LINES))?;
    for who in ["lines v1", "lines v2", "lines v3"] {
        eventually(mesh, "client", &raw(HOST, 9000), who).await?;
    }
    // Connections to a pod with a sidecar use mutual TLS: its Envoy counts handshakes.
    let envoy = mesh.pods.pod("lines-v1").envoy.as_ref().context("a sidecar")?;
    let handshakes = envoy.nonzero_stats("^listener\\.(.*_15006|virtualInbound).*ssl\\.handshake$").await?;
    ensure!(
        !handshakes.is_empty(),
        "connections between sidecars use TLS\n{}",
        mesh.pods.pod("client").stats_of("plain-tcp").await
    );
    Ok(())
}

fn tcp_rule(host: Host, tcp: &str) -> String {
    let name = host.0;
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  hosts: [{name}]\n  tcp:\n{tcp}\n---\n"
    )
}

async fn tcp_weights(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("weighted-tcp", 2);
    let rule = tcp_rule(
        HOST,
        "  - route:\n    - {destination: {host: weighted-tcp, subset: v1}, weight: 75}\n    \
         - {destination: {host: weighted-tcp, subset: v2}, weight: 25}",
    );
    mesh.apply("weighted-tcp.yaml", &(HOST.service_with("app: lines", LINES) + &subsets(HOST) + &rule))?;
    eventually(mesh, "client", &raw(HOST, 9000), "lines v2").await?;
    share(mesh, "client", &raw(HOST, 9000), 400, &[("lines v1", 75), ("lines v2", 25)]).await?;
    Ok(())
}

async fn tcp_by_port(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("ports-tcp", 3);
    let rule = tcp_rule(
        HOST,
        r"
  - match: [{port: 9001}]
    route: [{destination: {host: ports-tcp, subset: v1, port: {number: 9001}}}]
  - match: [{port: 9002}]
    route: [{destination: {host: ports-tcp, subset: v3, port: {number: 9002}}}]",
    );
    let ports = "[{name: tcp-one, port: 9001, targetPort: lines}, {name: tcp-two, port: 9002, targetPort: lines}]";
    mesh.apply("ports-tcp.yaml", &(HOST.service_with("app: lines", ports) + &subsets(HOST) + &rule))?;
    for (port, who) in [(9001, "lines v1"), (9002, "lines v3")] {
        eventually(mesh, "client", &raw(HOST, port), who).await?;
        always(mesh, "client", &raw(HOST, port), 10, who).await?;
    }
    Ok(())
}

/// Ports without a protocol: HTTP is detected and routed as HTTP, other traffic as TCP.
async fn sniffing(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("sniffed", 4);
    let ports = "[{name: something, port: 8000, targetPort: http}, {name: other, port: 9000, targetPort: lines}]";
    let rule = HOST.routes(
        "  - headers: {request: {set: {x-routed: as-http}}}\n    \
         route: [{destination: {host: sniffed, port: {number: 8000}}}]",
    );
    mesh.apply("sniffed.yaml", &(HOST.service_with("app: lines, version: v1", ports) + &rule))?;
    let http = AppRequest { address: vip(&HOST.ip(), 8000), host: "sniffed:8000".to_owned(), ..HOST.get() };
    for call in [http.clone(), http.http2()] {
        let call = AppRequest { timeout_ms: 2000, ..call };
        until(mesh, "client", &call, "a response with the route's header", |reply| {
            let received = reply.outcome.as_ref().map(|answer| answer.received_request()).unwrap_or_default();
            reply.responder() == "lines v1" && received["headers"]["x-routed"] == "as-http"
        })
        .await?;
    }
    eventually(mesh, "client", &raw(HOST, 9000), "lines v1").await?;
    Ok(())
}

fn tls(mesh: &Mesh, name: &str) -> Tls {
    Tls { server_name: name.to_owned(), roots: mesh.pods.authority.root().to_owned(), ..Tls::default() }
}

/// TLS of the application inside the mutual TLS of the mesh.
async fn tls_of_the_application(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("lines", 5);
    mesh.apply(
        "lines.yaml",
        &HOST.service_with("app: lines, version: v1", "[{name: https, port: 443, targetPort: https}]"),
    )?;
    let call =
        AppRequest { address: vip(&HOST.ip(), 443), ..HOST.get() }.tls(tls(mesh, "lines.shop.svc.cluster.local"));
    eventually(mesh, "client", &call, "lines v1").await?;
    Ok(())
}

/// Two names with one address and port: the SNI selects the route.
async fn sni_routing(mesh: &Mesh) -> Result<()> {
    mesh.apply(
        "sni.yaml",
        r"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: west, namespace: shop}
spec:
  hosts: [west.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, name: tls, protocol: TLS, targetPort: 8443}]
  endpoints: [{address: $IP_OF_west}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: east, namespace: shop}
spec:
  hosts: [east.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, name: tls, protocol: TLS, targetPort: 8443}]
  endpoints: [{address: $IP_OF_east}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: names, namespace: shop}
spec:
  hosts: [one.example.com, two.example.com]
  addresses: [10.200.2.10]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, name: tls, protocol: TLS, targetPort: 8443}]
  endpoints: [{address: $IP_OF_west}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: names, namespace: shop}
spec:
  hosts: [one.example.com, two.example.com]
  tls:
  - match: [{port: 443, sniHosts: [one.example.com]}]
    route: [{destination: {host: west.example.com, port: {number: 443}}}]
  - match: [{port: 443, sniHosts: [two.example.com]}]
    route: [{destination: {host: east.example.com, port: {number: 443}}}]
",
    )?;
    for (name, who) in [("one.example.com", "west v1"), ("two.example.com", "east v1")] {
        let call = AppRequest::get(vip("10.200.2.10", 443), name).tls(tls(mesh, name));
        eventually(mesh, "client", &call, who).await?;
        always(mesh, "client", &call, 10, who).await?;
    }
    Ok(())
}

/// A headless Service: clients connect to the addresses of its pods.
async fn headless(mesh: &Mesh) -> Result<()> {
    let service = r"
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec:
  clusterIP: None
  selector: {app: lines}
  ports: [{name: tcp-lines, port: 9000, targetPort: lines}, {name: http, port: 8080, targetPort: http}]
";
    mesh.apply("headless.yaml", service)?;
    for (pod, who) in [("lines-v1", "lines v1"), ("lines-v2", "lines v2"), ("lines-v3", "lines v3")] {
        let ip = mesh.pods.pod(pod).net.ip.to_string();
        eventually(mesh, "client", &AppRequest::raw(vip(&ip, 9000)), who).await?;
        always(mesh, "client", &AppRequest::raw(vip(&ip, 9000)), 5, who).await?;
        eventually(mesh, "client", &AppRequest::get(vip(&ip, 8080), "headless:8080"), who).await?;
    }
    Ok(())
}
