//! Certificates, roots and the authority change while requests are sent. No request fails.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sluice_parse::parse_duration;
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::envoy::{CERTIFICATE, Envoy, ROOTS};
use sluice_testkit::pods::identity::{self, Authority};
use sluice_testkit::pods::load::{Stream, under_load};
use sluice_testkit::pods::mesh::{Mesh, MeshOptions};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::family;
use crate::requests::{Host, eventually};

/// Requests to this host reuse one connection.
const REUSED: Host = Host("kept", 1);
/// Each request to this host performs a TLS handshake.
const FRESH: Host = Host("fresh", 2);

/// Number of certificates of each proxy that are observed.
const CERTIFICATES: usize = 5;
/// Number of observed certificate requests of an agent to an absent authority.
const ATTEMPTS: usize = 3;

const CLOSED: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: shop}
spec:
  selector: {matchLabels: {app: tea}}
  action: DENY
  rules: [{to: [{operation: {paths: [/closed]}}]}]
";

/// Timeout of each step on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_roots() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    // Renewal every second or two, long before the old certificate expires, so that the test passes on a slow machine.
    let agents = vec![("SECRET_TTL", "30s".to_owned()), ("SECRET_GRACE_PERIOD_RATIO", "0.95".to_owned())];
    let options = MeshOptions { control_plane: vec![("ISTIO_MULTIROOT_MESH", "true".to_owned())], agents };
    let mut mesh = Mesh::start_with(&[], options).await?;
    mesh.deploy(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Sotw)),
        Workload::new("tea", "tea", PodRole::Sidecar(Protocol::Delta)),
    ])
    .await?;
    let strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
                  metadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n---\n";
    let objects = REUSED.service("app: tea")
        + &FRESH.service("app: tea")
        + &FRESH.policy("connectionPool: {http: {maxRequestsPerConnection: 1}}");
    mesh.apply("objects.yaml", &(strict.to_owned() + &objects))?;
    let mesh = &mesh;
    for host in [REUSED, FRESH] {
        eventually(mesh, "client", &host.get(), "tea v1").await?;
    }
    // One after the other, because each changes certificates that the others use.
    family::run(mesh, vec![("certificates are renewed", Box::pin(renewed(mesh)))]).await?;
    family::run(mesh, vec![("another root", Box::pin(another_root(mesh)))]).await?;
    family::run(mesh, vec![("the control plane restarts", Box::pin(control_plane_restart(mesh)))]).await
}

fn streams(mesh: &Mesh) -> [Stream; 2] {
    [REUSED, FRESH].map(|host| Stream::new(mesh.pods.shared("client"), host.get(), "tea v1"))
}

fn envoys(mesh: &Mesh) -> Vec<&Envoy> {
    mesh.pods.iter().filter_map(|(_, pod)| pod.envoy.as_ref()).collect()
}

