//! Of several replicas, only the leader writes (O17).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_authority::{TrustBundle, TrustBundleWriter};
use sluice_kube::{Election, ROOTS_LOCK, Term};
use sluice_testkit::api_server::ApiServer;
use sluice_testkit::fault_proxy::FaultProxy;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{SYSTEM, until};
use crate::kube::client_of;

/// A replica that takes part in the election.
struct Replica {
    terms: Arc<AtomicUsize>,
    leads: watch::Receiver<bool>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(server: &ApiServer, pod: &str) -> Self {
        Self::start_with(server.client().expect("a client"), pod, Duration::from_millis(800))
    }

    fn start_with(client: kube::Client, pod: &str, lease_duration: Duration) -> Self {
        let election = Election::new(Some(client), SYSTEM.into(), pod, "default").with_lease_duration(lease_duration);
        let (report, leads) = watch::channel(false);
        let (stop, terms) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let (stopping, counted) = (stop.clone(), terms.clone());
        let task = tokio::spawn(async move {
            let work = |term: Term| {
                counted.fetch_add(1, Ordering::SeqCst);
                report.send_replace(true);
                let report = report.clone();
                async move {
                    term.ended().cancelled().await;
                    report.send_replace(false);
                }
            };
            election.lead(ROOTS_LOCK, stopping, work).await;
        });
        Self { terms, leads, stop, task }
    }

    fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    fn terms(&self) -> usize {
        self.terms.load(Ordering::SeqCst)
    }
}

const RECORD: &str = "control-plane.alpha.kubernetes.io/leader";

/// The record of the holder of the lock; `null` if there is none.
fn record(server: &ApiServer) -> Value {
    let object = server.get("", "configmaps", SYSTEM, ROOTS_LOCK.name()).unwrap_or_default();
    object["metadata"]["annotations"][RECORD].as_str().map_or(Value::Null, |text| text.parse().expect("a record"))
}

fn holder(server: &ApiServer) -> String {
    record(server)["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// Another control plane writes itself into the lock, whether or not it is free.
fn take(server: &ApiServer, identity: &str, key: &str) {
    let text = json!({
        "holderIdentity": identity, "holderKey": key, "leaseDurationSeconds": 1,
        "acquireTime": "2026-01-01T00:00:00Z", "renewTime": "2026-01-01T00:00:00Z", "leaderTransitions": 7,
    });
    server.apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": SYSTEM, "name": ROOTS_LOCK.name(), "annotations": {RECORD: text.to_string()}},
    }));
}

