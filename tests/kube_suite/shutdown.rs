//! The end of a process that leads.

use std::time::Duration;

use serde_json::json;
use sluice_kube::{ADDRESSES_LOCK, ROOTS_LOCK};
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, connect};
use sluice_testkit::kube_api::{KubeApi, Route};
use sluice_testkit::server::{Options, Sluiced, get};
use sluice_testkit::wait::until_async;

const SYSTEM: &str = "istio-system";

/// The identities of the holders of locks; empty for a lock that is released.
async fn holders(api: &KubeApi) -> Vec<String> {
    let mut holders = Vec::new();
    for lock in [ADDRESSES_LOCK, ROOTS_LOCK] {
        let object = api.get("v1", "ConfigMap", SYSTEM, lock.name()).await;
        holders.extend(object.map(|object| lock.holder(&object)));
    }
    holders
}

with_api_server!(ready_is_closed_while_streams_end_and_locks_are_released, own);
async fn ready_is_closed_while_streams_end_and_locks_are_released(api: KubeApi) {
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, api.kubeconfig(Route::Direct).to_string()).expect("written");
    api.create_namespace(SYSTEM).await;
    let variables = [("POD_NAME", "sluiced-0"), ("ENABLE_LEADER_ELECTION", "true")];
    let options = Options {
        kubeconfig: Some(kubeconfig),
        args: vec!["--shutdownDuration=5s".to_owned()],
        env: variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..Options::new(directory.path())
    };
    let server = Sluiced::start(&options).await.expect("it starts");
    until_async("it leads", async || {
        let holders = holders(&api).await;
        holders.iter().any(|it| it.starts_with("sluiced-0")).then_some(())
    })
    .await;

    // A connection that has not ended keeps the process running.
    let identity = Identity::of_node(&json!({"id": "sidecar~10.9.0.1~a.shop~shop.svc.cluster.local"})).expect("a node");
    let mut stream =
        AdsStream::open(connect(server.grpc).await.expect("connected"), Protocol::Delta, identity).expect("a stream");
    stream.subscribe(Kind::Cds.type_url(), &[], std::collections::BTreeMap::new()).expect("sent");
    stream.next().await.expect("an answer");
    let http = server.http;
    let watching = tokio::spawn(async move {
        let mut answers = Vec::new();
        while let Ok((status, text)) = get(http, "/ready").await {
            answers.push((status, text));
        }
        answers
    });
    let stopping = tokio::spawn(server.stop(Duration::from_secs(20)));
    assert!(!matches!(stream.next().await, Ok(Some(_))), "the stream ends");
    let answers = watching.await.expect("no panic");
    let closed = answers.iter().skip_while(|(status, _)| *status == 200);
    for (status, text) in closed {
        assert_eq!((*status, text.contains("shutting down")), (503, true), "{text}");
    }
    assert_eq!(stopping.await.expect("no panic").expect("it stops"), Some(0));
    until_async("all locks are released", async || {
        let holders = holders(&api).await;
        holders.iter().all(String::is_empty).then_some(())
    })
    .await;
}
