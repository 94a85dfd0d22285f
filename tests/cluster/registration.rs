//! Workloads outside Kubernetes register themselves, and report their health (S13, S14).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_proto::envoy::service::discovery::v3::DiscoveryRequest;
use sluice_proto::google::rpc::Status;
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol};
use sluice_testkit::cluster::Cluster;
use sluice_testkit::secure::ClientTls;
use sluice_xds_protocol::HEALTH_TYPE;

use crate::fixture::{RunningControlPlane, start_with_crds, until};
use crate::identity::connect;

const API: &str = "networking.istio.io/v1";
const ENTRY: &str = "vms-10.9.8.7-net-1";
const GRACE_PERIOD: Duration = Duration::from_secs(2);

/// A cluster with a WorkloadGroup for proxies of service account `vm`.
async fn start_with_group() -> Result<Option<Cluster>> {
    let Some(cluster) = start_with_crds(&["serviceentries.", "workload"]).await? else { return Ok(None) };
    cluster.create_namespace("app", json!({})).await?;
    for name in ["vm", "other"] {
        let metadata = json!({"namespace": "app", "name": name});
        cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})).await?;
    }
    cluster
        .apply(&json!({
            "apiVersion": API, "kind": "WorkloadGroup", "metadata": {"namespace": "app", "name": "vms"},
            "spec": {"metadata": {"labels": {"app": "vm"}}, "template": {"serviceAccount": "vm"}},
        }))
        .await?;
    Ok(Some(cluster))
}

async fn start_replica(cluster: &Cluster, pod: &str) -> Result<RunningControlPlane> {
    let variables = [("POD_NAME", pod), ("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "2s")];
    RunningControlPlane::start_with(cluster, cluster.address(), &variables).await
}

fn vm(account: &str, group: &str) -> Result<Identity> {
    Identity::of_node(&json!({
        "id": "sidecar~10.9.8.7~vm-1.app~app.svc.cluster.local",
        "metadata": {
            "NAMESPACE": "app", "SERVICE_ACCOUNT": account, "CLUSTER_ID": "Kubernetes", "NETWORK": "net-1",
            "AUTO_REGISTER_GROUP": group, "PROXY_CONFIG": {"readinessProbe": {"httpGet": {"port": 8080}}},
        },
    }))
}

/// Connects a proxy with the token of a service account, and subscribes to clusters.
async fn register(
    cluster: &Cluster,
    control_plane: &RunningControlPlane,
    (account, group): (&str, &str),
) -> Result<AdsStream> {
    let token = cluster.create_token(("app", account), Some("istio-ca"), None).await?;
    let channel = connect(cluster, control_plane, "app", &ClientTls::default()).await?;
    let mut stream = AdsStream::open_with_token(channel, Protocol::Sotw, vm(account, group)?, &token)?;
    stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new())?;
    Ok(stream)
}

async fn entry(cluster: &Cluster) -> Result<Value> {
    Ok(cluster.get(API, "WorkloadEntry", "app", ENTRY).await?.unwrap_or_default())
}

fn annotation<'a>(entry: &'a Value, name: &str) -> &'a Value {
    &entry["metadata"]["annotations"][format!("istio.io/{name}")]
}

