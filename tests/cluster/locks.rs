//! Sluice and istiod in one cluster: of both, the holder of the lock writes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::{Method, Request, header};
use serde_json::{Value, json};
use sluice_kube::{ADDRESSES_LOCK, ROOTS_LOCK};
use sluice_testkit::cluster::{AuditedRequest, Cluster};

use crate::fixture::{RunningControlPlane, SYSTEM, USER, start_with_crds, until};

const ROOTS: &str = "istio-ca-root-cert";
const RECORD: &str = "control-plane.alpha.kubernetes.io/leader";
/// Time between two attempts of a candidate that does not hold the lock, of both control planes.
const RETRY_PERIOD: Duration = Duration::from_millis(7500);
/// How long a record is valid after it was first observed, of both control planes.
const LEASE_DURATION: Duration = Duration::from_secs(30);
/// The most repairs of one ConfigMap within 10 seconds.
const MAX_REPAIRS: usize = 8;

/// An elector that behaves as istiod's: the record is an annotation of a ConfigMap, which is updated with its
/// resourceVersion.
struct ReferenceElector<'a> {
    cluster: &'a Cluster,
    identity: &'static str,
    observed: Option<(String, Instant)>,
}

impl<'a> ReferenceElector<'a> {
    fn new(cluster: &'a Cluster, identity: &'static str) -> Self {
        Self { cluster, identity, observed: None }
    }

    /// One attempt to acquire or renew the lock. Returns whether it is held.
    async fn try_acquire(&mut self) -> Result<bool> {
        let old = self.cluster.get("v1", "ConfigMap", SYSTEM, ROOTS_LOCK.name()).await?;
        let Some(old) = old else { return self.write(None, self.identity, 0).await };
        let text = old["metadata"]["annotations"][RECORD].as_str().unwrap_or("{}");
        let record: Value = serde_json::from_str(text).context("the record")?;
        if self.observed.as_ref().is_none_or(|(observed, _)| observed != text) {
            self.observed = Some((text.to_owned(), Instant::now()));
        }
        let holder = record["holderIdentity"].as_str().unwrap_or_default();
        let is_valid = self.observed.as_ref().is_some_and(|(_, since)| since.elapsed() < LEASE_DURATION);
        if !holder.is_empty() && holder != self.identity && is_valid {
            return Ok(false);
        }
        let transitions = record["leaderTransitions"].as_i64().unwrap_or_default() + i64::from(holder != self.identity);
        self.write(Some(&old), self.identity, transitions).await
    }

    async fn release(&self) -> Result<bool> {
        let old = self.cluster.get("v1", "ConfigMap", SYSTEM, ROOTS_LOCK.name()).await?.context("the lock exists")?;
        self.write(Some(&old), "", 0).await
    }

    /// Returns whether no other writer was first.
    async fn write(&self, old: Option<&Value>, holder: &str, transitions: i64) -> Result<bool> {
        let now = format!("{:.0}", jiff::Timestamp::now());
        let record = json!({
            "holderIdentity": holder, "holderKey": if holder.is_empty() { "" } else { "default" },
            "leaseDurationSeconds": if holder.is_empty() { 1 } else { LEASE_DURATION.as_secs() },
            "acquireTime": now, "renewTime": now, "leaderTransitions": transitions,
        });
        let new = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": SYSTEM, "name": ROOTS_LOCK.name()},
        });
        let mut object = old.cloned().unwrap_or(new);
        object["metadata"]["annotations"][RECORD] = record.to_string().into();
        let collection = format!("/api/v1/namespaces/{SYSTEM}/configmaps");
        let (method, uri) = match old {
            Some(_) => (Method::PUT, format!("{collection}/{}", ROOTS_LOCK.name())),
            None => (Method::POST, collection),
        };
        let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(object.to_string().into_bytes())?;
        match self.cluster.client().request::<Value>(request).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error).context("write the lock"),
        }
    }
}

/// The roots in a namespace.
async fn roots(cluster: &Cluster, namespace: &str) -> Result<Option<String>> {
    let config_map = cluster.get("v1", "ConfigMap", namespace, ROOTS).await?;
    Ok(config_map.and_then(|it| it["data"]["root-cert.pem"].as_str().map(str::to_owned)))
}

/// Writes roots of another authority into a namespace whenever it has others, as istiod does, while the lock is renewed.
/// Returns the number of writes.
async fn write_as_istiod(
    cluster: &Cluster,
    namespace: &str,
    mut lock: Option<&mut ReferenceElector<'_>>,
    time: Duration,
) -> Result<usize> {
    let mut writes = 0;
    let begun = Instant::now();
    let mut renew_at = begun;
    while begun.elapsed() < time {
        if let Some(lock) = lock.as_mut().filter(|_| Instant::now() >= renew_at) {
            ensure!(lock.try_acquire().await?, "istiod keeps the lock");
            renew_at = Instant::now() + Duration::from_secs(2);
        }
        if roots(cluster, namespace).await?.as_deref() != Some("other") {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"namespace": namespace, "name": ROOTS, "labels": {"istio.io/config": "true"}},
                "data": {"root-cert.pem": "other"},
            });
            cluster.apply(&object).await?;
            writes += 1;
        }
        // Until then, the watch has reported a write of sluiced. One that is never seen is repeated much later.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(writes)
}

/// The requests of sluiced that wrote roots to a namespace.
fn requests_of_writes(cluster: &Cluster, namespace: &str) -> Result<Vec<AuditedRequest>> {
    // It writes no other ConfigMap in these namespaces.
    let is_write = |it: &AuditedRequest| {
        it.user == USER
            && it.resource == "configmaps"
            && it.namespace == namespace
            && matches!(it.verb.as_str(), "create" | "update" | "patch")
            && it.code < 300
    };
    Ok(cluster.audited()?.into_iter().filter(is_write).collect())
}

