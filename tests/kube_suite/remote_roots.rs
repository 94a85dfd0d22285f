//! Roots in the namespaces of remote clusters.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sluice_authority::{AuthorityMetrics, RemoteRoots, RootObjects, RootsOptions, TrustBundle};
use sluice_kube::ROOTS_LOCK;
use sluice_sources::kube::SyncStatus;
use sluice_testkit::api_server::{Right, granted_by_rules};
use sluice_testkit::kube_api::KubeApi;
use sluice_testkit::wait::until_async;
use tokio::sync::watch;

use super::remote::{ClusterPair, OWN, RemoteClustersFixture};

const ROOTS: &str = "istio-ca-root-cert";
const RIGHTS: &str = include_str!("../../manifests/charts/sluice/files/rights/remote-roots.yaml");
const RIGHTS_OF_LOCK: &str = include_str!("../../manifests/charts/sluice/files/rights/remote-roots-lock.yaml");

/// Names the clusters whose control planes serve this one.
async fn annotate(api: &KubeApi, system: &str, clusters: &str) {
    let annotations = json!({"topology.istio.io/controlPlaneClusters": clusters});
    let metadata = json!({"name": system, "annotations": annotations});
    api.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})).await;
}

async fn has(api: &KubeApi, namespace: &str, roots: &str) {
    until_async(&format!("{namespace} has {roots}"), async || {
        let object = api.get("v1", "ConfigMap", namespace, ROOTS).await?;
        (object["data"]["root-cert.pem"] == roots).then_some(())
    })
    .await;
}

/// The lock of the writer, and its holder.
async fn lock(api: &KubeApi, system: &str) -> (Value, String) {
    let lock = api.get("v1", "ConfigMap", system, ROOTS_LOCK.name()).await.unwrap_or_default();
    let holder = ROOTS_LOCK.holder(&lock);
    (lock, holder)
}

/// The rights of the chart that the writer of roots uses. Lists are streamed, and the default revision decides only between
/// control planes of several revisions.
fn granted(system: &str) -> BTreeSet<Right> {
    let mut granted = granted_by_rules("", RIGHTS);
    granted.extend(granted_by_rules(system, RIGHTS_OF_LOCK));
    granted.retain(|(_, group, _, verb)| group.is_empty() && verb != "list");
    granted
}

with_api_server!(roots_are_written_to_remote_clusters_that_request_them_by_an_annotation, shared, remote);
async fn roots_are_written_to_remote_clusters_that_request_them_by_an_annotation(shared: KubeApi, remote: KubeApi) {
    let clusters = ClusterPair::new(shared, remote).await;
    let (own, east, system, shop) = (&clusters.own.api, &clusters.east.api, &*clusters.system, &*clusters.own.shop);
    east.create_namespace(system).await;
    annotate(own, system, OWN).await;
    annotate(east, system, "other").await;
    let [old, new] = [east.add_account("old").await, east.add_account("new").await];
    east.permit("old", true).await;
    east.permit("new", true).await;
    clusters.apply_kubeconfig("remote", &old).await;
    let mesh = RemoteClustersFixture::start_with_long_timeout(clusters.config_cluster().await).await;
    let options = RootsOptions {
        own: OWN.into(),
        system_namespace: system.into(),
        roots: Some(RootObjects { roots: ROOTS.to_owned(), revoked: None, cluster_trust_bundle: false }),
        webhooks: true,
        pod: Some("one".into()),
        revision: "default".into(),
    };
    let (bundle, receiver) = watch::channel(TrustBundle { roots: "one".to_owned(), ..TrustBundle::default() });
    let namespaces = (mesh.handles.namespaces.clone(), mesh.handles.discovered_namespaces.clone());
    let metrics = AuthorityMetrics::default();
    let roots = RemoteRoots::new(options, mesh.clients.clone(), mesh.engine.clone(), namespaces, receiver, metrics);
    let running = tokio::spawn(roots.run(mesh.stop.clone()));
    mesh.is("east", Some(SyncStatus::Synced)).await;
    assert_eq!(east.get("v1", "ConfigMap", shop, ROOTS).await, None, "another control plane serves the cluster");

    annotate(east, system, "other, own").await;
    has(east, shop, "one").await;
    has(east, system, "one").await;
    bundle.send_modify(|bundle| bundle.roots = "two".to_owned());
    has(east, shop, "two").await;
    let (object, first) = lock(east, system).await;
    assert!(first.starts_with("one-"), "one of several replicas writes: {first}");
    let record = object["metadata"]["annotations"].to_string();
    assert!(record.contains("^default"), "a control plane of the cluster takes precedence: {record}");

    // Writing continues with new credentials.
    clusters.apply_kubeconfig("remote", &new).await;
    until_async("another writes", async || {
        let (_, holder) = lock(east, system).await;
        (holder.starts_with("one-") && holder != first).then_some(())
    })
    .await;
    east.permit("old", false).await;
    bundle.send_modify(|bundle| bundle.roots = "three".to_owned());
    has(east, shop, "three").await;
    assert_eq!(own.get("v1", "ConfigMap", shop, ROOTS).await, None, "another task writes to the config cluster");
    let used = east.used_rights().into_iter().filter(|(_, _, resource, _)| resource == "configmaps");
    // What is granted in all namespaces is used in some, and what is granted for the lock, in the namespace of the mesh.
    let used = used.map(|(namespace, group, resource, verb)| {
        let namespace = if matches!(&*verb, "get" | "update") { namespace } else { String::new() };
        (namespace, group, resource, verb)
    });
    assert_eq!(used.collect::<BTreeSet<_>>(), granted(system));

    // Writing stops when another control plane serves the cluster, or no Secret refers to it.
    annotate(east, system, "other").await;
    until_async("the lock is released", async || lock(east, system).await.1.is_empty().then_some(())).await;
    clusters.delete_kubeconfig("remote").await;
    mesh.is("east", None).await;
    mesh.stop.cancel();
    running.await.expect("no panic");
}
