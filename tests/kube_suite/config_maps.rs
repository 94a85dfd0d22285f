//! The ConfigMaps with roots in namespaces.

use serde_json::{Value, json};
use sluice_authority::{BundleWriter, TrustBundle};
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, Handles, build};
use sluice_model::{Namespace, ObjectKey, Text};
use sluice_testkit::kube_api::KubeApi;
use sluice_testkit::wait::until_async;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

const ROOTS: &str = "istio-ca-root-cert";
const REVOKED: &str = "istio-ca-crl";

/// A bundle writer over a graph with namespaces.
struct BundleWriterFixture {
    api: KubeApi,
    /// The engine runs as long as there is a handle.
    _engine: Engine,
    handles: Handles,
    bundle: watch::Sender<TrustBundle>,
    _stop: DropGuard,
}

impl BundleWriterFixture {
    /// Writes to one namespace, or to all.
    async fn start(api: KubeApi, only: Option<Text>) -> Self {
        Self::start_with(api, only, (ROOTS, Some(REVOKED))).await
    }

    /// As [`Self::start`], with the names of the ConfigMaps of roots and revocation lists.
    async fn start_with(api: KubeApi, only: Option<Text>, names: (&str, Option<&str>)) -> Self {
        let (engine, handles) =
            Engine::start(EngineOptions::default(), |builder| build(builder, &GraphOptions::default()));
        engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
        let (bundle, receiver) = watch::channel(TrustBundle { roots: "one".into(), ..TrustBundle::default() });
        let writer = BundleWriter::new(
            super::client(&api).await,
            "east".into(),
            only,
            engine.feed(),
            handles.namespaces.clone(),
            receiver,
            names,
        );
        let stop = CancellationToken::new();
        tokio::spawn(writer.run(stop.clone()));
        Self { api, _engine: engine, handles, bundle, _stop: stop.drop_guard() }
    }

    /// Tells the writer that a cluster has a namespace.
    fn discover(&self, cluster: &str, name: &str) {
        let key = ObjectKey::new(cluster, "", name);
        self.handles.inputs.namespaces.set(key, Namespace::default());
    }

    async fn get(&self, namespace: &str, name: &str) -> Option<Value> {
        self.api.get("v1", "ConfigMap", namespace, name).await
    }

    async fn text(&self, namespace: &str, name: &str, key: &str) -> Option<String> {
        let object = self.get(namespace, name).await?;
        assert_eq!(object["metadata"]["labels"]["istio.io/config"], "true");
        object["data"][key].as_str().map(str::to_owned)
    }

    async fn has(&self, namespace: &str, roots: &str) {
        until_async(&format!("{namespace} has {roots}"), async || {
            (self.text(namespace, ROOTS, "root-cert.pem").await? == roots).then_some(())
        })
        .await;
    }
}

with_api_server!(every_namespace_has_the_root_config_map_restored, shared);
async fn every_namespace_has_the_root_config_map_restored(api: KubeApi) {
    let (shop, late, bank) = (api.namespace("shop").await, api.namespace("late").await, api.namespace("bank").await);
    let fixture = BundleWriterFixture::start(api, None).await;
    for (cluster, name) in [("east", &*shop), ("east", "kube-public"), ("east", "kube-system"), ("west", &bank)] {
        fixture.discover(cluster, name);
    }
    fixture.has(&shop, "one").await;
    fixture.has("kube-system", "one").await;
    fixture.bundle.send_replace(TrustBundle { roots: "two".into(), revoked: "list".into(), ..TrustBundle::default() });
    fixture.has(&shop, "two").await;
    until_async("the revocation lists are written", async || {
        (fixture.text(&shop, REVOKED, "ca-crl.pem").await? == "list").then_some(())
    })
    .await;
    fixture.discover("east", &late);
    fixture.has(&late, "two").await;
    fixture.api.delete("v1", "ConfigMap", &shop, ROOTS).await;
    fixture.has(&shop, "two").await;
    let forged = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": late, "name": ROOTS, "labels": {"istio.io/config": "true"}},
        "data": {"root-cert.pem": "forged", "mine": "kept"},
    });
    fixture.api.apply(forged).await;
    fixture.has(&late, "two").await;
    let repaired = fixture.get(&late, ROOTS).await.expect("it is there");
    assert_eq!(repaired["data"]["mine"], "kept");
    for without in ["kube-public", &bank] {
        assert_eq!(fixture.get(without, ROOTS).await, None, "{without}");
    }
}

with_api_server!(config_maps_of_a_watched_namespace_are_read_there, shared);
async fn config_maps_of_a_watched_namespace_are_read_there(api: KubeApi) {
    let (shop, bank) = (api.namespace("shop").await, api.namespace("bank").await);
    let fixture = BundleWriterFixture::start(api, Some((&*shop).into())).await;
    for name in [&shop, &bank] {
        fixture.discover("east", name);
    }
    fixture.has(&shop, "one").await;
    let watches = || fixture.api.count("watch", "configmaps");
    until_async("it is watched", async || (watches() > 1).then_some(())).await;
    // The writer notices that the ConfigMap was deleted.
    fixture.api.delete("v1", "ConfigMap", &shop, ROOTS).await;
    fixture.has(&shop, "one").await;
    assert_eq!(fixture.get(&bank, ROOTS).await, None);
    let used = fixture.api.used_rights();
    assert!(used.iter().all(|(namespace, ..)| *namespace == shop), "{used:?}");
}

with_api_server!(config_maps_have_the_configured_names, shared);
async fn config_maps_have_the_configured_names(api: KubeApi) {
    let shop = api.namespace("shop").await;
    let fixture = BundleWriterFixture::start_with(api, None, ("other-roots", Some("other-lists"))).await;
    fixture.bundle.send_replace(TrustBundle { roots: "one".into(), revoked: "list".into(), ..TrustBundle::default() });
    fixture.discover("east", &shop);
    for (name, key, content) in [("other-roots", "root-cert.pem", "one"), ("other-lists", "ca-crl.pem", "list")] {
        until_async(name, async || (fixture.text(&shop, name, key).await? == content).then_some(())).await;
    }
    assert_eq!((fixture.get(&shop, ROOTS).await, fixture.get(&shop, REVOKED).await), (None, None));
}

with_api_server!(revocation_lists_are_not_written_if_they_are_disabled, shared);
async fn revocation_lists_are_not_written_if_they_are_disabled(api: KubeApi) {
    let shop = api.namespace("shop").await;
    let fixture = BundleWriterFixture::start_with(api, None, (ROOTS, None)).await;
    fixture.discover("east", &shop);
    fixture.has(&shop, "one").await;
    fixture.bundle.send_replace(TrustBundle { roots: "two".into(), revoked: "list".into(), ..TrustBundle::default() });
    fixture.has(&shop, "two").await;
    assert_eq!(fixture.get(&shop, REVOKED).await, None);
}
