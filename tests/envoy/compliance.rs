//! Compliance policies limit the TLS of proxies, of their agents, and of their control plane.

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::mesh::{Mesh, MeshOptions};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::family;
use crate::requests::{Host, eventually};

const TEA: Host = Host("tea", 1);

const STRICT: &str = "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compliance() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    // An Envoy with a FIPS build accepts no other curve under the first policy by default.
    limited("fips-140-2", &["versions.TLSv1.2"], "versions.TLSv1.3|ciphers.*(CHACHA|CBC)").await?;
    limited("fips-140-3", &["versions.TLSv1.3", "curves.P-256"], "curves.X25519|ciphers.*(CHACHA|CBC)").await?;
    limited("pqc", &["versions.TLSv1.3", "curves.X25519MLKEM768"], "versions.TLSv1.2|curves.(P-|X25519$)").await
}

/// Checks that requests succeed, with only the permitted TLS parameters.
async fn limited(policy: &str, negotiated: &[&str], forbidden: &str) -> Result<()> {
    let limit = vec![("COMPLIANCE_POLICY", policy.to_owned())];
    let mut mesh = Mesh::start_with(&[], MeshOptions { control_plane: limit.clone(), agents: limit }).await?;
    let app = |name, protocol| Workload::new(name, name, PodRole::Sidecar(protocol));
    mesh.deploy(&[app("client", Protocol::Delta), app("tea", Protocol::Sotw)]).await?;
    mesh.apply("objects.yaml", &(STRICT.to_owned() + &TEA.service("app: tea")))?;
    eventually(&mesh, "client", &TEA.get(), "tea v1").await?;
    let envoy = mesh.pods.pod("tea").envoy.as_ref().context("a sidecar")?;
    for part in negotiated {
        let counted = envoy.nonzero_stats(&format!("^listener.*ssl.{part}$")).await?;
        ensure!(
            !counted.is_empty(),
            "{policy}: {part} is negotiated: {:?}",
            envoy.nonzero_stats("^listener.*ssl").await?
        );
    }
    let others = envoy.nonzero_stats(&format!("^listener.*ssl.({forbidden})")).await?;
    ensure!(others.is_empty(), "{policy}: {others:?}");
    family::every_envoy_holds_what_it_was_served(&mesh).await
}
