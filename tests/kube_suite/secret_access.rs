//! Reviews of the right of a proxy's service account to read Secrets.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_engine::{Engine, EngineOptions, Published};
use sluice_graph::{GraphOptions, Inputs, build};
use sluice_model::{Identity, Proxy, ProxyKey, SecretReader, Text};
use sluice_sources::kube::SecretReviewer;
use sluice_testkit::kube_api::KubeApi;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A graph with proxies that subscribe to secrets, and the reviewer of their rights.
pub(crate) struct SecretReviewFixture {
    engine: Engine,
    wanted: Published<SecretReader, ()>,
    inputs: Inputs,
    _stop: DropGuard,
}

impl SecretReviewFixture {
    /// With clients by cluster id.
    pub(crate) fn start(clients: BTreeMap<Text, kube::Client>) -> Self {
        let options = GraphOptions { cluster: "c".into(), reviews_secrets: true, ..GraphOptions::default() };
        let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &options));
        engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
        let (wanted, inputs) = (handles.wanted_secret_reviews.clone(), handles.inputs.clone());
        let reviewer =
            SecretReviewer::new(clients.into(), engine.feed(), wanted.clone(), inputs.secret_reviews.clone());
        let stop = CancellationToken::new();
        tokio::spawn(reviewer.run(stop.clone()));
        Self { engine, wanted, inputs, _stop: stop.drop_guard() }
    }

    /// Number of service accounts whose rights are wanted.
    fn wanted(&self) -> usize {
        self.engine.snapshot().iter(&self.wanted).count()
    }

    /// Connects a proxy with that service account, which a cluster has authenticated.
    pub(crate) fn connect(&self, cluster: &str, namespace: &str, service_account: &str) {
        let proxy = Proxy {
            proven_cluster: Some(cluster.into()),
            identity: Some(Identity::new("cluster.local", namespace, service_account)),
            ..Proxy::default()
        };
        let key = ProxyKey(format!("{cluster}-{service_account}").into());
        self.engine.transaction(|tx| {
            tx.set(&self.inputs.proxies, key.clone(), proxy);
            tx.set(&self.inputs.secret_clients, key, ());
        });
    }

    /// Waits for the answer about the service account of a cluster.
    pub(crate) async fn answered(&self, cluster: &str, service_account: &str, expect: bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let dump = self.engine.dump("secret_reviews").expect("a collection");
            let is_asked = |key: &Value| key["cluster"] == *cluster && key["service_account"] == *service_account;
            let found = dump.records().find(|(key, _)| is_asked(key));
            if let Some((_, answer)) = found {
                assert_eq!(answer, json!(expect), "{cluster} {service_account}");
                return;
            }
            assert!(Instant::now() < deadline, "no answer about {cluster} {service_account}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

with_api_server!(the_right_to_read_secrets_is_reviewed_by_the_cluster, shared);
async fn the_right_to_read_secrets_is_reviewed_by_the_cluster(api: KubeApi) {
    let (edge, bank) = (api.namespace("edge").await, api.namespace("bank").await);
    api.allow_reading_secrets(&edge, "gateway").await;
    api.allow_reading_secrets(&bank, "thief").await;
    let client = super::client(&api).await;
    let reviewing = SecretReviewFixture::start(BTreeMap::from([("c".into(), client)]));
    for (account, expect) in [("gateway", true), ("thief", false)] {
        reviewing.connect("c", &edge, account);
        reviewing.answered("c", account, expect).await;
    }
    assert_eq!(reviewing.wanted(), 2);
    assert_eq!(api.count("create", "subjectaccessreviews"), 2, "each is reviewed once");
}
