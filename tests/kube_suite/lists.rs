//! Lists and watches of the source.

use std::time::Duration;

use serde_json::{Value, json};
use sluice_kube::KubeOptions;
use sluice_model::Kind;
use sluice_parse::KINDS;
use sluice_testkit::kube_api::KubeApi;
use sluice_testkit::wait::until;

use super::source::{RunningSource, service, virtual_service};

async fn apply_services(api: &KubeApi, namespace: &str, names: &[&str]) {
    for name in names {
        api.apply(service(namespace, name)).await;
    }
}

with_api_server!(lists_are_read_in_pages_and_then_watched, own_without_streaming_lists);
async fn lists_are_read_in_pages_and_then_watched(api: KubeApi) {
    let n = &*api.namespace("n").await;
    apply_services(&api, n, &["a", "b", "c", "d", "e"]).await;
    let running = RunningSource::start(api).await;
    let record = running.sink.synced().await;
    assert_eq!(record.names_in(Kind::Service, n), ["a", "b", "c", "d", "e"]);
    // A real cluster also has the Service of its API server.
    let pages = running.server.list("v1", "Service").await.len().div_ceil(2);
    assert_eq!(running.server.count("list", "services"), pages, "two objects a page");

    let version = running.server.apply(service(n, "f")).await;
    running.server.delete("v1", "Service", n, "a").await;
    let record = running.sink.has(Kind::Service, n, &["b", "c", "d", "e", "f"]).await;
    assert_eq!(record.objects[&Kind::Service][&format!("{n}/f")], version);
    assert_eq!(record.deleted_in(n), ["a"]);
    assert_eq!(running.server.count("list", "services"), pages, "a watch does not list again");
}

with_api_server!(streaming_lists_are_read_and_watched_in_one_request, shared);
async fn streaming_lists_are_read_and_watched_in_one_request(api: KubeApi) {
    let n = &*api.namespace("n").await;
    apply_services(&api, n, &["a", "b", "c", "d", "e"]).await;
    api.define("VirtualService").await;
    api.apply(virtual_service(n, "v")).await;
    let running = RunningSource::start(api).await;
    let record = running.sink.synced().await;
    assert_eq!(record.names_in(Kind::Service, n), ["a", "b", "c", "d", "e"]);
    assert_eq!(record.names_in(Kind::VirtualService, n), ["v"], "definitions are streamed as well");

    running.server.apply(service(n, "f")).await;
    running.server.delete("v1", "Service", n, "a").await;
    let record = running.sink.has(Kind::Service, n, &["b", "c", "d", "e", "f"]).await;
    assert_eq!(record.deleted_in(n), ["a"]);
    let requests = |verb| running.server.count(verb, "services");
    assert_eq!((requests("list"), requests("watch")), (0, 1));

    running.server.disconnect();
    until("the watch continues", || (requests("watch") == 2).then_some(())).await;
    running.server.apply(service(n, "g")).await;
    running.sink.has(Kind::Service, n, &["b", "c", "d", "e", "f", "g"]).await;
    assert_eq!((requests("list"), requests("watch")), (0, 2), "nothing is listed again");
    assert_eq!(running.server.lists("services"), 1);
}

with_api_server!(a_watch_continues_at_its_resource_version, shared);
async fn a_watch_continues_at_its_resource_version(api: KubeApi) {
    let n = &*api.namespace("n").await;
    apply_services(&api, n, &["a"]).await;
    let running = RunningSource::start(api).await;
    running.sink.synced().await;
    let mut expect = vec!["a"];
    for name in ["new-1", "new-2", "new-3"] {
        let watches = running.server.count("watch", "services");
        running.server.disconnect();
        until("it watches again", || (running.server.count("watch", "services") > watches).then_some(())).await;
        apply_services(&running.server, n, &[name]).await;
        expect.push(name);
        running.sink.has(Kind::Service, n, &expect).await;
    }
    assert_eq!(running.server.lists("services"), 1, "no event was missed, so nothing is listed again");
    until("no failure is reported", || running.states.failing().is_empty().then_some(())).await;
}

