//! Compliance policies limit the TLS of proxies, of their agents, and of their control plane.

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::mesh::{Mesh, MeshOptions};
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::ask::{Host, eventually, pods_are_permitted};
use crate::family;

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
    // An Envoy that was built for FIPS would by itself take no other curve under the first.
    limited("fips-140-2", &["versions.TLSv1.2"], "versions.TLSv1.3|ciphers.*(CHACHA|CBC)").await?;
    limited("fips-140-3", &["versions.TLSv1.3", "curves.P-256"], "curves.X25519|ciphers.*(CHACHA|CBC)").await?;
    limited("pqc", &["versions.TLSv1.3", "curves.X25519MLKEM768"], "versions.TLSv1.2|curves.(P-|X25519$)").await
}

/// Requests go, with TLS of just that.
async fn limited(policy: &str, spoken: &[&str], never: &str) -> Result<()> {
    let limit = vec![("COMPLIANCE_POLICY", policy.to_owned())];
    let mut mesh = Mesh::start_with(&[], MeshOptions { control_plane: limit.clone(), agents: limit }).await?;
    let app = |name, protocol| Workload::new(name, name, PodRole::Sidecar(protocol));
    mesh.deploy(&[app("client", Protocol::Delta), app("tea", Protocol::Sotw)]).await?;
    mesh.apply("objects.yaml", &(STRICT.to_owned() + &TEA.service("app: tea")))?;
    eventually(&mesh, "client", &TEA.get(), "tea v1").await?;
    let envoy = mesh.pod("tea").envoy.as_ref().context("a sidecar")?;
    for part in spoken {
        let counted = envoy.counted(&format!("^listener.*ssl.{part}$")).await?;
        ensure!(!counted.is_empty(), "{policy}: {part} is spoken: {:?}", envoy.counted("^listener.*ssl").await?);
    }
    let others = envoy.counted(&format!("^listener.*ssl.({never})")).await?;
    ensure!(others.is_empty(), "{policy}: {others:?}");
    family::every_envoy_holds_what_it_was_served(&mesh).await
}