/// Waits until an Envoy meets a condition.
async fn wait_for(
    mesh: &Mesh,
    envoy: &Envoy,
    what: &str,
    mut is_met: impl AsyncFnMut(&Envoy) -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while !is_met(envoy).await? {
        let (proxy, server) = (envoy.log_tail(), mesh.server_log());
        ensure!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}\n{proxy}\ncontrol plane: {server}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Waits until every Envoy meets a condition.
async fn wait_for_all(mesh: &Mesh, what: &str, mut is_met: impl AsyncFnMut(&Envoy) -> Result<bool>) -> Result<()> {
    for envoy in envoys(mesh) {
        wait_for(mesh, envoy, what, &mut is_met).await?;
    }
    Ok(())
}

/// A certificate's bytes.
type Certificate = Vec<u8>;

/// The certificates of a PEM text.
fn certificates(pem: &str) -> Result<Vec<Certificate>> {
    Ok(identity::certificates(pem)?.iter().map(|certificate| certificate.to_vec()).collect())
}

/// The certificate chain of an Envoy, its own certificate first.
async fn chain(envoy: &Envoy) -> Result<Vec<Certificate>> {
    certificates(&envoy.secret(CERTIFICATE).await?)
}

/// The roots that an Envoy trusts.
async fn roots(envoy: &Envoy) -> Result<BTreeSet<Certificate>> {
    Ok(certificates(&envoy.secret(ROOTS).await?)?.into_iter().collect())
}

/// The wait that an agent logged after each failed certificate request.
fn waits(envoy: &Envoy) -> Vec<Duration> {
    let log = envoy.log();
    let failed = log.lines().filter(|line| line.contains("failed to request a certificate, the current one stays"));
    let wait = |line: &str| parse_duration(line.split_once("retry=")?.1.split(' ').next()?);
    failed.filter_map(wait).collect()
}

async fn renewed(mesh: &Mesh) -> Result<()> {
    let change = async {
        let deadline = Instant::now() + TIMEOUT;
        let mut observed: Vec<BTreeSet<Certificate>> = envoys(mesh).iter().map(|_| BTreeSet::new()).collect();
        while observed.iter().any(|certificates| certificates.len() < CERTIFICATES) {
            for (certificates, envoy) in observed.iter_mut().zip(envoys(mesh)) {
                certificates.extend(chain(envoy).await?.into_iter().next());
            }
            ensure!(
                Instant::now() < deadline,
                "some proxy has had fewer than {CERTIFICATES} certificates within {TIMEOUT:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(observed.iter().map(BTreeSet::len).sum::<usize>())
    };
    let (count, requests) = under_load(&streams(mesh), change).await?;
    eprintln!("{count} certificates under {requests} requests, and none failed");
    Ok(())
}

/// The steps of docs/certificate-authority.md to replace the root that the control plane created by an organization's.
async fn another_root(mesh: &Mesh) -> Result<()> {
    let directory = mesh.authority_directory();
    let old = std::fs::read_to_string(directory.join("root-cert.pem"))?;
    let organization = Authority::new()?;
    let new = organization.root();
    let of = |texts: &[&str]| certificates(&texts.concat()).map(BTreeSet::from_iter);
    let trust = async |expected: BTreeSet<Certificate>| {
        mesh.distribute_roots()?;
        wait_for_all(mesh, "roots are trusted", async |envoy| Ok(roots(envoy).await? == expected)).await
    };
    let change = async {
        // Both roots are trusted, and the old authority signs.
        std::fs::write(directory.join("root-cert.pem"), format!("{old}{new}")).context("add a root")?;
        trust(of(&[&old, new])?).await?;
        // Both roots are trusted, and the new authority signs.
        let both = format!("{old}{new}");
        let authority = organization.plug_in(&directory, "authority", &both)?;
        let authority = certificates(&authority)?;
        wait_for_all(mesh, "certificates are of the new authority", async |envoy| {
            Ok(chain(envoy).await?.get(1) == authority.first())
        })
        .await?;
        // The old root is removed.
        std::fs::write(directory.join("root-cert.pem"), new).context("remove a root")?;
        trust(of(&[new])?).await
    };
    let ((), requests) = under_load(&streams(mesh), change).await?;
    eprintln!("another root under {requests} requests, and none failed");
    Ok(())
}

/// The control plane is killed. Agents retry their certificate requests, and succeed after it restarts.
async fn control_plane_restart(mesh: &Mesh) -> Result<()> {
    let change = async {
        let mut before = Vec::new();
        for envoy in envoys(mesh) {
            before.push((chain(envoy).await?, waits(envoy).len()));
        }
        mesh.server.kill().await?;
        let mut earlier = before.iter().map(|(_, attempts)| *attempts);
        for envoy in envoys(mesh) {
            let earlier = earlier.next().unwrap_or_default();
            let has_retried = async |envoy: &Envoy| Ok(waits(envoy).len() >= earlier + ATTEMPTS);
            wait_for(mesh, envoy, "the agent retries", has_retried).await?;
            let waits = &waits(envoy)[earlier..];
            ensure!(waits.is_sorted(), "the intervals between requests grow: {waits:?}");
        }
        mesh.server.start_again().await?;
        let mut before = before.into_iter().map(|(chain, _)| chain);
        for envoy in envoys(mesh) {
            let before = before.next().unwrap_or_default();
            wait_for(mesh, envoy, "another certificate", async |envoy| {
                Ok(chain(envoy).await?.first() != before.first())
            })
            .await?;
        }
        // Configuration is sent again too.
        for (name, pod) in mesh.pods.iter() {
            let page = format!("/debug/config_dump?proxyID={name}.{}", pod.workload.namespace);
            let envoy = pod.envoy.as_ref().context("the pod has an Envoy")?;
            wait_for(mesh, envoy, "it is connected", async |_| Ok(mesh.server.get(&page).await?.0 == 200)).await?;
        }
        mesh.write("closed.yaml", CLOSED)?;
        eventually(mesh, "client", &FRESH.get().path("/closed"), "status 403").await.map(drop)
    };
    let ((), requests) = under_load(&streams(mesh), change).await?;
    eprintln!("the authority was away for {requests} requests, and none failed");
    Ok(())
}
