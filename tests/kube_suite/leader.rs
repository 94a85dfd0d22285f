//! Of several replicas, only the leader writes (O17).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};
use sluice_kube::{Election, ROOTS_LOCK, Term};
use sluice_testkit::kube_api::{KubeApi, Route};
use sluice_testkit::wait::{until, until_async};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::client;

/// A renewal may take a second on a busy machine.
const LEASE_DURATION: Duration = Duration::from_secs(3);
const RECORD: &str = "control-plane.alpha.kubernetes.io/leader";

/// A replica that takes part in the election.
struct Replica {
    terms: Arc<AtomicUsize>,
    leads: watch::Receiver<bool>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(client: kube::Client, namespace: &str, pod: &str, lease_duration: Duration) -> Self {
        let election =
            Election::new(Some(client), namespace.into(), pod, "default").with_lease_duration(lease_duration);
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

/// A server and the namespace of the lock.
struct LockNamespace {
    api: KubeApi,
    name: String,
}

impl LockNamespace {
    async fn new(api: KubeApi) -> Self {
        let name = api.namespace("istio-system").await;
        Self { api, name }
    }

    async fn replica(&self, pod: &str) -> Replica {
        Replica::start(client(&self.api).await, &self.name, pod, LEASE_DURATION)
    }

    /// The record of the holder of the lock; `null` if there is none.
    async fn record(&self) -> Value {
        let object = self.api.get("v1", "ConfigMap", &self.name, ROOTS_LOCK.name()).await.unwrap_or_default();
        object["metadata"]["annotations"][RECORD].as_str().map_or(Value::Null, |text| text.parse().expect("a record"))
    }

    async fn holder(&self) -> String {
        self.record().await["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }

    async fn write(&self, record: &str) {
        let metadata =
            json!({"namespace": self.name, "name": ROOTS_LOCK.name(), "annotations": {RECORD: record.to_owned()}});
        self.api.apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})).await;
    }

    /// Another control plane writes itself into the lock, whether or not it is free.
    async fn take(&self, identity: &str, key: &str) {
        self.write(&Self::record_of(identity, key).to_string()).await;
    }

    fn record_of(identity: &str, key: &str) -> Value {
        json!({
            "holderIdentity": identity, "holderKey": key, "leaseDurationSeconds": 1,
            "acquireTime": "2026-01-01T00:00:00Z", "renewTime": "2026-01-01T00:00:00Z", "leaderTransitions": 7,
        })
    }

    /// The holder renews the lock, as a control plane does: only while no other has written it. Returns whether it still held it.
    async fn renew(&self, client: &kube::Client, identity: &str, key: &str) -> bool {
        let object = self.api.get("v1", "ConfigMap", &self.name, ROOTS_LOCK.name()).await.expect("the lock");
        let mut object: DynamicObject = serde_json::from_value(object).expect("an object");
        let annotations = object.metadata.annotations.get_or_insert_default();
        let record: Value = annotations[RECORD].parse().expect("a record");
        if record["holderIdentity"] != identity {
            return false;
        }
        annotations.insert(RECORD.to_owned(), Self::record_of(identity, key).to_string());
        let config_maps = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        let locks = Api::<DynamicObject>::namespaced_with(client.clone(), &self.name, &config_maps);
        match locks.replace(ROOTS_LOCK.name(), &PostParams::default(), &object).await {
            Ok(_) => true,
            Err(kube::Error::Api(status)) if status.code == 409 => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until the lock is renewed a number of times.
    async fn is_renewed(&self, times: usize) {
        let renewals = self.api.count("update", "configmaps") + times;
        let count = || self.api.count("update", "configmaps");
        until_async("it is renewed", async || (count() >= renewals).then_some(())).await;
    }
}

async fn leads(replica: &Replica) {
    until("it leads", || replica.leads().then_some(())).await;
}

async fn stops(replica: &Replica) {
    until("it stops", || (!replica.leads()).then_some(())).await;
}

with_api_server!(another_replica_leads_when_the_leader_stops, shared);
async fn another_replica_leads_when_the_leader_stops(api: KubeApi) {
    let lock = LockNamespace::new(api).await;
    let one = lock.replica("one").await;
    leads(&one).await;
    let other = lock.replica("other").await;
    // Several renewals pass, and the other replica reads the lock each time.
    lock.is_renewed(4).await;
    assert!(one.leads() && !other.leads());
    assert_eq!((one.terms(), other.terms()), (1, 0));
    let held = lock.record().await;
    assert!(lock.holder().await.starts_with("one-"), "{held}");
    assert_eq!((&held["leaderTransitions"], &held["holderKey"]), (&json!(0), &json!("default")));

    // The leader stops, and releases the lock.
    one.stop.cancel();
    one.task.await.expect("no panic");
    assert!(!*one.leads.borrow());
    leads(&other).await;
    assert_eq!(lock.record().await["leaderTransitions"], 1);

    // The leader is killed, and does not release its lock.
    let third = lock.replica("third").await;
    other.task.abort();
    leads(&third).await;
    assert!(lock.holder().await.starts_with("third-"));
    assert_eq!(third.terms(), 1);
    third.stop.cancel();
}

with_api_server!(replicas_that_start_together_have_one_leader, shared);
async fn replicas_that_start_together_have_one_leader(api: KubeApi) {
    let lock = LockNamespace::new(api).await;
    let mut replicas = Vec::new();
    for pod in ["one", "two", "three"] {
        replicas.push(lock.replica(pod).await);
    }
    let leading = || replicas.iter().filter(|replica| replica.leads()).count();
    until("one leads", || (leading() > 0).then_some(())).await;
    lock.is_renewed(4).await;
    assert_eq!((leading(), replicas.iter().map(Replica::terms).sum::<usize>()), (1, 1));
}

with_api_server!(a_leader_that_cannot_renew_its_lock_stops_leading_and_returns, shared);
async fn a_leader_that_cannot_renew_its_lock_stops_leading_and_returns(api: KubeApi) {
    let lock = LockNamespace::new(api).await;
    let one = lock.replica("one").await;
    leads(&one).await;
    lock.api.forbid("configmaps", true).await;
    stops(&one).await;
    lock.api.forbid("configmaps", false).await;
    leads(&one).await;
    assert_eq!(one.terms(), 2);
    lock.take("thief", "default").await;
    stops(&one).await;
    // The other holder does not renew it.
    leads(&one).await;
    one.stop.cancel();
}

with_api_server!(default_revision_takes_the_lock_and_waits_until_the_holder_has_ended, shared);
async fn default_revision_takes_the_lock_and_waits_until_the_holder_has_ended(api: KubeApi) {
    const ADMISSION: (&str, &str) = ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration");
    const DEFAULT: &str = "istio-revision-tag-default";
    let lock = LockNamespace::new(api).await;
    lock.take("istiod-canary-1", "canary").await;
    let direct = sluice_kube::client(lock.api.config(Route::Direct).await).expect("a client");
    let holding = async {
        for renewal in 0..600 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if !lock.renew(&direct, "istiod-canary-1", &format!("canary-{renewal}")).await {
                return Instant::now();
            }
        }
        panic!("the lock is not taken");
    };
    let one = lock.replica("one").await;
    let making_default = async {
        tokio::time::sleep(LEASE_DURATION + Duration::from_secs(1)).await;
        let holder = lock.holder().await;
        assert_eq!((one.leads(), holder.as_str()), (false, "istiod-canary-1"), "there is no default revision");
        let metadata = json!({"name": DEFAULT, "labels": {"istio.io/rev": "default"}});
        lock.api.apply(json!({"apiVersion": ADMISSION.0, "kind": ADMISSION.1, "metadata": metadata})).await;
    };
    let (taken, ()) = tokio::join!(holding, making_default);
    leads(&one).await;
    assert!(taken.elapsed() >= LEASE_DURATION / 2, "the holder may still write: {:?}", taken.elapsed());
    // It is taken from it in turn, by a control plane of the same revision, which keeps it.
    lock.take("istiod-1", "default").await;
    stops(&one).await;
    assert_eq!(lock.holder().await, "istiod-1");
    one.stop.cancel();
    lock.api.delete(ADMISSION.0, ADMISSION.1, "", DEFAULT).await;
}

with_api_server!(malformed_record_is_not_overwritten, shared);
async fn malformed_record_is_not_overwritten(api: KubeApi) {
    let lock = LockNamespace::new(api).await;
    lock.write("not a record").await;
    let one = lock.replica("one").await;
    let reads = lock.api.count("get", "configmaps");
    let count = || lock.api.count("get", "configmaps");
    until_async("it tries again", async || (count() > reads + 5).then_some(())).await;
    assert_eq!((one.leads(), lock.api.count("update", "configmaps")), (false, 0));
    lock.write("{}").await;
    leads(&one).await;
    one.stop.cancel();
}

with_api_server!(leader_whose_work_panics_releases_its_lock, shared);
async fn leader_whose_work_panics_releases_its_lock(api: KubeApi) {
    let lock = LockNamespace::new(api).await;
    let election = Election::new(Some(client(&lock.api).await), (&*lock.name).into(), "one", "");
    let broken = tokio::spawn(election.lead(ROOTS_LOCK, CancellationToken::new(), async |_| panic!("a bug")));
    assert!(broken.await.expect_err("the panic continues").is_panic());
    assert_eq!(lock.holder().await, "", "it is released");
    let other = Replica::start(client(&lock.api).await, &lock.name, "other", Duration::from_secs(30));
    leads(&other).await;
    other.stop.cancel();
}

with_api_server!(write_in_progress_ends_before_another_replica_leads, shared);
async fn write_in_progress_ends_before_another_replica_leads(api: KubeApi) {
    let lock = LockNamespace::new(api).await;
    let stop = CancellationToken::new();
    let (began, mut has_begun) = watch::channel(false);
    let (ended, mut has_ended) = watch::channel(None);
    let election = Election::new(Some(client(&lock.api).await), (&*lock.name).into(), "one", "")
        .with_lease_duration(LEASE_DURATION);
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
    lock.api.proxy().freeze();
    let direct = sluice_kube::client(lock.api.config(Route::Direct).await).expect("a client");
    let other = Replica::start(direct, &lock.name, "other", LEASE_DURATION);
    leads(&other).await;
    let other_since = Instant::now();
    let ended = *has_ended.wait_for(Option::is_some).await.expect("it ended");
    assert!(ended.expect("a time") < other_since, "the write was dropped first");
    stop.cancel();
    leading.await.expect("the work is stopped");
}

with_api_server!(leader_keeps_its_lock_when_its_connections_are_lost, shared);
async fn leader_keeps_its_lock_when_its_connections_are_lost(api: KubeApi) {
    let lock = LockNamespace::new(api).await;
    let one = Replica::start(client(&lock.api).await, &lock.name, "one", Duration::from_secs(9));
    leads(&one).await;
    for _ in 0..2 {
        lock.api.proxy().lose_connections();
        lock.is_renewed(2).await;
    }
    assert_eq!(one.terms(), 1, "it led all the time");
    one.stop.cancel();
}

with_api_server!(leader_keeps_its_lock_when_the_api_server_is_frozen_for_less_than_its_duration, shared);
async fn leader_keeps_its_lock_when_the_api_server_is_frozen_for_less_than_its_duration(api: KubeApi) {
    /// A renewal begins 4.5 s after the last one. It fails after 3 s, and is repeated after 1.2 s. Without renewals, a
    /// term ends after 12 s.
    const LOCK_DURATION: Duration = Duration::from_secs(18);
    /// Time in which the answer to a renewal arrives.
    const ANSWER_TIME: Duration = Duration::from_secs(1);
    /// One renewal fails.
    const FREEZE_TIME: Duration = Duration::from_secs(7);
    let lock = LockNamespace::new(api).await;
    let one = Replica::start(client(&lock.api).await, &lock.name, "one", LOCK_DURATION);
    leads(&one).await;
    lock.is_renewed(1).await;
    tokio::time::sleep(ANSWER_TIME).await;
    let renewals = lock.api.count("update", "configmaps");
    lock.api.proxy().freeze();
    let direct = sluice_kube::client(lock.api.config(Route::Direct).await).expect("a client");
    let other = Replica::start(direct, &lock.name, "other", LOCK_DURATION);
    tokio::time::sleep(FREEZE_TIME).await;
    assert_eq!(lock.api.count("update", "configmaps"), renewals, "no renewal arrives");
    lock.api.proxy().restore();
    lock.is_renewed(2).await;
    assert!(one.leads() && !other.leads());
    assert_eq!((one.terms(), other.terms()), (1, 0), "it led all the time");
    let record = lock.record().await;
    assert!(record["holderIdentity"].as_str().is_some_and(|holder| holder.starts_with("one-")), "{record}");
    assert_eq!(record["leaderTransitions"], 0, "{record}");
    one.stop.cancel();
    other.stop.cancel();
}