async fn leads(replica: &Replica) {
    until("it leads", || replica.leads().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_replica_leads_when_the_leader_stops() {
    let server = ApiServer::start().await.expect("a server");
    let one = Replica::start(&server, "one");
    leads(&one).await;
    let other = Replica::start(&server, "other");
    // Several renewals pass, and the other replica reads the lock each time.
    let renewals = server.count("update", "configmaps") + 4;
    until("it is renewed", || (server.count("update", "configmaps") >= renewals).then_some(())).await;
    assert!(one.leads() && !other.leads());
    assert_eq!((one.terms(), other.terms()), (1, 0));
    let held = record(&server);
    assert!(holder(&server).starts_with("one-"), "{held}");
    assert_eq!((&held["leaderTransitions"], &held["holderKey"]), (&json!(0), &json!("default")));

    // The leader stops, and releases the lock.
    one.stop.cancel();
    one.task.await.expect("no panic");
    assert!(!*one.leads.borrow());
    leads(&other).await;
    assert_eq!(record(&server)["leaderTransitions"], 1);

    // The leader is killed, and does not release its lock.
    let third = Replica::start(&server, "third");
    other.task.abort();
    leads(&third).await;
    assert!(holder(&server).starts_with("third-"));
    assert_eq!(third.terms(), 1);
    third.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_cannot_renew_its_lock_stops_leading_and_returns() {
    let server = ApiServer::start().await.expect("a server");
    let one = Replica::start(&server, "one");
    leads(&one).await;
    server.forbid("configmaps", true);
    until("it stops", || (!one.leads()).then_some(())).await;
    server.forbid("configmaps", false);
    leads(&one).await;
    assert_eq!(one.terms(), 2);
    take(&server, "thief", "default");
    until("it stops", || (!one.leads()).then_some(())).await;
    // The other holder does not renew it.
    leads(&one).await;
    one.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn default_revision_takes_the_lock_and_waits_until_the_holder_has_ended() {
    let server = ApiServer::start().await.expect("a server");
    take(&server, "istiod-canary-1", "canary");
    let holding = async {
        for renewal in 0.. {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if holder(&server) != "istiod-canary-1" {
                break;
            }
            take(&server, "istiod-canary-1", &format!("canary-{renewal}"));
        }
        Instant::now()
    };
    let one = Replica::start_with(server.client().expect("a client"), "one", Duration::from_secs(2));
    let making_default = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!((one.leads(), holder(&server).as_str()), (false, "istiod-canary-1"), "there is no default revision");
        server.apply(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "istio-revision-tag-default", "labels": {"istio.io/rev": "default"}},
        }));
    };
    let (taken, ()) = tokio::join!(holding, making_default);
    leads(&one).await;
    assert!(taken.elapsed() >= Duration::from_secs(1), "the holder may still write: {:?}", taken.elapsed());
    // It is taken from it in turn, by a control plane of the same revision, which keeps it.
    take(&server, "istiod-1", "default");
    until("it stops", || (!one.leads()).then_some(())).await;
    assert_eq!(holder(&server), "istiod-1");
    one.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_record_is_not_overwritten() {
    let server = ApiServer::start().await.expect("a server");
    let object = |record: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": SYSTEM, "name": ROOTS_LOCK.name(), "annotations": {RECORD: record}},
        })
    };
    server.apply(object("not a record"));
    let one = Replica::start(&server, "one");
    let reads = server.count("get", "configmaps");
    until("it tries again", || (server.count("get", "configmaps") > reads + 5).then_some(())).await;
    assert_eq!((one.leads(), server.count("update", "configmaps")), (false, 0));
    server.apply(object("{}"));
    leads(&one).await;
    one.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_whose_work_panics_releases_its_lock() {
    let server = ApiServer::start().await.expect("a server");
    let client = server.client().expect("a client");
    let election = Election::new(Some(client), SYSTEM.into(), "one", "");
    let broken = tokio::spawn(election.lead(ROOTS_LOCK, CancellationToken::new(), async |_| panic!("a bug")));
    assert!(broken.await.expect_err("the panic continues").is_panic());
    assert_eq!(holder(&server), "", "it is released");
    let other = Replica::start_with(server.client().expect("a client"), "other", Duration::from_secs(30));
    leads(&other).await;
    other.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn write_in_progress_ends_before_another_replica_leads() {
    let server = ApiServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.address()).await.expect("a proxy");
    let duration = Duration::from_secs(3);
    let stop = CancellationToken::new();
    let (began, mut has_begun) = watch::channel(false);
    let (ended, mut has_ended) = watch::channel(None);
    let client = client_of(proxy.address());
    let election = Election::new(Some(client), SYSTEM.into(), "one", "").with_lease_duration(duration);
    let work = move |term: Term| {
        let (began, ended) = (began.clone(), ended.clone());
        async move {
            began.send_replace(true);
            // A write without a response.
            assert!(term.write(std::future::pending::<()>()).await.is_err());
            assert!(!term.is_current());
            ended.send_replace(Some(Instant::now()));
            // The end of the term is ignored, and the work is stopped.
            std::future::pending::<()>().await;
        }
    };
    let leading = tokio::spawn(election.lead(ROOTS_LOCK, stop.clone(), work));
    has_begun.wait_for(|begun| *begun).await.expect("it leads");
    proxy.freeze();
    let other = Replica::start_with(server.client().expect("a client"), "other", duration);
    leads(&other).await;
    let other_since = Instant::now();
    let ended = *has_ended.wait_for(Option::is_some).await.expect("it ended");
    assert!(ended.expect("a time") < other_since, "the write was dropped first");
    stop.cancel();
    leading.await.expect("the work is stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_keeps_its_lock_when_its_connections_are_frozen() {
    let server = ApiServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.address()).await.expect("a proxy");
    let one = Replica::start_with(client_of(proxy.address()), "one", Duration::from_secs(9));
    leads(&one).await;
    for _ in 0..2 {
        let renewals = server.count("update", "configmaps");
        proxy.lose_connections();
        until("it is renewed", || (server.count("update", "configmaps") > renewals + 1).then_some(())).await;
    }
    assert_eq!(one.terms(), 1, "it led all the time");
    one.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_election_every_replica_leads() {
    let election = Election::new(None, SYSTEM.into(), "one", "");
    let stop = CancellationToken::new();
    let (report, mut reported) = watch::channel(false);
    let work = |_: Term| {
        report.send_replace(true);
        async {}
    };
    election.lead(ROOTS_LOCK, stop, work).await;
    assert!(*reported.borrow_and_update());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_roots_are_in_a_cluster_trust_bundle() {
    let server = ApiServer::start().await.expect("a server");
    let bundle = |roots: &str| TrustBundle { roots: roots.to_owned(), ..TrustBundle::default() };
    let (sender, receiver) = watch::channel(bundle("one"));
    let stop = CancellationToken::new();
    let writing = tokio::spawn(TrustBundleWriter::new(server.client().expect("a client"), receiver).run(stop.clone()));
    let stored = || server.get("certificates.k8s.io", "clustertrustbundles", "", "istio.io:istiod-ca:root-cert");
    let has = |roots: &'static str| move |object: Value| (object["spec"]["trustBundle"] == roots).then_some(object);
    let object = until("it is written", || stored().and_then(has("one"))).await;
    assert_eq!(object["spec"], json!({"signerName": "istio.io/istiod-ca", "trustBundle": "one"}));
    sender.send_replace(bundle("two"));
    until("it has the new roots", || stored().and_then(has("two"))).await;
    // Equal roots are not written again.
    let written = server.count("update", "clustertrustbundles");
    let reads = server.count("get", "clustertrustbundles");
    sender.send_replace(bundle("two"));
    until("it reads again", || (server.count("get", "clustertrustbundles") > reads).then_some(())).await;
    assert_eq!(server.count("update", "clustertrustbundles"), written);
    stop.cancel();
    writing.await.expect("no panic");
}
