//! Of several replicas, only the leader writes (O17).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_authority::{TrustBundle, TrustBundleWriter};
use sluice_kube::{Election, ROOTS_LEASE, Term};
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
        let election = Election::new(Some(client), SYSTEM.into(), pod).with_lease_duration(lease_duration);
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
            election.lead(ROOTS_LEASE, stopping, work).await;
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

fn lease(server: &ApiServer) -> Option<Value> {
    server.get("coordination.k8s.io", "leases", SYSTEM, ROOTS_LEASE)
}

fn holder(server: &ApiServer) -> String {
    lease(server)
        .map(|lease| lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
        .unwrap_or_default()
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
    // Several renewals pass, and the other replica reads the lease each time.
    let renewals = server.count("update", "leases") + 4;
    until("it is renewed", || (server.count("update", "leases") >= renewals).then_some(())).await;
    assert!(one.leads() && !other.leads());
    assert_eq!((one.terms(), other.terms()), (1, 0));
    let held = lease(&server).expect("a lease");
    assert!(holder(&server).starts_with("one-"), "{held}");
    assert_eq!(held["spec"]["leaseTransitions"], 0);

    // The leader stops, and releases the lease.
    one.stop.cancel();
    one.task.await.expect("no panic");
    assert!(!*one.leads.borrow());
    leads(&other).await;
    assert_eq!(lease(&server).expect("a lease")["spec"]["leaseTransitions"], 1);

    // The leader is killed, and does not release its lease.
    let third = Replica::start(&server, "third");
    other.task.abort();
    leads(&third).await;
    assert!(holder(&server).starts_with("third-"));
    assert_eq!(third.terms(), 1);
    third.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_cannot_renew_its_lease_stops_leading_and_returns() {
    let server = ApiServer::start().await.expect("a server");
    let one = Replica::start(&server, "one");
    leads(&one).await;
    server.forbid("leases", true);
    until("it stops", || (!one.leads()).then_some(())).await;
    server.forbid("leases", false);
    leads(&one).await;
    assert_eq!(one.terms(), 2);
    // Another holder is written into the lease.
    let mut lease = lease(&server).expect("a lease");
    lease["spec"]["holderIdentity"] = "thief".into();
    lease["apiVersion"] = "coordination.k8s.io/v1".into();
    lease["kind"] = "Lease".into();
    server.apply(lease);
    until("it stops", || (!one.leads()).then_some(())).await;
    // The other holder does not renew it.
    leads(&one).await;
    one.stop.cancel();
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
    let election = Election::new(Some(client), SYSTEM.into(), "one").with_lease_duration(duration);
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
    let leading = tokio::spawn(election.lead(ROOTS_LEASE, stop.clone(), work));
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
async fn leader_keeps_its_lease_when_its_connections_are_frozen() {
    let server = ApiServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.address()).await.expect("a proxy");
    let one = Replica::start_with(client_of(proxy.address()), "one", Duration::from_secs(9));
    leads(&one).await;
    for _ in 0..2 {
        let renewals = server.count("update", "leases");
        proxy.lose_connections();
        until("it is renewed", || (server.count("update", "leases") > renewals + 1).then_some(())).await;
    }
    assert_eq!(one.terms(), 1, "it led all the time");
    one.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_election_every_replica_leads() {
    let election = Election::new(None, SYSTEM.into(), "one");
    let stop = CancellationToken::new();
    let (report, mut reported) = watch::channel(false);
    let work = |_: Term| {
        report.send_replace(true);
        async {}
    };
    election.lead(ROOTS_LEASE, stop, work).await;
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
