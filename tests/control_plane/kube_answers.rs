//! Wrong answers of an API server: what was read stays, and a finding says why it is not current.

use sluice_model::Kind;
use sluice_sources::kube::WatchStates;
use sluice_testkit::api_server::{ApiServer, WrongAnswer};
use sluice_testkit::server::{Options, Sluiced};
use sluice_testkit::wait::until;

use crate::kube::{service, virtual_service, virtual_services};
use crate::kube_suite::secret_access::SecretReviewFixture;
use crate::kube_suite::source::{Record, RunningSource};

const ANSWERS: [WrongAnswer; 7] = [
    WrongAnswer::Status(404),
    WrongAnswer::Status(403),
    WrongAnswer::Status(429),
    WrongAnswer::Status(500),
    WrongAnswer::NoSuchPage,
    WrongAnswer::Page,
    WrongAnswer::EmptyObject,
];

async fn server() -> ApiServer {
    let server = ApiServer::start().await.expect("a server");
    server.apply(service("a"));
    server.define(virtual_services(), true);
    server.apply(virtual_service("v"));
    server
}

/// Waits until a collection whose path has this end fails, and returns the reason.
async fn reason(states: &WatchStates, end: &str) -> String {
    let find = || {
        let failing = states.failing().into_iter();
        let found = failing.map(|(_, watch)| watch).find(|watch| watch.resource.ends_with(end))?;
        found.failure.map(|failure| failure.reason)
    };
    until(&format!("{end} fails"), find).await
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_stay_when_lists_and_watches_are_answered_wrongly() {
    for (resource, wrong) in [("virtualservices", "virtualservices"), ("virtualservices", "*"), ("services", "*")] {
        for answer in ANSWERS {
            let running = RunningSource::start_fake(server().await);
            running.sink.synced().await;
            let (server, what) = (&running.server, format!("{wrong}: {answer:?}"));
            server.answer_wrongly(wrong, Some(answer));
            // The watch expires, and the kind is listed again.
            server.compact();
            server.disconnect();
            let reason = reason(&running.states, resource).await;
            assert!(reason.ends_with("the objects that were read stay"), "{what}: {reason}");
            let requests = || server.count("list", resource) + server.count("watch", resource);
            let more = requests() + 4;
            until("it is requested again", || (requests() >= more).then_some(())).await;
            let record = running.sink.until("nothing is deleted", |record| record.deleted.is_empty()).await;
            assert_eq!(record.names(Kind::VirtualService), ["n/v"], "{what}");
            assert_eq!(record.names(Kind::Service), ["n/a"], "{what}");

            server.answer_wrongly(wrong, None);
            server.apply(virtual_service("w"));
            server.apply(service("b"));
            let changed = |kind, record: &Record| record.names(kind).len() == 2;
            running
                .sink
                .until(&what, |record| changed(Kind::VirtualService, record) && changed(Kind::Service, record))
                .await;
            until("nothing fails", || running.states.failing().is_empty().then_some(())).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_not_synced_while_definitions_are_answered_wrongly() {
    for answer in ANSWERS {
        let server = server().await;
        server.answer_wrongly("customresourcedefinitions", Some(answer));
        if matches!(answer, WrongAnswer::Status(404) | WrongAnswer::NoSuchPage) {
            server.answer_wrongly("discovery", Some(answer));
        }
        let running = RunningSource::start_fake(server);
        let reason = reason(&running.states, "/customresourcedefinitions").await;
        let requests = || {
            let count = |verb| running.server.count(verb, "customresourcedefinitions");
            count("list") + count("watch")
        };
        let more = requests() + 3;
        until("they are requested again", || (requests() >= more).then_some(())).await;
        let record = running.sink.until("Services are read", |record| record.is_synced(Kind::Service)).await;
        assert!(!record.is_synced(Kind::VirtualService), "{answer:?}: {reason}");
        for resource in ["customresourcedefinitions", "discovery"] {
            running.server.answer_wrongly(resource, None);
        }
        let record = running.sink.synced().await;
        assert_eq!(record.names(Kind::VirtualService), ["n/v"], "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kind_is_absent_when_discovery_says_so() {
    let running = RunningSource::start_fake(server().await);
    running.sink.synced().await;
    // Without discovery, the objects of a kind that is not found stay.
    running.server.answer_wrongly("discovery", Some(WrongAnswer::NoSuchPage));
    running.server.answer_wrongly("virtualservices", Some(WrongAnswer::NoSuchPage));
    running.server.disconnect();
    let reason = reason(&running.states, "/virtualservices").await;
    assert!(reason.contains("no discovery that the kind is not served"), "{reason}");
    running.server.answer_wrongly("virtualservices", None);
    running.server.define(virtual_services(), false);
    let requests = || running.server.count("watch", "virtualservices");
    let more = requests() + 3;
    until("it is requested again", || (requests() >= more).then_some(())).await;
    running.server.answer_wrongly("discovery", None);
    running.sink.until("it is absent", |record| record.names(Kind::VirtualService).is_empty()).await;
    until("that is no failure", || running.states.failing().is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_that_does_not_respond_delays_no_reviews_of_others() {
    let (own, hung) = (ApiServer::start().await.expect("a server"), ApiServer::start().await.expect("a server"));
    hung.answer_wrongly("subjectaccessreviews", Some(WrongAnswer::Nothing));
    own.allow_reading_secrets("edge", "gateway", true);
    let reviewing = SecretReviewFixture::start(
        [("c", &own), ("hung", &hung)].map(|(id, server)| (id.into(), server.client().expect("a client"))).into(),
    );
    reviewing.connect("hung", "edge", "gateway");
    until("a review hangs", || (hung.count("create", "subjectaccessreviews") == 1).then_some(())).await;
    for account in ["gateway", "other"] {
        reviewing.connect("c", "edge", account);
        reviewing.answered("c", account, account == "gateway").await;
    }
    assert_eq!(hung.count("create", "subjectaccessreviews"), 1, "the review still hangs");
    hung.answer_wrongly("subjectaccessreviews", None);
    reviewing.answered("hung", "gateway", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_kinds_are_visible_and_logged_once_a_minute() {
    let server = server().await;
    let directory = tempfile::tempdir().expect("a directory");
    let (kubeconfig, log) = (directory.path().join("kubeconfig"), directory.path().join("log"));
    server.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
    let options = Options { kubeconfig: Some(kubeconfig), log: Some(log.clone()), ..Options::new(directory.path()) };
    let sluiced = Sluiced::start(&options).await.expect("it starts");
    let get = async |path: &str| sluiced.get(path).await.expect("an answer");
    let before = std::fs::read_to_string(&log).expect("a log").lines().count();
    let requests = || server.requests().into_values().sum::<usize>();
    let more = requests() + 60;
    server.answer_wrongly("*", Some(WrongAnswer::Status(500)));
    server.disconnect();
    until("requests fail", || (requests() >= more).then_some(())).await;

    let (_, clusters) = get("/debug/clusterz").await;
    assert!(clusters.contains("500: a fault of the test"), "{clusters}");
    let (_, rejects) = get("/debug/rejects").await;
    assert!(rejects.contains("\"collection\"") && rejects.contains("/api/v1/services"), "{rejects}");
    let (_, metrics) = get("/metrics").await;
    let labels = "{cluster=\"Kubernetes\",resource=\"/api/v1/services\"}";
    assert!(metrics.contains(&format!("sluice_kube_watch_age_seconds{labels} ")), "{metrics}");
    assert!(metrics.contains(&format!("sluice_kube_watch_failures_total{labels} ")), "{metrics}");
    assert_eq!(get("/ready").await.0, 200, "the last state is served");
    let text = std::fs::read_to_string(&log).expect("a log");
    let lines: Vec<&str> = text.lines().skip(before).collect();
    let clusters: serde_json::Value = serde_json::from_str(&clusters).expect("JSON");
    let collections = clusters[0]["watches"].as_array().expect("collections").len();
    let warnings = lines.iter().filter(|line| line.contains("once a minute")).count();
    eprintln!("{} lines of log for 60 failed requests for {collections} collections", lines.len());
    assert!(warnings > 0 && warnings <= collections, "each is logged once a minute: {lines:#?}");

    server.answer_wrongly("*", None);
    let recovered = async || !get("/debug/clusterz").await.1.contains("failure");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !recovered().await {
        assert!(std::time::Instant::now() < deadline, "it recovers");
    }
    assert_eq!(sluiced.stop(std::time::Duration::from_secs(20)).await.expect("it stops"), Some(0));
}
