//! Real gRPC libraries without a proxy (X28): they accept the resources of the control plane, and route calls as the objects
//! define. The libraries are the pinned ones of Python and Go (`tests/support/grpc`). Pods are network namespaces without redirected
//! traffic, so these tests need root on Linux.
//!
//! At the end of each test, every library must have accepted all resources.

#[macro_use]
mod libraries;

mod acceptance;
mod calls;
mod changes;
mod routes;
mod security;

use anyhow::{Context, Result, ensure};
use sluice_testkit::pods::mesh::{Mesh, MeshOptions};
use sluice_testkit::pods::workload::{PortProtocol, Workload};

/// Port of all servers and Services.
const PORT: u16 = 7070;

/// A Service for the servers of an app.
fn service(name: &str, app: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  clusterIP: None\n  \
         selector: {{app: {app}}}\n  ports: [{{name: grpc, port: {PORT}, targetPort: grpc}}]\n---\n"
    )
}

/// A DestinationRule for mutual TLS, with subsets for both versions.
fn mutual_tls(name: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
         host: {name}\n  trafficPolicy: {{tls: {{mode: ISTIO_MUTUAL}}}}\n  subsets:\n  \
         - {{name: v1, labels: {{version: v1}}}}\n  - {{name: v2, labels: {{version: v2}}}}\n---\n"
    )
}

/// A VirtualService; `http` are its routes, YAML in one line.
fn routes(name: &str, http: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
         hosts: [{name}]\n  http: [{http}]\n---\n"
    )
}

/// A PeerAuthentication that requires mutual TLS from the clients of an app.
fn strict(app: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: {app}, namespace: shop}}\nspec:\n  \
         selector: {{matchLabels: {{app: {app}}}}}\n  mtls: {{mode: STRICT}}\n---\n"
    )
}

/// The target of a channel to a Service.
fn target(service: &str) -> String {
    format!("xds:///{service}.shop.svc.cluster.local:{PORT}")
}

async fn mesh_of(workloads: &[Workload], objects: &str, agents: &[(&'static str, &str)]) -> Result<Mesh> {
    let agents = agents.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let mut mesh = Mesh::start_with(&[], MeshOptions { agents, ..MeshOptions::default() }).await?;
    mesh.write("objects.yaml", objects)?;
    mesh.deploy(workloads).await?;
    Ok(mesh)
}

/// Checks that each library has accepted all resources that it subscribes to, and that some exist.
async fn every_resource_is_accepted(mesh: &Mesh) -> Result<()> {
    for (name, pod) in mesh.pods.iter() {
        let app = pod.grpc_app()?;
        let resources = app.resources().await?;
        let rejected: Vec<_> = resources.iter().filter(|resource| resource.status != "ACKED").collect();
        let is_plain = pod.workload.ports.iter().any(|port| port.protocol == PortProtocol::PlainGrpc);
        ensure!(rejected.is_empty(), "{name}: {rejected:#?}\n{}", app.log());
        ensure!(resources.is_empty() == is_plain, "{name} has {} resources\n{}", resources.len(), app.log());
    }
    let client = mesh.pods.pod("client").grpc_app()?.resources().await?;
    for expected in ["Listener", "RouteConfiguration", "Cluster", "ClusterLoadAssignment"] {
        client.iter().find(|resource| resource.r#type == expected).with_context(|| format!("no {expected}"))?;
    }
    Ok(())
}
