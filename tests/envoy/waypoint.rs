//! Waypoints: routes and policies of the services that they serve, for connections in tunnels (HBONE).

use anyhow::{Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::{AppReply, AppRequest};
use sluice_testkit::pods::identity::Authority;
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, eventually, once, share, until};
use crate::tunnels::{HBONE, ambient_mesh, tunnel};

const ROUTED: Host = Host("routed", 1);
const CLOSED: Host = Host("closed", 2);
const LINES: Host = Host("lines", 3);
const FRIENDLY: Host = Host("friendly", 4);

/// A Gateway of class `istio-waypoint`, deployed: its Service and status are there.
fn waypoint(name: &str, octet: u8) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  gatewayClassName: istio-waypoint\n  listeners: [{{name: mesh, port: {HBONE}, protocol: HBONE}}]\n\
         status:\n  addresses: [{{type: Hostname, value: {name}.shop.svc.cluster.local}}]\n---\n"
    ) + &Host("", octet)
        .service_with(
            &format!("gateway.networking.k8s.io/gateway-name: {name}"),
            &format!("[{{name: mesh, port: {HBONE}}}]"),
        )
        .replace("{name: , ", &format!("{{name: {name}, "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waypoints() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let (mut mesh, organization) = ambient_mesh(&[]).await?;
    let namespace =
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio.io/use-waypoint: door}}\n---\n";
    let tea = |name, version| {
        Workload::new(name, "tea", PodRole::NoProxy).version(version).port("http", 8080, PortProtocol::Http).port(
            "lines",
            9000,
            PortProtocol::Lines,
        )
    };
    mesh.apply("waypoints.yaml", &(namespace.to_owned() + &waypoint("door", 201) + &waypoint("idle", 202)))?;
    mesh.deploy(&[
        Workload::new("door", "door", PodRole::Waypoint(Protocol::Delta)),
        // It serves nothing.
        Workload::new("idle", "idle", PodRole::Waypoint(Protocol::Sotw)),
        Workload::new("client", "client", PodRole::NoProxy),
        tea("tea-v1", "v1"),
        tea("tea-v2", "v2"),
    ])
    .await?;
    let services = ROUTED.service("app: tea")
        + &ROUTED.versions()
        + &CLOSED.service("app: tea")
        + &FRIENDLY.service("app: tea")
        + &LINES.service_with("app: tea", "[{name: tcp, port: 9000, targetPort: lines}]");
    mesh.apply("services.yaml", &services)?;
    let clients = Clients { mesh: &mesh, organization: &organization };
    let clients = &clients;
    family::run(
        &mesh,
        vec![
            ("routes", Box::pin(routes(clients))),
            ("policies for a Service", Box::pin(policies_for_services(clients))),
            ("policies of TCP", Box::pin(policies_of_tcp(clients))),
            ("identities", Box::pin(identities(clients))),
            ("what it does not serve", Box::pin(not_served(clients))),
        ],
    )
    .await
}

/// Callers of the waypoint.
struct Clients<'m> {
    mesh: &'m Mesh,
    organization: &'m Authority,
}

impl Clients<'_> {
    fn through(&self, call: AppRequest, account: &str) -> Result<AppRequest> {
        Ok(call.through(tunnel(self.mesh, self.organization, "door", account)?))
    }
}

fn is_refused(reply: &AppReply) -> bool {
    reply.outcome.is_err()
}

async fn routes(clients: &Clients<'_>) -> Result<()> {
    let mesh = clients.mesh;
    let http = "  - match: [{uri: {prefix: /v2}}]\n    route: [{destination: {host: routed, subset: v2}}]\n  \
                - match: [{uri: {prefix: /both}}]\n    route:\n    \
                - {destination: {host: routed, subset: v1}, weight: 60}\n    \
                - {destination: {host: routed, subset: v2}, weight: 40}\n  \
                - match: [{uri: {prefix: /fault}}]\n    fault: {abort: {percentage: {value: 100}, httpStatus: 418}}\n    \
                route: [{destination: {host: routed}}]\n  \
                - route: [{destination: {host: routed, subset: v1}}]";
    mesh.apply("routes.yaml", &ROUTED.routes(http))?;
    for (path, expected) in [("/", "tea v1"), ("/v2/x", "tea v2"), ("/fault", "status 418")] {
        let call = clients.through(ROUTED.get().path(path), "client")?;
        eventually(mesh, "client", &call, expected).await?;
        always(mesh, "client", &call, 5, expected).await?;
    }
    let both = clients.through(ROUTED.get().path("/both"), "client")?;
    share(mesh, "client", &both, 300, &[("tea v1", 60), ("tea v2", 40)]).await?;
    Ok(())
}