fn report(stream: &AdsStream, problem: Option<&str>) -> Result<()> {
    stream.send_sotw(DiscoveryRequest {
        type_url: HEALTH_TYPE.to_owned(),
        error_detail: problem.map(|message| Status { code: 13, message: message.to_owned(), details: Vec::new() }),
        ..DiscoveryRequest::default()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn workload_is_registered_while_it_is_connected() -> Result<()> {
    let Some(cluster) = start_with_group().await? else { return Ok(()) };
    // This replica removes entries.
    let first = start_replica(&cluster, "istiod-1").await?;
    cluster.exists("coordination.k8s.io/v1", "Lease", "istio-system", "istio-workload-cleanup-election").await?;
    let second = start_replica(&cluster, "istiod-2").await?;
    let mut stream = register(&cluster, &second, ("vm", "vms")).await?;
    stream.next().await?.context("it is served")?;
    until("it is registered", async || Ok(annotation(&entry(&cluster).await?, "workloadController") == "istiod-2"))
        .await?;
    let created = entry(&cluster).await?;
    assert_eq!(created["metadata"]["annotations"]["proxy.istio.io/health-checks-enabled"], "true");
    assert_eq!(created["spec"]["address"], "10.9.8.7");

    // Its health.
    let health = async || -> Result<Value> {
        let entry = entry(&cluster).await?;
        let conditions = entry["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.into_iter().find(|it| it["type"] == "Healthy").unwrap_or_default())
    };
    report(&stream, Some("connection refused"))?;
    until("it is unhealthy", async || Ok(health().await?["status"] == "False")).await?;
    assert_eq!(health().await?["message"], "connection refused");
    report(&stream, None)?;
    until("it is healthy", async || Ok(health().await?["status"] == "True")).await?;

    // It connects to another replica, and then the first stream ends.
    let mut next = register(&cluster, &first, ("vm", "vms")).await?;
    next.next().await?.context("it is served")?;
    until("it is of the other replica", async || {
        Ok(annotation(&entry(&cluster).await?, "workloadController") == "istiod-1")
    })
    .await?;
    drop(stream);
    tokio::time::sleep(GRACE_PERIOD * 2).await;
    let kept = entry(&cluster).await?;
    assert!(annotation(&kept, "connectedAt").is_string() && annotation(&kept, "disconnectedAt").is_null(), "{kept}");

    // It goes. The entry stays for the grace period.
    let gone = Instant::now();
    drop(next);
    until("the end is written", async || {
        let entry = entry(&cluster).await?;
        Ok(entry.is_null() || annotation(&entry, "disconnectedAt").is_string())
    })
    .await?;
    until("it is removed", async || Ok(entry(&cluster).await?.is_null())).await?;
    let removed = gone.elapsed();
    assert!(removed >= GRACE_PERIOD && removed < GRACE_PERIOD * 4, "{removed:?}");

    // The replica that it is connected to is stopped, and the other one removes the entry.
    let mut stream = register(&cluster, &second, ("vm", "vms")).await?;
    stream.next().await?.context("it is served")?;
    until("it is registered", async || Ok(!entry(&cluster).await?.is_null())).await?;
    second.server.stop(Duration::from_secs(20)).await.context("stop the replica")?;
    assert!(annotation(&entry(&cluster).await?, "disconnectedAt").is_string(), "it is written before the replica ends");
    until("it is removed", async || Ok(entry(&cluster).await?.is_null())).await?;
    assert_eq!(first.warnings()?, Vec::<String>::new());
    // The entry was created over the first replica or the other one, taken over, and removed twice.
    let metrics = first.page("/metrics").await?;
    let count = |name: &str| {
        let prefix = format!("auto_registration_{name}_total ");
        metrics.lines().find_map(|line| line.strip_prefix(&prefix)?.parse::<u64>().ok())
    };
    assert_eq!((count("updates"), count("unregister")), (Some(1), Some(1)), "it has connected to this replica once");
    assert_eq!((count("errors"), count("success").is_some()), (Some(0), true));
    assert!(count("deletes") >= Some(1), "the leader deletes: {:?}", count("deletes"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_proxies_with_the_identity_of_the_group_are_registered() -> Result<()> {
    let Some(cluster) = start_with_group().await? else { return Ok(()) };
    let control_plane = start_replica(&cluster, "istiod-1").await?;
    for (account, group, reason) in [
        ("other", "vms", "the proxy has service account other, the WorkloadEntry has vm"),
        ("vm", "none", "there is no WorkloadGroup app/none"),
        ("vm", "../secrets", "`../secrets` is not the name of an object"),
    ] {
        let mut stream = register(&cluster, &control_plane, (account, group)).await?;
        let error = loop {
            match stream.next().await {
                Ok(Some(_)) => {}
                Ok(None) => anyhow::bail!("{reason}: the stream has ended without an error"),
                Err(error) => break format!("{error:#}"),
            }
        };
        assert!(error.contains(reason), "{error}");
    }
    // A caller without an identity.
    let channel = sluice_testkit::ads::connect(control_plane.server.grpc).await?;
    let mut stream = AdsStream::open(channel, Protocol::Sotw, vm("vm", "vms")?)?;
    stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new())?;
    let refused = async {
        while stream.next().await?.is_some() {}
        anyhow::Ok(())
    };
    let error = format!("{:#}", refused.await.expect_err("it is refused"));
    assert!(error.contains("the proxy is not authenticated"), "{error}");
    assert_eq!(entry(&cluster).await?, Value::Null);
    Ok(())
}
