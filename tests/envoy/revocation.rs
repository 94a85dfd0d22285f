//! Servers and clients reject certificates that the mesh's authority has revoked.

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::envoy::CERTIFICATE;
use sluice_testkit::pods::identity::{self, Authority};
use sluice_testkit::pods::mesh::{Mesh, MeshOptions};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};
use x509_parser::parse_x509_certificate;

use crate::family;
use crate::requests::{Host, always, eventually};

/// Each request to this host performs a TLS handshake.
const FRESH: Host = Host("fresh", 1);

/// Name of the plugged-in authority.
const AUTHORITY: &str = "authority";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revocation() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let agents = vec![("PILOT_ENABLE_CA_CRL", "true".to_owned())];
    let mut mesh = Mesh::start_with(&[], MeshOptions { control_plane: Vec::new(), agents }).await?;
    // An organization's authority replaces the generated one before any workload has a certificate.
    let organization = Authority::new()?;
    mesh.server.kill().await?;
    organization.plug_in(&mesh.authority_directory(), AUTHORITY, organization.root())?;
    mesh.server.start_again().await?;
    mesh.distribute_roots()?;
    mesh.deploy(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Delta)),
        Workload::new("friend", "friend", PodRole::Sidecar(Protocol::Sotw)),
        Workload::new("tea", "tea", PodRole::Sidecar(Protocol::Delta)),
    ])
    .await?;
    let strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
                  metadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n---\n";
    let objects = FRESH.service("app: tea") + &FRESH.policy("connectionPool: {http: {maxRequestsPerConnection: 1}}");
    mesh.apply("objects.yaml", &(strict.to_owned() + &objects))?;
    let mesh = &mesh;
    family::run(mesh, vec![("certificates are revoked", Box::pin(revoked(mesh, &organization)))]).await
}

/// The serial number of a pod's certificate.
async fn serial(mesh: &Mesh, pod: &str) -> Result<Vec<u8>> {
    let envoy = mesh.pods.pod(pod).envoy.as_ref().context("a sidecar")?;
    let chain = identity::certificates(&envoy.secret(CERTIFICATE).await?)?;
    let (_, certificate) = parse_x509_certificate(chain.first().context("a certificate")?)?;
    Ok(certificate.raw_serial().to_vec())
}

async fn revoked(mesh: &Mesh, organization: &Authority) -> Result<()> {
    let revoke = |serials: &[Vec<u8>]| {
        organization.revoke(&mesh.authority_directory(), AUTHORITY, serials)?;
        mesh.distribute_revocation_list()
    };
    for from in ["client", "friend"] {
        eventually(mesh, from, &FRESH.get(), "tea v1").await?;
    }
    // An empty list rejects no certificate.
    revoke(&[])?;
    for pod in ["client", "friend", "tea"] {
        wait_for_revocation_list(mesh, pod).await?;
    }
    for from in ["client", "friend"] {
        always(mesh, from, &FRESH.get(), 5, "tea v1").await?;
    }
    let client = serial(mesh, "client").await?;
    ensure!(client != serial(mesh, "friend").await?, "each has its own certificate");
    revoke(std::slice::from_ref(&client))?;
    eventually(mesh, "client", &FRESH.get(), "status 503").await?;
    always(mesh, "client", &FRESH.get(), 5, "status 503").await?;
    always(mesh, "friend", &FRESH.get(), 5, "tea v1").await?;
    let tea = mesh.pods.pod("tea").envoy.as_ref().context("a sidecar")?;
    ensure!(
        !tea.nonzero_stats("ssl\\.fail_verify_error$").await?.is_empty(),
        "the server's proxy rejects the certificate"
    );
    // In the other direction, clients reject the server's certificate.
    revoke(&[serial(mesh, "tea").await?])?;
    for from in ["client", "friend"] {
        eventually(mesh, from, &FRESH.get(), "status 503").await?;
        always(mesh, from, &FRESH.get(), 5, "status 503").await?;
    }
    revoke(&[])?;
    for from in ["client", "friend"] {
        eventually(mesh, from, &FRESH.get(), "tea v1").await?;
    }
    Ok(())
}

/// Waits until the Envoy of a pod has a revocation list with the roots.
async fn wait_for_revocation_list(mesh: &Mesh, pod: &str) -> Result<()> {
    let envoy = mesh.pods.pod(pod).envoy.as_ref().context("a sidecar")?;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !envoy.admin("/config_dump?resource=dynamic_active_secrets").await?.contains("\"crl\"") {
        ensure!(std::time::Instant::now() < deadline, "{pod} has no list: {}", envoy.log_tail());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    Ok(())
}
