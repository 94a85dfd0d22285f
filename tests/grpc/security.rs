//! Mutual TLS, identities and AuthorizationPolicies of servers, and certificates that are renewed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sluice_testkit::pods::grpc_app::GrpcCall;
use sluice_testkit::pods::load::{Stream, under_load};
use sluice_testkit::pods::mesh::Mesh;

use crate::calls::{always, eventually};
use crate::libraries::Libraries;
use crate::{PORT, every_resource_is_accepted, mesh_of, mutual_tls, service, strict, target};

const POLICIES: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-client, namespace: shop}
spec:
  selector: {matchLabels: {app: tea}}
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: shop}
spec:
  selector: {matchLabels: {app: tea}}
  action: DENY
  rules: [{to: [{operation: {paths: [/shop.Closed/*]}}]}]
---
";

with_libraries!(servers_authenticate_and_authorize_clients: python, go, go_to_python, python_to_go);

async fn servers_authenticate_and_authorize_clients(libraries: Libraries) -> Result<()> {
    let tea = strict("tea") + &service("tea", "tea") + &mutual_tls("tea");
    // The port of this server is permissive, and its clients use plain text.
    let objects = tea + &service("plain", "plain") + POLICIES;
    let workloads = [
        libraries.client("client"),
        libraries.client("other"),
        libraries.server("tea", "tea", "v1"),
        libraries.server("plain", "plain", "v1"),
    ];
    let mesh = mesh_of(&workloads, &objects, &[]).await?;
    identities_are_authenticated(&mesh).await?;
    policies_are_enforced(&mesh).await?;
    every_resource_is_accepted(&mesh).await
}

async fn identities_are_authenticated(mesh: &Mesh) -> Result<()> {
    let answer = eventually(mesh, "client", &GrpcCall::new(&target("tea")), "tea v1").await?;
    ensure!(answer.identities == ["spiffe://cluster.local/ns/shop/sa/client"], "{answer:?}");
    let address = format!("{}:{PORT}", mesh.pods.pod("tea").net.ip);
    always(mesh, "client", &GrpcCall::new(&address).plaintext().times(3), "UNAVAILABLE").await?;

    let answer = eventually(mesh, "client", &GrpcCall::new(&target("plain")), "plain v1").await?;
    ensure!(answer.identities.is_empty(), "{answer:?}");
    let address = format!("{}:{PORT}", mesh.pods.pod("plain").net.ip);
    always(mesh, "client", &GrpcCall::new(&address).plaintext().times(3), "plain v1").await?;
    Ok(())
}

async fn policies_are_enforced(mesh: &Mesh) -> Result<()> {
    let call = GrpcCall::new(&target("tea")).times(10);
    eventually(mesh, "other", &call, "PERMISSION_DENIED").await?;
    always(mesh, "client", &call, "tea v1").await?;
    always(mesh, "client", &call.clone().path("/shop.Closed/Get"), "PERMISSION_DENIED").await?;
    // Without the policies, all clients are allowed.
    let tea = strict("tea") + &service("tea", "tea") + &mutual_tls("tea");
    mesh.apply("objects.yaml", &(tea + &service("plain", "plain")))?;
    let answer = eventually(mesh, "other", &call, "tea v1").await?;
    ensure!(answer.identities == ["spiffe://cluster.local/ns/shop/sa/other"], "{answer:?}");
    eventually(mesh, "client", &call.path("/shop.Closed/Get"), "tea v1").await?;
    Ok(())
}

with_libraries!(renewed_certificates_are_used: python, go);

/// New connections succeed for longer than a certificate lives, with several certificates.
async fn renewed_certificates_are_used(libraries: Libraries) -> Result<()> {
    const CERTIFICATES: usize = 3;
    const TIMEOUT: Duration = Duration::from_secs(180);
    let objects = strict("tea") + &service("tea", "tea") + &mutual_tls("tea");
    // Renewed every 12 s, and read every 6 s: the third certificate is there when the first has expired.
    let agents = [("SECRET_TTL", "24s"), ("SECRET_GRACE_PERIOD_RATIO", "0.5")];
    let mesh = mesh_of(&[libraries.client("client"), libraries.server("tea", "tea", "v1")], &objects, &agents).await?;
    let call = GrpcCall::new(&target("tea"));
    eventually(&mesh, "client", &call, "tea v1").await?;
    let fresh = call.clone().new_connection();
    let mesh = &mesh;
    let change = async {
        let (mut observed, deadline) = (BTreeSet::new(), Instant::now() + TIMEOUT);
        while observed.len() < CERTIFICATES {
            observed.insert(always(mesh, "client", &fresh, "tea v1").await?.certificate);
            ensure!(Instant::now() < deadline, "{} certificates within {TIMEOUT:?}", observed.len());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        ensure!(observed.iter().all(|certificate| certificate.contains("BEGIN CERTIFICATE")), "{observed:?}");
        Ok(())
    };
    let kept = Stream::of_grpc(mesh.pods.shared("client"), call, &["tea v1"]);
    under_load(&[kept], change).await?;
    every_resource_is_accepted(mesh).await
}
