//! Mutual TLS as PeerAuthentications define it.

use anyhow::Result;
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::{AppReply, AppRequest};
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, eventually, once, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let app = |name| {
        Workload::new(name, name, PodRole::Sidecar(Protocol::Delta))
            .port("http", 8080, PortProtocol::Http)
            .port("lines", 9000, PortProtocol::Lines)
            .port("metrics", 8081, PortProtocol::Http)
    };
    let mesh = family::mesh_of(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Sotw)),
        Workload::new("stranger", "stranger", PodRole::NoProxy),
        app("strict"),
        app("open"),
        app("bare"),
    ])
    .await?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("mutual TLS: STRICT", Box::pin(strict(mesh))),
            ("mutual TLS: PERMISSIVE", Box::pin(permissive(mesh))),
            ("mutual TLS: DISABLE", Box::pin(disable(mesh))),
        ],
    )
    .await?;
    family::run(mesh, vec![("mutual TLS that changes", Box::pin(strict_everywhere(mesh)))]).await
}

const PORTS: &str = "[{name: http, port: 80, targetPort: http}, {name: tcp, port: 9000, targetPort: lines}]";

/// A connection that was opened before the server has the Service would bypass its policies, so none is reused.
const FRESH: &str = "connectionPool: {http: {maxRequestsPerConnection: 1}}";

/// A request to the address of a pod.
fn direct(mesh: &Mesh, pod: &str, port: u16) -> AppRequest {
    AppRequest::get(vip(&mesh.pods.pod(pod).net.ip.to_string(), port), pod)
}

fn raw(call: AppRequest) -> AppRequest {
    AppRequest { host: call.host, ..AppRequest::raw(call.address) }
}

/// Whether the application received the header of a client certificate.
fn authenticated(reply: &AppReply) -> bool {
    let received = reply.outcome.as_ref().map(|answer| answer.received_request()).unwrap_or_default();
    received["headers"]["x-forwarded-client-cert"].as_str().is_some_and(|text| text.contains("/ns/shop/sa/client"))
}

/// Whether the connection was closed. A connection that times out is open.
fn is_refused(reply: &AppReply) -> bool {
    reply.outcome.as_ref().is_err_and(|error| error != "timed out")
}

async fn strict(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("strict", 1);
    let policy = r"
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec:
  selector: {matchLabels: {app: strict}}
  mtls: {mode: STRICT}
  portLevelMtls: {8081: {mode: DISABLE}}
";
    mesh.apply("strict.yaml", &(HOST.service_with("app: strict", PORTS) + &HOST.policy(FRESH) + policy))?;
    until(mesh, "client", &HOST.get(), "mutual TLS", |reply| reply.responder() == "strict v1" && authenticated(reply))
        .await?;
    eventually(mesh, "client", &AppRequest::raw(vip(&HOST.ip(), 9000)), "strict v1").await?;
    let plaintext = direct(mesh, "strict", 8080);
    until(mesh, "stranger", &plaintext, "no response to plaintext", is_refused).await?;
    let line = raw(direct(mesh, "strict", 9000));
    until(mesh, "stranger", &line, "no response to a plaintext line", is_refused).await?;
    eventually(mesh, "stranger", &direct(mesh, "strict", 8081), "strict v1").await?;
    Ok(())
}

async fn permissive(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("open", 2);
    mesh.apply("open.yaml", &(HOST.service_with("app: open", PORTS) + &HOST.policy(FRESH)))?;
    until(mesh, "client", &HOST.get(), "mutual TLS", |reply| reply.responder() == "open v1" && authenticated(reply))
        .await?;
    eventually(mesh, "client", &AppRequest::raw(vip(&HOST.ip(), 9000)), "open v1").await?;
    eventually(mesh, "stranger", &direct(mesh, "open", 8080), "open v1").await?;
    eventually(mesh, "stranger", &raw(direct(mesh, "open", 9000)), "open v1").await?;
    Ok(())
}

async fn disable(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("bare", 3);
    let policy = r"
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: bare, namespace: shop}
spec:
  selector: {matchLabels: {app: bare}}
  mtls: {mode: DISABLE}
";
    mesh.apply("bare.yaml", &(HOST.service_with("app: bare", PORTS) + policy))?;
    until(mesh, "client", &HOST.get(), "plaintext", |reply| reply.responder() == "bare v1" && !authenticated(reply))
        .await?;
    eventually(mesh, "stranger", &direct(mesh, "bare", 8080), "bare v1").await?;
    always(mesh, "client", &HOST.get(), 10, "bare v1").await
}

/// The whole namespace becomes STRICT and then PERMISSIVE again. Requests within the mesh continue.
async fn strict_everywhere(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("open", 2);
    let plaintext = direct(mesh, "open", 8080);
    let policy = r"
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
";
    mesh.apply("default.yaml", policy)?;
    until(mesh, "stranger", &plaintext, "no response to plaintext", is_refused).await?;
    until(mesh, "client", &HOST.get(), "mutual TLS", |reply| reply.responder() == "open v1" && authenticated(reply))
        .await?;
    once(mesh, "stranger", &direct(mesh, "bare", 8080), "bare v1", |reply| reply.responder() == "bare v1").await?;
    std::fs::remove_file(mesh.config_file("default.yaml"))?;
    eventually(mesh, "stranger", &plaintext, "open v1").await?;
    Ok(())
}
