//! Servers and clients reject certificates that the mesh's authority has revoked.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::envoy::CERTIFICATE;
use sluice_testkit::pods::identity::{self, Authority};
use sluice_testkit::pods::mesh::{Mesh, MeshOptions};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};
use x509_parser::parse_x509_certificate;

use crate::family;
use crate::requests::{Host, TIMEOUT, always, eventually};

/// Each request to this host performs a TLS handshake. A connection whose request timed out before it was sent is closed
/// after [`IDLE_TIMEOUT`], and not used for a later request.
const FRESH: Host = Host("fresh", 1);

/// Idle timeout of connections to [`FRESH`].
const IDLE_TIMEOUT: &str = "1s";

/// Counters of resumed TLS sessions.
const RESUMED: &str = "ssl\\.session_reused$";

/// Counters of rejected certificates.
const REJECTED: &str = "ssl\\.fail_verify_error$";

/// Pods that send requests to [`FRESH`].
const CLIENTS: [&str; 2] = ["client", "friend"];

/// All pods.
const ALL: [&str; 3] = ["client", "friend", "tea"];

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
    let pool = format!("connectionPool: {{http: {{maxRequestsPerConnection: 1, idleTimeout: {IDLE_TIMEOUT}}}}}");
    let objects = FRESH.service("app: tea") + &FRESH.policy(&pool);
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

/// Revokes certificates for the Envoys of some pods. Waits until they hold the revocation lists, and no older connection is
/// open: all connections that are opened afterwards are verified with these lists.
async fn revoke(mesh: &Mesh, organization: &Authority, serials: &[Vec<u8>], verifiers: &[&str]) -> Result<()> {
    organization.revoke(&mesh.authority_directory(), AUTHORITY, serials)?;
    let lists = mesh.distribute_revocation_lists(verifiers)?;
    for name in verifiers {
        let envoy = mesh.pods.pod(name).envoy.as_ref().context("a sidecar")?;
        wait_for(&format!("the revocation lists in the Envoy of {name}"), async || {
            let held = envoy.revocation_lists().await?;
            Ok(!held.is_empty() && held.iter().all(|held| held.as_ref() == Some(&lists)))
        })
        .await?;
    }
    for from in CLIENTS {
        let name = format!("the end of the connections of {from}");
        wait_for(&name, async || Ok(total(mesh, from, &open_connections()).await? == 0)).await?;
    }
    Ok(())
}

/// The gauge of open connections to [`FRESH`].
fn open_connections() -> String {
    format!("^cluster\\..*{}\\..*upstream_cx_active$", FRESH.0)
}

/// The sum of the counters and gauges of a pod's Envoy.
async fn total(mesh: &Mesh, pod: &str, pattern: &str) -> Result<u64> {
    let envoy = mesh.pods.pod(pod).envoy.as_ref().context("a sidecar")?;
    let values = envoy.nonzero_stats(pattern).await?;
    values.iter().map(|line| Ok(line.rsplit(' ').next().context("a value")?.parse::<u64>()?)).sum()
}

/// Sends requests one after the other, so that each can resume the TLS session of the one before.
async fn in_sequence(mesh: &Mesh, from: &str, expected: &str) -> Result<()> {
    for _ in 0..5 {
        always(mesh, from, &FRESH.get(), 1, expected).await?;
    }
    Ok(())
}

/// Checks that a client's requests succeed, and that it resumes its TLS sessions.
async fn sessions_are_resumed(mesh: &Mesh, from: &str) -> Result<()> {
    let (client, server) = (total(mesh, from, RESUMED).await?, total(mesh, "tea", RESUMED).await?);
    in_sequence(mesh, from, "tea v1").await?;
    ensure!(total(mesh, from, RESUMED).await? >= client + 4, "{from} resumes the sessions of its requests");
    ensure!(total(mesh, "tea", RESUMED).await? >= server + 4, "the server agrees for {from}");
    Ok(())
}

/// Checks that no request of a client succeeds, that the Envoy of `verifier` rejects the certificate each time, and that the
/// server resumes no TLS session.
async fn certificate_is_rejected(mesh: &Mesh, from: &str, verifier: &str) -> Result<()> {
    let (resumed, rejected) = (total(mesh, "tea", RESUMED).await?, total(mesh, verifier, REJECTED).await?);
    in_sequence(mesh, from, "status 503").await?;
    always(mesh, from, &FRESH.get(), 5, "status 503").await?;
    ensure!(total(mesh, "tea", RESUMED).await? == resumed, "no session of {from} is resumed");
    ensure!(total(mesh, verifier, REJECTED).await? >= rejected + 10, "{verifier} rejects the certificate for {from}");
    Ok(())
}

async fn revoked(mesh: &Mesh, organization: &Authority) -> Result<()> {
    for from in CLIENTS {
        eventually(mesh, from, &FRESH.get(), "tea v1").await?;
    }
    // Empty lists reject no certificate.
    revoke(mesh, organization, &[], &ALL).await?;
    for from in CLIENTS {
        sessions_are_resumed(mesh, from).await?;
    }
    let client = serial(mesh, "client").await?;
    ensure!(client != serial(mesh, "friend").await?, "each has its own certificate");
    // The client keeps its session of the server, because its own lists stay.
    revoke(mesh, organization, std::slice::from_ref(&client), &["tea"]).await?;
    certificate_is_rejected(mesh, "client", "tea").await?;
    sessions_are_resumed(mesh, "friend").await?;
    // In the other direction, clients reject the server's certificate. The server could resume their sessions.
    revoke(mesh, organization, &[], &["tea"]).await?;
    for from in CLIENTS {
        sessions_are_resumed(mesh, from).await?;
    }
    revoke(mesh, organization, &[serial(mesh, "tea").await?], &CLIENTS).await?;
    for from in CLIENTS {
        certificate_is_rejected(mesh, from, from).await?;
    }
    revoke(mesh, organization, &[], &CLIENTS).await?;
    for from in CLIENTS {
        sessions_are_resumed(mesh, from).await?;
    }
    Ok(())
}

/// Waits until a condition holds.
async fn wait_for(what: &str, condition: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while !condition().await? {
        ensure!(Instant::now() < deadline, "timed out waiting for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