async fn policies_for_services(clients: &Clients<'_>) -> Result<()> {
    let mesh = clients.mesh;
    let policy = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: shop}
spec:
  targetRefs: [{group: '', kind: Service, name: closed}]
  action: ALLOW
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/friend]}}]
    to: [{operation: {methods: [GET], paths: [/open*]}}]
";
    mesh.apply("closed.yaml", policy)?;
    for (account, path, expected) in
        [("client", "/open", "status 403"), ("friend", "/open", "tea"), ("friend", "/other", "status 403")]
    {
        let call = clients.through(CLOSED.get().path(path), account)?;
        let is_expected = |reply: &AppReply| reply.responder().starts_with(expected);
        until(mesh, "client", &call, expected, is_expected).await?;
        once(mesh, "client", &call, expected, is_expected).await?;
    }
    Ok(())
}

async fn policies_of_tcp(clients: &Clients<'_>) -> Result<()> {
    let mesh = clients.mesh;
    let call = AppRequest::raw(vip(&LINES.ip(), 9000));
    let is_tea = |reply: &AppReply| reply.responder().starts_with("tea ");
    until(mesh, "client", &clients.through(call.clone(), "client")?, "tea", is_tea).await?;
    let policy = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: lines, namespace: shop}
spec:
  targetRefs: [{group: '', kind: Service, name: lines}]
  action: DENY
  rules: [{from: [{source: {notPrincipals: [cluster.local/ns/shop/sa/friend]}}]}]
";
    mesh.apply("lines.yaml", policy)?;
    until(mesh, "client", &clients.through(call.clone(), "client")?, "no connection", is_refused).await?;
    until(mesh, "client", &clients.through(call, "friend")?, "tea", is_tea).await?;
    Ok(())
}

async fn identities(clients: &Clients<'_>) -> Result<()> {
    let mesh = clients.mesh;
    let call = clients.through(FRIENDLY.get(), "client")?;
    until(mesh, "client", &call, "tea", |reply| reply.responder().starts_with("tea ")).await?;
    let mut stranger = call.clone();
    if let Some(tunnel) = &mut stranger.tunnel {
        tunnel.certificate = Authority::new()?.issue("spiffe://cluster.local/ns/shop/sa/client")?;
    }
    once(mesh, "client", &stranger, "no tunnel for an unknown authority", is_refused).await?;
    let mut foreign = call;
    if let Some(tunnel) = &mut foreign.tunnel {
        tunnel.certificate = clients.organization.issue("spiffe://other.example/ns/shop/sa/client")?;
    }
    once(mesh, "client", &foreign, "no tunnel for another trust domain", is_refused).await?;
    Ok(())
}

async fn not_served(clients: &Clients<'_>) -> Result<()> {
    let mesh = clients.mesh;
    let served = clients.through(FRIENDLY.get(), "client")?;
    until(mesh, "client", &served, "tea", |reply| reply.responder().starts_with("tea ")).await?;
    // A port that no service has, a pod, and a waypoint without services.
    let pod = mesh.pods.pod("tea-v1").net.ip.to_string();
    for address in [vip(&FRIENDLY.ip(), 81), vip(&pod, 8080)] {
        let call = clients.through(AppRequest::get(address, "friendly"), "client")?;
        once(mesh, "client", &call, "no connection", is_refused).await?;
    }
    let idle = FRIENDLY.get().through(tunnel(mesh, clients.organization, "idle", "client")?);
    once(mesh, "client", &idle, "no connection", is_refused).await?;
    let listeners = mesh.pods.pod("idle").envoy.as_ref().map(|envoy| envoy.admin("/listeners"));
    let listeners = listeners.ok_or_else(|| anyhow::anyhow!("the waypoint has an Envoy"))?.await?;
    ensure!(listeners.contains("main_internal"), "a waypoint without services has its listeners: {listeners}");
    Ok(())
}
