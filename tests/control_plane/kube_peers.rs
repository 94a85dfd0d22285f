//! API servers that vanish: frozen connections, black holes, killed and compacted servers. Each test prints how long the
//! recovery took.

use std::time::Instant;

use sluice_model::Kind;
use sluice_testkit::api_server::{ApiServer, ResourceKind, WrongAnswer};
use sluice_testkit::fault_proxy::FaultProxy;
use sluice_testkit::wait::until;

use crate::kube::{service, virtual_service, virtual_services};
use crate::kube_suite::source::RunningSource;

/// A source that reads a server through a proxy.
struct ProxiedSource {
    running: RunningSource<ApiServer>,
    proxy: FaultProxy,
    /// Number of changes made.
    changes: usize,
}

impl ProxiedSource {
    async fn start() -> Self {
        let server = ApiServer::start().await.expect("a server");
        let proxy = FaultProxy::start(server.address()).await.expect("a proxy");
        server.apply(service("a"));
        server.define(virtual_services(), true);
        server.apply(virtual_service("a"));
        let running = RunningSource::start_behind(server, proxy.address());
        running.sink.synced().await;
        let source = Self { running, proxy, changes: 0 };
        let watched = || {
            let resources = ["services", "virtualservices", "customresourcedefinitions"];
            resources.iter().all(|resource| source.running.server.count("watch", resource) > 0)
        };
        until("all is watched", || watched().then_some(())).await;
        source
    }

    /// Changes a built-in kind and a defined kind, and defines another one.
    fn change(&mut self) {
        self.changes += 1;
        let (server, change) = (&self.running.server, self.changes);
        server.apply(service(&format!("s{change}")));
        server.apply(virtual_service(&format!("v{change}")));
        // Each change of the definitions is one that the watch has to report.
        server.define(gateways(), change % 2 == 1);
        if change % 2 == 1 {
            server.apply(gateway());
        }
    }

    /// Waits until all changes are seen, and prints the time since `since`.
    async fn recovers(&self, fault: &str, since: Instant) {
        let count = self.changes + 1;
        let gateways = self.changes % 2;
        let seen = self.running.sink.until(fault, |record| {
            let numbers = [Kind::Service, Kind::VirtualService].map(|kind| record.names(kind).len());
            numbers == [count; 2] && record.names(Kind::Gateway).len() == gateways
        });
        seen.await;
        eprintln!("| {fault} | {:.2} s |", since.elapsed().as_secs_f64());
    }
}

fn gateways() -> ResourceKind {
    ResourceKind { group: "networking.istio.io", versions: vec!["v1"], name: "Gateway", plural: "gateways" }
}

fn gateway() -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "g", "namespace": "n"},
        "spec": {"selector": {"app": "edge"}, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"},
                 "hosts": ["*"]}]},
    })
}

/// Waits until every collection is outdated.
async fn goes_stale(source: &ProxiedSource) {
    let is_stale = || {
        // A watch may just have been accepted.
        source.running.server.disconnect();
        source.running.states.of("c").iter().all(|watch| watch.age_seconds > 3.0)
    };
    until("the age of every collection grows", || is_stale().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_kinds_recover_when_a_server_returns() {
    let mut source = ProxiedSource::start().await;
    source.proxy.freeze();
    source.change();
    // Requests on new connections get no response either.
    goes_stale(&source).await;
    source.proxy.lose_connections();
    source.proxy.restore();
    source.recovers("all connections were swallowed, new ones work again", Instant::now()).await;

    source.proxy.freeze();
    source.change();
    goes_stale(&source).await;
    source.proxy.restore();
    source.recovers("the server was frozen and continues", Instant::now()).await;

    source.proxy.refuse();
    source.change();
    goes_stale(&source).await;
    source.proxy.restore();
    source.recovers("the server was killed and is back", Instant::now()).await;

    source.proxy.refuse();
    source.change();
    source.running.server.compact();
    goes_stale(&source).await;
    source.proxy.restore();
    source.recovers("the server was killed and is back with compacted history", Instant::now()).await;

    let lists = source.running.server.count("list", "services");
    source.running.server.compact();
    source.running.server.disconnect();
    source.change();
    source.recovers("the history was compacted", Instant::now()).await;
    eprintln!("lists of services: {}", source.running.server.count("list", "services") - lists);

    for code in [403, 429, 500] {
        source.running.server.answer_wrongly("*", Some(WrongAnswer::Status(code)));
        source.change();
        goes_stale(&source).await;
        source.running.server.answer_wrongly("*", None);
        source.recovers(&format!("every request was answered with {code}"), Instant::now()).await;
    }
}
