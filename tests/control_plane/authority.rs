//! The certificate authority with an API server that rejects writes, and without one.

use serde_json::Value;
use sluice_authority::{BundleWriter, TrustBundle};
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, build};
use sluice_kube::{Election, ROOTS_LOCK, Term};
use sluice_model::{Namespace, ObjectKey};
use sluice_testkit::api_server::{ApiServer, WrongAnswer};
use sluice_testkit::wait::until;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A writer of roots, with its mesh of two namespaces.
struct RunningWriter {
    server: ApiServer,
    bundle: watch::Sender<TrustBundle>,
    stop: CancellationToken,
    _engine: Engine,
}

impl RunningWriter {
    fn start(server: ApiServer) -> Self {
        let (engine, handles) =
            Engine::start(EngineOptions::default(), |builder| build(builder, &GraphOptions::default()));
        engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
        for name in ["shop", "bank"] {
            handles.inputs.namespaces.set(ObjectKey::new("east", "", name), Namespace::default());
        }
        let (bundle, receiver) = watch::channel(TrustBundle { roots: "one".to_owned(), ..TrustBundle::default() });
        let (client, feed) = (server.client().expect("a client"), engine.feed());
        let names = ("roots", None);
        let writer = BundleWriter::new(client, "east".into(), None, feed, handles.namespaces, receiver, names);
        let stop = CancellationToken::new();
        tokio::spawn(writer.run(stop.clone()));
        Self { server, bundle, stop, _engine: engine }
    }

    async fn has(&self, namespace: &str, roots: &str) {
        let text = |object: Value| object["data"]["root-cert.pem"].as_str().map(str::to_owned);
        let stored = || self.server.get("", "configmaps", namespace, "roots").and_then(text);
        until(&format!("{namespace} has {roots}"), || (stored().as_deref() == Some(roots)).then_some(())).await;
    }
}

impl Drop for RunningWriter {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_writes_are_retried_without_end() {
    let server = ApiServer::start().await.expect("a server");
    server.answer_wrongly("create configmaps", Some(WrongAnswer::Status(500)));
    let writer = RunningWriter::start(server);
    let attempts = || writer.server.count("create", "configmaps");
    until("more than a few attempts fail", || (attempts() > 8).then_some(())).await;
    writer.server.answer_wrongly("create configmaps", None);
    for namespace in ["shop", "bank"] {
        writer.has(namespace, "one").await;
    }
    writer.bundle.send_modify(|bundle| bundle.roots = "two".to_owned());
    writer.has("shop", "two").await;
}

#[tokio::test]
async fn without_an_election_every_replica_leads() {
    let election = Election::new(None, "istio-system".into(), "one", "");
    let (report, mut reported) = watch::channel(false);
    let work = |_: Term| {
        report.send_replace(true);
        async {}
    };
    election.lead(ROOTS_LOCK, CancellationToken::new(), work).await;
    assert!(*reported.borrow_and_update());
}