/// Their number.
fn writes(cluster: &Cluster, namespace: &str) -> Result<usize> {
    Ok(requests_of_writes(cluster, namespace)?.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_are_written_by_the_holder_of_the_lock() -> Result<()> {
    let Some(cluster) = start_with_crds(&["serviceentries."]).await? else { return Ok(()) };
    let mut istiod = ReferenceElector::new(&cluster, "istiod-5d8f-1");
    assert!(istiod.try_acquire().await?);
    let control_plane = RunningControlPlane::start(&cluster).await?;
    cluster.create_namespace("shop", json!({})).await?;
    until("sluiced leads where istiod does not", async || {
        let lock = cluster.get("v1", "ConfigMap", SYSTEM, ADDRESSES_LOCK.name()).await?;
        Ok(lock.is_some_and(|lock| ADDRESSES_LOCK.holder(&lock).starts_with("istiod-1-")))
    })
    .await?;
    let held = Instant::now();
    while held.elapsed() < RETRY_PERIOD * 2 {
        assert!(istiod.try_acquire().await?, "istiod renews the lock");
        assert_eq!(roots(&cluster, "shop").await?, None);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    assert!(istiod.release().await?);
    let released = Instant::now();
    cluster.exists("v1", "ConfigMap", "shop", ROOTS).await?;
    let elapsed = released.elapsed();
    assert!(elapsed < LEASE_DURATION, "sluiced waits until the record expires: {elapsed:?}");
    assert!(!istiod.try_acquire().await?, "sluiced holds the lock");

    let stopped = Instant::now();
    control_plane.server.stop(Duration::from_secs(20)).await.context("stop sluiced")?;
    assert!(istiod.try_acquire().await?, "sluiced has released the lock");
    eprintln!("sluiced writes {elapsed:.1?} after istiod's release, istiod {:.1?} after sluiced's", stopped.elapsed());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn control_planes_with_different_roots_do_not_overwrite_each_other() -> Result<()> {
    let Some(cluster) = start_with_crds(&["serviceentries."]).await? else { return Ok(()) };
    let mut istiod = ReferenceElector::new(&cluster, "istiod-5d8f-1");
    assert!(istiod.try_acquire().await?);
    let control_plane = RunningControlPlane::start(&cluster).await?;
    let time = Duration::from_secs(10);

    // istiod holds the lock.
    cluster.create_namespace("first", json!({})).await?;
    let by_holder = write_as_istiod(&cluster, "first", Some(&mut istiod), time).await?;
    assert_eq!((by_holder, writes(&cluster, "first")?), (1, 0));
    assert_eq!(roots(&cluster, "first").await?.as_deref(), Some("other"));

    // istiod writes without a lock (ENABLE_LEADER_ELECTION=false).
    assert!(istiod.release().await?);
    until("sluiced leads", async || Ok(roots(&cluster, "first").await?.is_some_and(|roots| roots != "other"))).await?;
    cluster.create_namespace("second", json!({})).await?;
    // The request is logged when it is complete, after the object exists.
    until("the write is in the audit log", async || Ok(writes(&cluster, "second")? > 0)).await?;
    let before = writes(&cluster, "second")?;
    let begun = Instant::now();
    let mut of_istiod = write_as_istiod(&cluster, "second", None, time).await?;
    // If istiod's first write is earlier than the watch event of sluiced's, the repair is later than usual.
    until("sluiced repairs the roots", async || {
        of_istiod += write_as_istiod(&cluster, "second", None, Duration::from_secs(1)).await?;
        Ok(writes(&cluster, "second")? > before)
    })
    .await?;
    let of_sluiced = writes(&cluster, "second")? - before;
    let elapsed = begun.elapsed();
    eprintln!("writes in {elapsed:.1?}: {by_holder} with the lock, {} if istiod ignores it", of_istiod + of_sluiced);
    let periods = elapsed.as_secs().div_ceil(time.as_secs()) as usize;
    assert!(of_sluiced <= periods * MAX_REPAIRS, "{of_sluiced} writes in {elapsed:?}");
    until("each write of istiod but the first follows a repair", async || {
        Ok(of_istiod <= writes(&cluster, "second")? - before + 1)
    })
    .await?;
    // It is reported after some repairs, whatever the time that they took.
    until("the other writer is reported", async || {
        write_as_istiod(&cluster, "second", None, Duration::from_secs(1)).await?;
        Ok(control_plane.log()?.contains("another writer changes the ConfigMap"))
    })
    .await?;

    // istiod takes the lock from a live holder, as the default revision does, and has other roots.
    cluster.create_namespace("third", json!({})).await?;
    until("the write is in the audit log", async || Ok(writes(&cluster, "third")? > 0)).await?;
    until("istiod writes the lock between two renewals", async || {
        let held = cluster.get("v1", "ConfigMap", SYSTEM, ROOTS_LOCK.name()).await?.context("the lock exists")?;
        istiod.write(Some(&held), istiod.identity, 9).await
    })
    .await?;
    let mut of_istiod = write_as_istiod(&cluster, "third", Some(&mut istiod), Duration::from_millis(1)).await?;
    let before = writes(&cluster, "third")?;
    of_istiod += write_as_istiod(&cluster, "third", Some(&mut istiod), time).await?;
    let of_sluiced = writes(&cluster, "third")? - before;
    let requests = requests_of_writes(&cluster, "third")?;
    assert_eq!(
        (roots(&cluster, "third").await?.as_deref(), of_istiod, of_sluiced),
        (Some("other"), 1, 0),
        "{requests:?}"
    );
    Ok(())
}
