//! UDPRoutes of gateways: datagrams are relayed.

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::mesh::{Mesh, MeshOptions, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, eventually, share, until};

const WEST: Host = Host("west", 1);
const EAST: Host = Host("east", 2);
/// A Service with a TCP port and a UDP port of the same number.
const BOTH: Host = Host("both", 3);

/// Gateways whose proxies run already: their Services have the names of those that would be deployed.
const GATEWAYS: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: shop}
spec:
  gatewayClassName: istio
  listeners:
  - {name: dns, port: 5300, protocol: UDP}
  - {name: dns-tcp, port: 5300, protocol: TCP}
  - {name: weighted, port: 5301, protocol: UDP}
  - {name: guarded, port: 5302, protocol: UDP}
---
apiVersion: v1
kind: Service
metadata: {name: door-istio, namespace: shop}
spec:
  clusterIP: 10.200.1.100
  clusterIPs: [10.200.1.100]
  selector: {istio: door}
  ports:
  - {name: dns, port: 5300, targetPort: 5300, protocol: UDP}
  - {name: dns-tcp, port: 5300, targetPort: 5300}
  - {name: weighted, port: 5301, targetPort: 5301, protocol: UDP}
  - {name: guarded, port: 5302, targetPort: 5302, protocol: UDP}
---
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_relay_datagrams() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let control_plane = vec![("PILOT_ENABLE_ALPHA_GATEWAY_API", "true".to_owned())];
    let mut mesh = Mesh::start_with(&[], MeshOptions { control_plane, ..MeshOptions::default() }).await?;
    let app = |name, proxy| {
        Workload::new(name, name, proxy)
            .port("http", 8080, PortProtocol::Http)
            .port("datagrams", 5353, PortProtocol::Datagrams)
            .port("lines", 5354, PortProtocol::Lines)
    };
    mesh.deploy(&[
        Workload::new("door", "door", PodRole::Gateway(Protocol::Delta, "door")),
        Workload::new("client", "client", PodRole::NoProxy),
        app("west", PodRole::NoProxy),
        // Mutual TLS does not apply to datagrams.
        app("east", PodRole::Sidecar(Protocol::Sotw)),
    ])
    .await?;
    let udp = "[{name: dns, port: 53, targetPort: datagrams, protocol: UDP}]";
    let both =
        "[{name: dns-tcp, port: 53, targetPort: lines}, {name: dns, port: 53, targetPort: datagrams, protocol: UDP}]";
    let services = [
        WEST.service_with("app: west", udp),
        EAST.service_with("app: east", udp),
        BOTH.service_with("app: west", both),
    ];
    mesh.apply("gateways.yaml", &(GATEWAYS.to_owned() + &services.concat()))?;
    let mesh = &mesh;
    family::run(mesh, vec![("one backend", Box::pin(one_backend(mesh))), ("weights", Box::pin(weights(mesh)))]).await?;
    // The policy concerns all listeners of the gateway.
    family::run(mesh, vec![("a policy of the gateway", Box::pin(policy(mesh)))]).await
}

fn route(kind: &str, name: &str, section: &str, backends: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
         parentRefs: [{{name: door, sectionName: {section}}}]\n  rules: [{{backendRefs: [{backends}]}}]\n---\n"
    )
}

fn to_door(mesh: &Mesh, port: u16) -> AppRequest {
    AppRequest::datagram(vip(&mesh.pods.pod("door").net.ip.to_string(), port))
}

/// Datagrams and connections of one port have routes of their own, to ports of one number. A session keeps its backend.
async fn one_backend(mesh: &Mesh) -> Result<()> {
    let tcp = route("TCPRoute", "of-dns", "dns-tcp", "{name: both, port: 53}");
    mesh.apply("dns.yaml", &(route("UDPRoute", "of-dns", "dns", "{name: both, port: 53}") + &tcp))?;
    let datagram = to_door(mesh, 5300);
    eventually(mesh, "client", &datagram, "west v1").await?;
    always(mesh, "client", &datagram, 50, "west v1").await?;
    let line = AppRequest::raw(datagram.address);
    let reply = eventually(mesh, "client", &line, "west v1").await?;
    let received = reply.outcome.map_err(anyhow::Error::msg)?.received_request();
    ensure!(received["line"] == "hello", "{received}");
    mesh.apply("dns.yaml", &(route("UDPRoute", "of-dns", "dns", "{name: east, port: 53}") + &tcp))?;
    eventually(mesh, "client", &datagram, "east v1").await?;
    always(mesh, "client", &datagram, 50, "east v1").await?;
    // Connections stay where they were.
    always(mesh, "client", &line, 5, "west v1").await?;
    // A port of TCP takes no datagrams.
    let none = route("UDPRoute", "of-dns", "dns", "{name: both, port: 54}");
    mesh.apply("dns.yaml", &(none + &tcp))?;
    until(mesh, "client", &AppRequest { timeout_ms: 300, ..datagram }, "no answer", |reply| reply.outcome.is_err())
        .await?;
    Ok(())
}

async fn weights(mesh: &Mesh) -> Result<()> {
    let backends = "{name: west, port: 53, weight: 3}, {name: east, port: 53, weight: 1}";
    mesh.apply("weighted.yaml", &route("UDPRoute", "weighted", "weighted", backends))?;
    let datagram = to_door(mesh, 5301);
    eventually(mesh, "client", &datagram, "east v1").await?;
    share(mesh, "client", &datagram, 400, &[("west v1", 75), ("east v1", 25)]).await?;
    Ok(())
}

/// Envoy cannot check datagrams, so a gateway with a policy that may deny relays none.
async fn policy(mesh: &Mesh) -> Result<()> {
    mesh.apply("guarded.yaml", &route("UDPRoute", "guarded", "guarded", "{name: west, port: 53}"))?;
    let datagram = to_door(mesh, 5302);
    eventually(mesh, "client", &datagram, "west v1").await?;
    let policy = |action: &str| {
        format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: guard, namespace: shop}}\n\
             spec:\n  selector: {{matchLabels: {{istio: door}}}}\n  action: {action}\n  \
             rules: [{{to: [{{operation: {{ports: [\"9\"]}}}}]}}]\n---\n"
        )
    };
    mesh.apply("policy.yaml", &policy("DENY"))?;
    let silence = AppRequest { timeout_ms: 300, ..datagram.clone() };
    until(mesh, "client", &silence, "no answer", |reply| reply.outcome.is_err()).await?;
    mesh.apply("policy.yaml", &policy("AUDIT"))?;
    eventually(mesh, "client", &datagram, "west v1").await?;
    let envoy = mesh.pods.pod("door").envoy.as_ref().context("a gateway")?;
    let sessions = envoy.nonzero_stats("^udp\\..*5302.*downstream_sess_total$").await?;
    ensure!(!sessions.is_empty(), "the gateway counts sessions");
    Ok(())
}