/// Deletes a Service and creates another one while the source is disconnected, and the history is compacted.
async fn the_difference_is_found(api: KubeApi) {
    let n = &*api.namespace("n").await;
    apply_services(&api, n, &["a", "b", "c"]).await;
    let running = RunningSource::start(api).await;
    running.sink.synced().await;
    let lists = running.server.lists("services");
    running.server.proxy().refuse();
    running.server.delete("v1", "Service", n, "b").await;
    apply_services(&running.server, n, &["d"]).await;
    running.server.compact().await;
    running.server.proxy().restore();
    let record = running.sink.has(Kind::Service, n, &["a", "c", "d"]).await;
    assert_eq!(record.deleted_in(n), ["b"]);
    apply_services(&running.server, n, &["e"]).await;
    running.sink.has(Kind::Service, n, &["a", "c", "d", "e"]).await;
    let again = running.server.lists("services") - lists;
    assert!((1..=4).contains(&again), "{again} lists after one disconnect");
}

with_api_server!(an_expired_watch_lists_again_and_reports_the_difference, own);
async fn an_expired_watch_lists_again_and_reports_the_difference(api: KubeApi) {
    the_difference_is_found(api).await;
}

with_api_server!(an_expired_watch_reports_the_difference_to_a_list_in_pages, own_without_streaming_lists);
async fn an_expired_watch_reports_the_difference_to_a_list_in_pages(api: KubeApi) {
    the_difference_is_found(api).await;
}

with_api_server!(watches_continue_when_connections_are_frozen, shared);
async fn watches_continue_when_connections_are_frozen(api: KubeApi) {
    let n = &*api.namespace("n").await;
    apply_services(&api, n, &["a"]).await;
    api.define("VirtualService").await;
    api.apply(virtual_service(n, "a")).await;
    let client = super::client(&api).await;
    // No watch ends by itself within the time limit of the test.
    let options = KubeOptions { watch_timeout: Duration::from_secs(290), ..KubeOptions::default() };
    let running = RunningSource::run(api, client, options);
    running.sink.synced().await;
    let mut expect = vec!["a"];
    for name in ["b", "c"] {
        running.server.proxy().lose_connections();
        apply_services(&running.server, n, &[name]).await;
        running.server.apply(virtual_service(n, name)).await;
        expect.push(name);
        running.sink.has(Kind::Service, n, &expect).await;
        running.sink.has(Kind::VirtualService, n, &expect).await;
    }
    assert_eq!(running.server.lists("services"), 1, "the watch continues");
}

with_api_server!(a_forbidden_kind_delays_only_itself, shared);
async fn a_forbidden_kind_delays_only_itself(api: KubeApi) {
    let n = &*api.namespace("n").await;
    apply_services(&api, n, &["a"]).await;
    api.forbid("pods", true).await;
    let running = RunningSource::start(api).await;
    let record = running.sink.until("the others are synced", |record| record.synced.len() == KINDS.len() - 1).await;
    assert!(!record.synced.contains(&Kind::Pod));
    assert_eq!(record.names_in(Kind::Service, n), ["a"]);
    running.server.forbid("pods", false).await;
    running.sink.synced().await;
}

with_api_server!(failed_pods_are_not_listed, shared);
async fn failed_pods_are_not_listed(api: KubeApi) {
    let n = &*api.namespace("n").await;
    let pod = |name: &str, phase: &str| -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": n},
               "spec": {"containers": [{"name": "app", "image": "app"}]},
               "status": {"phase": phase, "podIP": "10.0.0.2"}})
    };
    api.apply(pod("good", "Running")).await;
    api.apply(pod("bad", "Failed")).await;
    let running = RunningSource::start(api).await;
    let record = running.sink.synced().await;
    assert_eq!(record.names_in(Kind::Pod, n), ["good"]);
    running.server.apply(pod("good", "Failed")).await;
    let record = running.sink.has(Kind::Pod, n, &[]).await;
    assert_eq!(record.deleted_in(n), ["good"]);
}
