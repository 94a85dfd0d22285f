//! What follows when an API server breaks off or goes silent.

use std::time::Duration;

use sluice_kube::KubeOptions;
use sluice_model::Kind;
use sluice_testkit::api_server::ApiServer;
use sluice_testkit::wait::until;

use crate::kube::service;
use crate::kube_suite::source::{RunningSource, options};

/// A server with Services of these names.
async fn server(names: &[&str]) -> ApiServer {
    let server = ApiServer::start().await.expect("a server");
    for name in names {
        server.apply(service(name));
    }
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_breaks_off_is_read_again() {
    for streams in [false, true] {
        let server = server(&["a", "b", "c"]).await;
        server.break_list("services");
        if streams {
            server.stream_lists();
        }
        let running = RunningSource::start_fake(server);
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
    let running = RunningSource::start_with(server, KubeOptions { watch_timeout: Duration::from_secs(1), ..options() });
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
    let running = RunningSource::start_with(server, options);
    until("it lists again", || (running.server.count("list", "services") > 1).then_some(())).await;
    running.server.slow_lists(Duration::ZERO);
    let record = running.sink.synced().await;
    assert_eq!(record.names(Kind::Service), ["n/a"]);
}
