//! The API server freezes, loses connections, is killed and started again, and forgets its history. Each fault prints how
//! long the recovery took.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use sluice_testkit::cluster::Cluster;
use sluice_testkit::fault_proxy::FaultProxy;

use crate::fixture::{RunningControlPlane, service, start_with_crds, until, virtual_service};

/// Duration of a fault: longer than the interval and the timeout of the heartbeats.
const FAULT_DURATION: Duration = Duration::from_secs(6);
/// Prefix of the CRD that each change installs or removes.
const GATEWAYS: &[&str] = &["gateways."];

/// A control plane that reaches the API server through a proxy.
struct ProxiedControlPlane {
    cluster: Cluster,
    proxy: FaultProxy,
    control_plane: RunningControlPlane,
    /// Number of changes made.
    changes: usize,
}

impl ProxiedControlPlane {
    async fn start() -> Result<Option<Self>> {
        let Some(cluster) = start_with_crds(&["virtualservices."]).await? else { return Ok(None) };
        cluster.create_namespace("shop", json!({})).await?;
        let proxy = FaultProxy::start(cluster.address()).await?;
        let control_plane = RunningControlPlane::start_as(&cluster, proxy.address(), "istiod-1").await?;
        Ok(Some(Self { cluster, proxy, control_plane, changes: 0 }))
    }

    /// Creates a Service and deletes the previous one, changes a VirtualService, and installs or removes a CRD.
    async fn change(&mut self) -> Result<()> {
        self.changes += 1;
        let (cluster, name) = (&self.cluster, format!("s{}x", self.changes));
        cluster.apply(&service("shop", &name)).await?;
        cluster.apply(&virtual_service("shop", "routes", &name)).await?;
        if self.changes > 1 {
            cluster.delete("v1", "Service", "shop", &format!("s{}x", self.changes - 1)).await?;
        }
        if self.changes.is_multiple_of(2) {
            return cluster.remove_crds("istio.yaml", GATEWAYS).await;
        }
        cluster.install_crds("istio.yaml", GATEWAYS).await?;
        let server = json!({"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]});
        cluster
            .apply(&json!({
                "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
                "metadata": {"name": "edge-gateway", "namespace": "shop"},
                "spec": {"selector": {"app": "edge"}, "servers": [server]},
            }))
            .await
            .map(drop)
    }

    /// Waits until the last change is seen completely, and prints the time since `since`.
    async fn recovers(&self, fault: &str, since: Instant) -> Result<()> {
        let (name, previous) = (format!("s{}x", self.changes), format!("s{}x", self.changes.saturating_sub(1)));
        let has_gateway = self.changes % 2 == 1;
        until(fault, async || {
            let services = self.control_plane.page("/debug/registryz").await?;
            let objects = self.control_plane.page("/debug/configz").await?;
            Ok(services.contains(&format!("{name}.shop"))
                && !services.contains(&format!("{previous}.shop"))
                && objects.contains(&name)
                && objects.contains("edge-gateway") == has_gateway)
        })
        .await?;
        eprintln!("| {fault} | {:.2} s |", since.elapsed().as_secs_f64());
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_seen_after_each_fault() -> Result<()> {
    let Some(mut mesh) = ProxiedControlPlane::start().await? else { return Ok(()) };
    mesh.change().await?;
    mesh.recovers("no fault", Instant::now()).await?;

    mesh.proxy.lose_connections();
    mesh.change().await?;
    mesh.recovers("open connections lose all bytes, new ones work", Instant::now()).await?;

    mesh.proxy.freeze();
    mesh.change().await?;
    tokio::time::sleep(FAULT_DURATION).await;
    mesh.proxy.restore();
    mesh.recovers("the API server is frozen and continues", Instant::now()).await?;

    mesh.proxy.freeze();
    mesh.change().await?;
    tokio::time::sleep(FAULT_DURATION).await;
    mesh.proxy.lose_connections();
    mesh.proxy.restore();
    mesh.recovers("the API server is frozen, and only new connections work again", Instant::now()).await?;

    mesh.cluster.kill_api_server();
    tokio::time::sleep(FAULT_DURATION).await;
    mesh.cluster.start_api_server().await?;
    let started = Instant::now();
    mesh.change().await?;
    mesh.recovers("the API server is killed and started again", started).await?;

    // The history of the changes is gone when the control plane can watch again.
    mesh.proxy.refuse();
    mesh.change().await?;
    mesh.cluster.kill_api_server();
    mesh.cluster.compact().await?;
    mesh.cluster.start_api_server().await?;
    mesh.proxy.restore();
    mesh.recovers("the API server is killed and started again with compacted history", Instant::now()).await?;
    let log = mesh.control_plane.log()?;
    assert!(log.contains("resourceVersion of the watch has expired"), "the history is gone");

    mesh.proxy.respond("500 Internal Server Error", "text/plain", "wrong");
    mesh.change().await?;
    tokio::time::sleep(FAULT_DURATION).await;
    mesh.proxy.restore();
    mesh.change().await?;
    mesh.recovers("every request is answered with 500", Instant::now()).await?;
    Ok(())
}
