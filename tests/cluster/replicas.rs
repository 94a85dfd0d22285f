//! Of several replicas, the one that holds the lock writes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use sluice_kube::{ADDRESSES_LOCK, Lock, ROOTS_LOCK};
use sluice_testkit::cluster::Cluster;

use crate::fixture::{RunningControlPlane, SYSTEM, start_with_crds, until};

/// The pod that holds a lock; empty if none does.
pub(crate) async fn holder(cluster: &Cluster, lock: &Lock) -> Result<String> {
    let object = cluster.get("v1", "ConfigMap", SYSTEM, lock.name()).await?;
    let identity = object.map(|object| lock.holder(&object)).unwrap_or_default();
    Ok(identity.rsplit_once('-').map_or(String::new(), |(pod, _)| pod.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn another_replica_writes_when_the_leader_ends() -> Result<()> {
    let Some(cluster) = start_with_crds(&["serviceentries."]).await? else { return Ok(()) };
    let start = async |pod: &str| RunningControlPlane::start_as(&cluster, cluster.address(), pod).await;
    let leads = async |pod: &str| -> Result<()> {
        for lock in [ROOTS_LOCK, ADDRESSES_LOCK] {
            until(&format!("{pod} holds {}", lock.name()), async || Ok(holder(&cluster, &lock).await? == pod)).await?;
        }
        Ok(())
    };
    let writes = async |namespace: &str| -> Result<()> {
        cluster.create_namespace(namespace, json!({})).await?;
        cluster.exists("v1", "ConfigMap", namespace, "istio-ca-root-cert").await
    };
    let first = start("istiod-1").await?;
    leads("istiod-1").await?;
    let second = start("istiod-2").await?;
    writes("one").await?;

    // A leader that is terminated releases the lock.
    let ended = Instant::now();
    first.server.stop(Duration::from_secs(20)).await.context("stop the leader")?;
    leads("istiod-2").await?;
    let released = ended.elapsed();
    writes("two").await?;
    assert!(released < Duration::from_secs(20), "{released:?}: the lock expires after 30 s");

    // The lock of a killed leader expires.
    let third = start("istiod-3").await?;
    let ended = Instant::now();
    second.server.kill().await?;
    leads("istiod-3").await?;
    let expired = ended.elapsed();
    writes("three").await?;
    eprintln!(
        "another replica leads {released:.1?} after the leader was terminated, {expired:.1?} after it was killed"
    );
    let failed: Vec<String> = third.warnings()?;
    assert_eq!(failed, Vec::<String>::new());
    Ok(())
}
