//! Streaming lists, and what follows when an API server breaks off or goes silent.

use std::time::Duration;

use sluice_kube::KubeOptions;
use sluice_model::Kind;
use sluice_testkit::api_server::ApiServer;
use sluice_testkit::wait::until;

use crate::kube::{RunningSource, options, service, virtual_service, virtual_services};

/// A server with Services of these names.
async fn server(names: &[&str]) -> ApiServer {
    let server = ApiServer::start().await.expect("a server");
    for name in names {
        server.apply(service(name));
    }
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn streaming_lists_are_read_and_watched_in_one_request() {
    let server = server(&["a", "b", "c", "d", "e"]).await;
    server.stream_lists();
    server.define(virtual_services(), true);
    server.apply(virtual_service("v"));
    let running = RunningSource::start(server).await;
    let record = running.sink.synced().await;
    assert_eq!(record.names(Kind::Service), ["n/a", "n/b", "n/c", "n/d", "n/e"]);
    assert_eq!(record.names(Kind::VirtualService), ["n/v"], "definitions are streamed as well");

    running.server.apply(service("f"));
    running.server.delete("services", "n", "a");
    let record = running.sink.until("f is added and a is deleted", |record| {
        record.names(Kind::Service) == ["n/b", "n/c", "n/d", "n/e", "n/f"] && record.deleted == ["n/a"]
    });
    record.await;
    let requests = |verb| running.server.count(verb, "services");
    assert_eq!((requests("list"), requests("watch")), (0, 1));

    running.server.disconnect();
    until("the watch continues", || (requests("watch") == 2).then_some(())).await;
    running.server.apply(service("g"));
    running.sink.until("g is added", |record| record.names(Kind::Service).len() == 6).await;
    assert_eq!((requests("list"), requests("watch")), (0, 2), "nothing is listed again");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_watch_of_a_streaming_list_reports_the_difference() {
    let server = server(&["a", "b", "c"]).await;
    server.stream_lists();
    let running = RunningSource::start(server).await;
    running.sink.synced().await;
    // All of this happens before a watch can report it.
    running.server.delete("services", "n", "b");
    running.server.apply(service("d"));
    running.server.compact();
    running.server.disconnect();
    let record =
        running.sink.until("the difference is found", |record| record.names(Kind::Service) == ["n/a", "n/c", "n/d"]);
    assert_eq!(record.await.deleted, ["n/b"]);
    assert_eq!(running.server.count("list", "services"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_breaks_off_is_read_again() {
    for streams in [false, true] {
        let server = server(&["a", "b", "c"]).await;
        server.break_list("services");
        if streams {
            server.stream_lists();
        }
        let running = RunningSource::start(server).await;
        let record = running.sink.synced().await;
        assert_eq!(record.names(Kind::Service), ["n/a", "n/b", "n/c"]);
        assert!(record.deleted.is_empty());
        let verb = if streams { "watch" } else { "list" };
        assert!(running.server.count(verb, "services") > 1, "{verb}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_watch_is_given_up() {
    let server = server(&["a"]).await;
    let running =
        RunningSource::start_with(server, KubeOptions { watch_timeout: Duration::from_secs(1), ..options() }).await;
    running.sink.synced().await;
    // The first watch request is that of a streaming list.
    until("it watches", || (running.server.count("watch", "services") > 1).then_some(())).await;
    let lists = running.server.count("list", "services");
    running.server.silence();
    running.server.apply(service("b"));
    running.sink.until("another watch reports it", |record| record.names(Kind::Service).len() == 2).await;
    assert_eq!(running.server.count("list", "services"), lists, "the watch continues at its resourceVersion");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_list_is_given_up() {
    let server = server(&["a"]).await;
    server.slow_lists(Duration::from_secs(3600));
    let options = KubeOptions { list_silence: Duration::from_millis(100), ..options() };
    let running = RunningSource::start_with(server, options).await;
    until("it lists again", || (running.server.count("list", "services") > 1).then_some(())).await;
    running.server.slow_lists(Duration::ZERO);
    let record = running.sink.synced().await;
    assert_eq!(record.names(Kind::Service), ["n/a"]);
}
